//! The children of a lock's folder: the claims in its queue.

use std::cmp::Ordering;

use fencepost_core::Mode;
use fencepost_core::backend::admission::Held;

/// A claim's node, fencepost's or another library's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Child {
    /// The node's name.
    pub(crate) name: String,
    /// Its number in the folder.
    pub(crate) number: i64,
    /// Exclusive or shared, by its name.
    pub(crate) mode: Mode,
    /// The kind of lock that its name belongs to. `None`: kazoo's names, of which readers count both.
    pub(crate) kind: Option<Kind>,
}

/// The kinds of lock that Curator keeps apart although their nodes share a folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Plain,
    ReadWrite,
}

/// In order of arrival.
impl Ord for Child {
    fn cmp(&self, other: &Child) -> Ordering {
        arrival(self, other)
    }
}

impl PartialOrd for Child {
    fn partial_cmp(&self, other: &Child) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Names of shared claims: Curator's, and kazoo's.
const SHARED: [&str; 2] = ["__READ__", "__rlock__"];
/// Names of Curator's read-write locks.
const READ_WRITE: [&str; 2] = ["__READ__", "__WRIT__"];
/// kazoo's names.
const KAZOO: [&str; 2] = ["__lock__", "__rlock__"];

impl Child {
    /// Parses a name. Each node with a number at the end is a claim, as for Curator; `None`: the name has none.
    pub(crate) fn read(name: &str) -> Option<Child> {
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        // Ten digits up to 2^31, and nineteen if a server counts further (ZOOKEEPER-4706). After 2^31 the number is negative: its sign
        // comes after the rest of the name, as in `lock--2147483648`, and is one of the at least ten characters of a number.
        let signed = |digits: usize| {
            let rest = &name[..name.len() - digits];
            rest.ends_with("--") || rest.ends_with("_-")
        };
        let digits = match digits {
            9 if signed(9) => 9,
            0..10 => return None,
            10..19 => 10,
            _ => 19,
        };
        let (rest, number) = name.split_at(name.len() - digits);
        let negative = digits == 9 || digits == 10 && !number.starts_with('0') && signed(10);
        let number: i64 = number.parse().ok()?;
        let has = |marks: [&str; 2]| marks.iter().any(|mark| rest.contains(mark));
        let mode = if has(SHARED) { Mode::Shared } else { Mode::Exclusive };
        let kind = match has(READ_WRITE) {
            true => Some(Kind::ReadWrite),
            false => (!has(KAZOO)).then_some(Kind::Plain),
        };
        Some(Child { name: name.to_owned(), number: if negative { -number } else { number }, mode, kind })
    }

    /// Returns whether other libraries take the two for different locks.
    pub(crate) fn is_apart_from(&self, other: &Child) -> bool {
        self.kind.zip(other.kind).is_some_and(|(one, other)| one != other)
    }
}

/// Orders by arrival: by the numbers, which go on from 2^31 - 1 to -2^31. Curator's reader under its own write lock has the writer's
/// number; the exclusive one of the two comes first.
pub(crate) fn arrival(one: &Child, other: &Child) -> Ordering {
    let by_number = match (i32::try_from(one.number), i32::try_from(other.number)) {
        (Ok(one), Ok(other)) => one.wrapping_sub(other).cmp(&0),
        _ => one.number.cmp(&other.number),
    };
    let shared = |child: &Child| child.mode == Mode::Shared;
    by_number.then_with(|| shared(one).cmp(&shared(other))).then_with(|| one.name.cmp(&other.name))
}

/// Returns the claims among `names`, in order of arrival.
pub(crate) fn queue<'a>(names: impl IntoIterator<Item = &'a String>) -> Vec<Child> {
    let mut queue: Vec<_> = names.into_iter().filter_map(|name| Child::read(name)).collect();
    queue.sort_unstable_by(arrival);
    queue
}

/// Returns the nodes in `queue` that other libraries take for another lock than that of the node `own`.
pub(crate) fn others<'a>(queue: impl IntoIterator<Item = &'a Child>, own: &Child) -> Vec<Child> {
    queue.into_iter().filter(|child| child.is_apart_from(own)).cloned().collect()
}

/// A claim's turn in a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// The claim may hold.
    Now,
    /// The claim waits until this node is deleted.
    After(String),
    /// The claim is not in the queue.
    Absent,
}

