//! Which wakers are to be woken when.

use std::collections::BTreeMap;
use std::task::Waker;

use crate::time::Moment;

/// Names one timer: its moment, then the order of setting.
pub(crate) type Key = (Moment, u64);

/// Timers by moment, then by order of setting.
///
/// Most of them time a request out that is answered long before, so the last one that was set is the one that is most likely to be
/// taken back next: it stands by itself, and a client that asks for one thing after the other needs no tree.
#[derive(Default)]
pub(crate) struct Timers {
    newest: Option<(Key, Waker)>,
    older: BTreeMap<Key, Waker>,
    count: u64,
}

impl Timers {
    pub(crate) fn insert(&mut self, at: Moment, waker: Waker) -> Key {
        self.count += 1;
        let key = (at, self.count);
        self.older.extend(self.newest.replace((key, waker)));
        key
    }

    pub(crate) fn remove(&mut self, key: Key) {
        if self.newest.take_if(|(newest, _)| *newest == key).is_none() {
            self.older.remove(&key);
        }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut Waker> {
        match &mut self.newest {
            Some((newest, waker)) if *newest == key => Some(waker),
            _ => self.older.get_mut(&key),
        }
    }

    /// When the next one is due.
    pub(crate) fn first(&self) -> Option<Moment> {
        let newest = self.newest.as_ref().map(|((at, _), _)| *at);
        let older = self.older.first_key_value().map(|((at, _), _)| *at);
        newest.into_iter().chain(older).min()
    }

    /// Takes out all that are due by `now`, in their order.
    pub(crate) fn take_due(&mut self, now: Moment) -> BTreeMap<Key, Waker> {
        let after = (now, u64::MAX);
        let later = self.older.split_off(&after);
        let mut due = std::mem::replace(&mut self.older, later);
        due.extend(self.newest.take_if(|(key, _)| *key < after));
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Moment {
        Moment::from_nanos(nanos)
    }

    #[test]
    fn timers_are_taken_by_their_moments_whichever_was_set_last() {
        for last in [5, 15, 25] {
            let mut timers = Timers::default();
            let keys = [10, 20, last].map(|nanos| timers.insert(at(nanos), Waker::noop().clone()));
            assert_eq!(timers.first(), Some(at(last.min(10))));
            let due: Vec<Key> = timers.take_due(at(20)).into_keys().collect();
            let mut wanted: Vec<Key> = keys.into_iter().filter(|key| key.0 <= at(20)).collect();
            wanted.sort();
            assert_eq!(due, wanted);
            assert_eq!(timers.first(), (last == 25).then_some(at(25)));
        }
    }

    #[test]
    fn each_timer_is_found_and_taken_back_by_its_key() {
        let mut timers = Timers::default();
        let keys = [10, 10, 5].map(|nanos| timers.insert(at(nanos), Waker::noop().clone()));
        for (left, key) in [(2, keys[1]), (1, keys[2]), (0, keys[0])] {
            assert!(timers.get_mut(key).is_some());
            timers.remove(key);
            assert!(timers.get_mut(key).is_none());
            assert_eq!(timers.older.len() + usize::from(timers.newest.is_some()), left);
        }
        assert_eq!(timers.first(), None);
    }
}
