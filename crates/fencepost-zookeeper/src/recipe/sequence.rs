//! Counts the children that a folder ever had, to notice a node without an event.
//!
//! Each child that is made raises the server's counter, with or without a number in its name, and the next sequential node gets the
//! counter's value (ZooKeeper's `PrepRequestProcessor.pRequest2TxnCreate`). The count here can only be too low, and then the next number
//! is too high for it. So an expected number proves that all nodes before it had their events. A name that brings its own number
//! (Curator's reader under its own write lock) looks like a missed node, and costs a list.

use fencepost_core::{Error, ErrorKind};
use zookeeper_client as zk;

use crate::error::ENGINE;
use crate::recipe::child::Child;
use crate::session::{Request, Session};

/// From this number on claims are refused: the server's counter ends at 2^31 - 1 and gives that number to all later nodes. The rest is for
/// claims that are under way or refused.
const LAST: i64 = (1 << 31) - (1 << 20);
/// From this number on the doctor warns.
pub(crate) const MANY: u32 = 1 << 30;

/// Counts are known modulo this: a folder's statistics have them doubled, in 32 bits.
const ROUND: u32 = 1 << 31;

/// Returns the children of a folder, and how many it ever had; nothing if it is not there. The first poll sends.
pub(crate) async fn list(session: &Session, folder: &str) -> Result<(Vec<String>, Option<u32>), zk::Error> {
    let path = folder.to_owned();
    let request: Request<_> = session.request(move |driver| async move { driver.get_children(&path).await });
    match request.await {
        Ok((names, stat)) => Ok((names, Some(ever(&stat)))),
        Err(zk::Error::NoNode) => Ok((Vec::new(), None)),
        Err(error) => Err(error),
    }
}

/// Refuses nodes in `folder` whose numbers are near the end of the server's counter.
///
/// # Errors
/// One is.
pub(crate) fn check(folder: &str, names: &[String]) -> Result<(), Error> {
    // A server that counts further writes longer numbers.
    let ends = |name: &&String| name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len() < 19;
    let mut numbers =
        names.iter().filter(ends).filter_map(|name| Child::read(name)).map(|child| child.number);
    if numbers.all(|number| (0..LAST).contains(&number)) {
        return Ok(());
    }
    let message = format!(
        "the counter of the folder {folder} is near its end at 2^31, after which ZooKeeper gives the same number to all claims; \
         use another name, or delete the folder when nobody claims the lock"
    );
    Err(Error::new(ErrorKind::Configuration, message).on(ENGINE))
}

/// Returns how many children a node ever had. Its `cversion` counts creations and deletions: creations twice, less the children that are
/// there (ZooKeeper's `DataNode.copyStat`).
pub(crate) fn ever(stat: &zk::Stat) -> u32 {
    stat.cversion.wrapping_add(stat.num_children).cast_unsigned() / 2
}

#[derive(Default)]
pub(crate) struct ChildCount {
    /// The number of the next child. `None`: there is no folder.
    next: Option<u32>,
    /// The names without a number in the list, while events from before the list may still come.
    old: Option<Vec<String>>,
}

impl ChildCount {
    /// Starts from a list, and the number of children that were made until then.
    pub(crate) fn listed(names: &[String], next: Option<u32>) -> ChildCount {
        let others = names.iter().filter(|name| Child::read(name).is_none());
        ChildCount { next, old: Some(others.cloned().collect()) }
    }

    /// Starts from a folder that has just been made: each child has an event.
    pub(crate) fn new() -> ChildCount {
        ChildCount { next: Some(0), old: None }
    }

    /// Counts the event of a new child. `false`: a child before it had no event.
    pub(crate) fn made(&mut self, name: &str) -> bool {
        let Some(next) = &mut self.next else { return false };
        match Child::read(name) {
            Some(child) => {
                let ahead = (child.number.cast_unsigned() as u32).wrapping_sub(*next) % ROUND;
                if ahead != 0 {
                    // A lower number: the list had it.
                    return self.old.is_some() && ahead > ROUND / 2;
                }
                self.old = None;
            }
            None => {
                if let Some(old) = &self.old {
                    // A child that was deleted before the list cannot be told from one that came after it: it counts as missed.
                    return old.iter().any(|known| known == name);
                }
            }
        }
        *next = (*next + 1) % ROUND;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(names: &[&str], next: u32) -> ChildCount {
        ChildCount::listed(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), Some(next))
    }

    #[test]
    fn what_was_not_told_is_noticed_by_the_next_number() {
        let mut count = count(&["a-lock-0000000003"], 4);
        assert!(count.made("b-lock-0000000004"));
        assert!(!count.made("d-lock-0000000006"));
        // Nobody gets away with it by asking again.
        assert!(!count.made("e-lock-0000000007"));
    }

    #[test]
    fn children_without_a_number_count_too() {
        let mut count = count(&["leases"], 1);
        assert!(count.made("a-lock-0000000001") && count.made("config") && count.made("b-lock-0000000003"));
        assert!(!count.made("c-lock-0000000005"));
    }

    #[test]
    fn what_the_list_had_is_told_once_more() {
        let mut count = count(&["leases", "b-lock-0000000002"], 3);
        for name in ["leases", "a-lock-0000000001", "b-lock-0000000002", "c-lock-0000000003"] {
            assert!(count.made(name), "{name}");
        }
        assert!(!count.made("b-lock-0000000002"), "it came twice");
    }

    #[test]
    fn numbers_near_the_end_of_the_counter_are_refused() {
        for (name, refused) in [
            ("a-lock-0000000001", false),
            ("a-lock-2146435071", false),
            ("a-lock-2146435072", true),
            ("a-lock-2147483647", true),
            ("a-lock--2147483648", true),
            ("a-lock-0000000002147483647", false),
            ("a-lock-0000000002147483648", false),
        ] {
            let checked = check("/a", &["b-lock-0000000000".to_owned(), name.to_owned()]);
            assert_eq!(checked.is_err(), refused, "{name}");
        }
    }

    #[test]
    fn numbers_go_round() {
        let mut count = count(&[], ROUND - 1);
        assert!(count.made("a-lock-2147483647"));
        assert!(count.made("a-lock--2147483648") && count.made("a-lock--2147483647"));
        assert!(!count.made("a-lock--2147483645"));
    }

    #[test]
    fn without_a_folder_nothing_is_counted() {
        assert!(!ChildCount::default().made("a-lock-0000000000"));
        let mut count = ChildCount::new();
        assert!(count.made("leases") && count.made("a-lock-0000000001") && !count.made("c-lock-0000000003"));
    }
}