/// Returns the turn of the claim whose node is `own`.
pub(crate) fn turn(queue: &[Child], own: &str) -> Turn {
    let Some(at) = queue.iter().position(|child| child.name == own) else { return Turn::Absent };
    let mode = queue[at].mode;
    // No node says that it holds: each one that could hold does.
    let mut held = Held::default();
    if queue[..=at].iter().all(|child| held.admit(child.mode)) {
        return Turn::Now;
    }
    let blocks = |child: &&Child| mode != Mode::Shared || child.mode != Mode::Shared;
    let node = queue[..at].iter().rev().find(blocks).map(|child| child.name.clone());
    node.map_or(Turn::Now, Turn::After)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn everybodys_children_are_recognised() {
        for (name, number, mode) in [
            ("_c_01234567-89ab-cdef-0123-456789abcdef-lock-0000000012", 12, Mode::Exclusive),
            ("_c_01234567-89ab-cdef-0123-456789abcdef-__READ__0000000013", 13, Mode::Shared),
            ("_c_01234567-89ab-cdef-0123-456789abcdef-__WRIT__0000000014", 14, Mode::Exclusive),
            ("_c_01234567-89ab-cdef-0123-456789abcdef-latch-0000000014", 14, Mode::Exclusive),
            ("0123456789abcdef0123456789abcdef__lock__0000000015", 15, Mode::Exclusive),
            ("0123456789abcdef0123456789abcdef__rlock__0000000016", 16, Mode::Shared),
            ("_c_0123456789abcdef0123456789abcdef-lock-0000000017", 17, Mode::Exclusive),
            ("x-72057594037927936-0000000018", 18, Mode::Exclusive),
            ("lock-0000000019", 19, Mode::Exclusive),
            ("01234567-89ab-cdef-0123-456789abcdef_0000000020", 20, Mode::Exclusive),
            ("lock-2147483647", 2_147_483_647, Mode::Exclusive),
            ("lock--2147483648", -2_147_483_648, Mode::Exclusive),
            ("_c_01234567-89ab-cdef-0123-456789abcdef-__READ__-2147483640", -2_147_483_640, Mode::Shared),
            ("lock-0000000002147483648", 2_147_483_648, Mode::Exclusive),
            ("lock--999999999", -999_999_999, Mode::Exclusive),
            ("_c_01234567-89ab-cdef-0123-456789abcdef-__READ__-000000005", -5, Mode::Shared),
            ("01234567-89ab-cdef-0123-456789abcdef_-2147483647", -2_147_483_647, Mode::Exclusive),
            ("01234567-89ab-cdef-0123-456789abcdef_-000000001", -1, Mode::Exclusive),
            ("lock--0000000012", 12, Mode::Exclusive),
        ] {
            let child = Child::read(name).unwrap();
            assert_eq!((child.number, child.mode), (number, mode), "{name}");
        }
        for name in ["locks", "leases", "config", "lock-7", "config-123456789", ""] {
            assert_eq!(Child::read(name), None, "{name}");
        }
    }

    #[test]
    fn plain_and_read_write_nodes_are_apart() {
        let [plain, write, read, kazoo] = ["_c_a-lock-", "_c_a-__WRIT__", "_c_a-__READ__", "a__lock__"]
            .map(|name| Child::read(&format!("{name}0000000001")).unwrap());
        assert!(plain.is_apart_from(&write) && read.is_apart_from(&plain));
        for (one, other) in [(&read, &write), (&plain, &plain), (&kazoo, &plain), (&write, &kazoo)] {
            assert!(!one.is_apart_from(other), "{one:?} and {other:?}");
        }
    }

    #[test]
    fn the_order_is_that_of_arrival() {
        let mixed = names(&[
            "x-7-0000000003",
            "_c_a-lock-0000000010",
            "lock-0000000002",
            "zz__lock__0000000001",
            "nothing",
        ]);
        let numbers: Vec<_> = queue(&mixed).iter().map(|child| child.number).collect();
        assert_eq!(numbers, [1, 2, 3, 10]);
        let wrapped = names(&["lock--2147483648", "lock-2147483647", "lock--2147483647", "lock-2147483646"]);
        let numbers: Vec<_> = queue(&wrapped).iter().map(|child| child.number).collect();
        assert_eq!(numbers, [2_147_483_646, 2_147_483_647, -2_147_483_648, -2_147_483_647]);
    }

    #[test]
    fn who_waits_for_whom() {
        let all = queue(&names(&[
            "a-__READ__0000000001",
            "b-__READ__0000000002",
            "c-__WRIT__0000000003",
            "d-__READ__0000000004",
            "e-__READ__0000000005",
            "f-lock-0000000006",
        ]));
        let after = |node: &str| Turn::After(node.to_owned());
        assert_eq!(turn(&all, "a-__READ__0000000001"), Turn::Now);
        assert_eq!(turn(&all, "b-__READ__0000000002"), Turn::Now);
        assert_eq!(turn(&all, "c-__WRIT__0000000003"), after("b-__READ__0000000002"));
        assert_eq!(turn(&all, "d-__READ__0000000004"), after("c-__WRIT__0000000003"));
        assert_eq!(turn(&all, "e-__READ__0000000005"), after("c-__WRIT__0000000003"));
        assert_eq!(turn(&all, "f-lock-0000000006"), after("e-__READ__0000000005"));
        assert_eq!(turn(&all, "g-lock-0000000007"), Turn::Absent);
    }

    #[test]
    fn a_reader_under_its_own_write_lock_has_the_same_number() {
        let all = queue(&names(&["a-__READ__0000000003", "a-__WRIT__0000000003", "b-lock-0000000004"]));
        assert_eq!(all[0].name, "a-__WRIT__0000000003");
        assert_eq!(turn(&all, "a-__WRIT__0000000003"), Turn::Now);
        assert_eq!(turn(&all, "b-lock-0000000004"), Turn::After("a-__READ__0000000003".into()));
    }
}
