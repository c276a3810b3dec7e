//! How many children a folder ever had, to notice one that nobody told of.
//!
//! Every child that is made counts, with or without a number in its name, and the next one that asks for a number gets the count
//! (ZooKeeper's `PrepRequestProcessor.pRequest2TxnCreate`). A wrong count can only be too low, and then the next number is too high for
//! it: so a number that is as expected says that all before it were told. Names that come with a number of their own (Curator's reader
//! under its own write lock) look as if something was missed, which costs a list.

use fencepost_core::{Error, ErrorKind};
use zookeeper_client as zk;

use crate::child::Child;
use crate::error::ENGINE;
use crate::link::{Asked, Link};

/// From this number on no claim is made: the server's counter ends at 2^31 - 1, and gives that number to all nodes after it. What is left is
/// for the claims that are under way, and for those that are refused.
const LAST: i64 = (1 << 31) - (1 << 20);
/// From this number on an examination warns.
pub(crate) const MANY: u32 = 1 << 30;

/// Counts are known up to this: a folder's statistics have them doubled, in 32 bits.
const ROUND: u32 = 1 << 31;

/// What is in a folder, and how many were ever made there. Nothing, if it is not there. The first poll sends.
pub(crate) async fn list(link: &Link, folder: &str) -> Result<(Vec<String>, Option<u32>), zk::Error> {
    let path = folder.to_owned();
    let asked: Asked<_> = link.ask(move |client| async move { client.get_children(&path).await });
    match asked.await {
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
    let numbers = names.iter().filter(ends).filter_map(|name| Child::read(name)).map(|child| child.number);
    match numbers.into_iter().find(|number| *number >= LAST || *number < 0) {
        None => Ok(()),
        Some(_) => {
            let message = format!(
                "the counter of the folder {folder} is near its end at 2^31, after which ZooKeeper gives the same number to all claims; \
                 use another name, or delete the folder when nobody claims the lock"
            );
            Err(Error::new(ErrorKind::Configuration, message).on(ENGINE))
        }
    }
}

/// How many children a node ever had. Its `cversion` counts makings and endings: the former twice, less those that are there
/// (ZooKeeper's `DataNode.copyStat`).
pub(crate) fn ever(stat: &zk::Stat) -> u32 {
    stat.cversion.wrapping_add(stat.num_children).cast_unsigned() / 2
}

#[derive(Default)]
pub(crate) struct Count {
    /// `None`: there is no folder.
    next: Option<u32>,
    /// The names without a number that the list had, as long as what it knows already may still be told.
    old: Option<Vec<String>>,
}

impl Count {
    /// Of a list, and the number of children that were ever made until then.
    pub(crate) fn listed(names: &[String], next: Option<u32>) -> Count {
        let others = names.iter().filter(|name| Child::read(name).is_none());
        Count { next, old: Some(others.cloned().collect()) }
    }

    /// Of a folder that has just been made: all that comes is told from its first child on.
    pub(crate) fn anew() -> Count {
        Count { next: Some(0), old: None }
    }

    /// A child was made. `false`: something was before it that was not told.
    pub(crate) fn made(&mut self, name: &str) -> bool {
        let Some(next) = &mut self.next else { return false };
        match Child::read(name) {
            Some(child) => {
                let ahead = (child.number.cast_unsigned() as u32).wrapping_sub(*next) % ROUND;
                if ahead != 0 {
                    // Behind: the list knew of it.
                    return self.old.is_some() && ahead > ROUND / 2;
                }
                self.old = None;
            }
            None => {
                if let Some(old) = &self.old {
                    // One that came and went before the list counts no more, and cannot be told from one that came behind it.
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

    fn count(names: &[&str], next: u32) -> Count {
        Count::listed(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), Some(next))
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
        assert!(!Count::default().made("a-lock-0000000000"));
        let mut count = Count::anew();
        assert!(count.made("leases") && count.made("a-lock-0000000001") && !count.made("c-lock-0000000003"));
    }
}
