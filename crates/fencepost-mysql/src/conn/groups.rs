//! Collects the requests that come while another one is under way, and hands them over as one group.

use fencepost_core::sync::Mutex;

/// Groups of requests, of which one is under way at a time. The requests that come meanwhile form the next group, so one slow commit
/// serves many requests.
#[derive(Debug)]
pub(crate) struct Groups<T> {
    most: usize,
    /// The requests that came while a group is under way. `None`: no group is under way.
    waiting: Mutex<Option<Vec<T>>>,
}

impl<T> Groups<T> {
    /// Makes groups of at most `most` requests.
    pub(crate) fn new(most: usize) -> Groups<T> {
        Groups { most, waiting: Mutex::new(None) }
    }

    /// Adds a request. Returns the request if no group is under way. The caller then sends it alone, and calls [`next`](Groups::next)
    /// when it has ended.
    pub(crate) fn add(&self, request: T) -> Option<T> {
        match &mut *self.waiting.lock() {
            Some(waiting) => {
                waiting.push(request);
                None
            }
            none => {
                *none = Some(Vec::new());
                Some(request)
            }
        }
    }

    /// Notes that a group has ended. Returns the next group, in the order of arrival, which the caller sends. If it is empty, no group is
    /// under way any more.
    #[must_use]
    pub(crate) fn next(&self) -> Vec<T> {
        let mut waiting = self.waiting.lock();
        let Some(requests) = &mut *waiting else { return Vec::new() };
        let count = requests.len().min(self.most);
        let group: Vec<T> = requests.drain(..count).collect();
        if group.is_empty() {
            *waiting = None;
        }
        group
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_go_together_that_come_while_one_is_under_way() {
        let groups = Groups::new(2);
        assert_eq!(groups.add(1), Some(1));
        for request in 2..=4 {
            assert_eq!(groups.add(request), None);
        }
        assert_eq!(groups.next(), [2, 3]);
        assert_eq!(groups.next(), [4]);
        assert_eq!(groups.add(5), None);
        assert_eq!(groups.next(), [5]);
        assert!(groups.next().is_empty());
        assert_eq!(groups.add(6), Some(6));
        assert!(groups.next().is_empty());
    }
}
