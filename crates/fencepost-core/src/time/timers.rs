//! Which wakers are to be woken when.

use std::collections::BTreeMap;
use std::task::Waker;

use crate::time::Moment;

/// Names one timer: its moment, then the order of setting.
pub(crate) type Key = (Moment, u64);

/// How many stand outside of the tree: to look through so many takes less than the tree's way to one.
const RECENT: usize = 16;

/// Timers by moment, then by order of setting.
///
/// Most of them time a request out that is answered long before, so the last ones that were set are those that are most likely to be
/// taken back next: they stand by themselves, and a client that has few requests under way needs no tree.
#[derive(Default)]
pub(crate) struct Timers {
    recent: Vec<(Key, Waker)>,
    older: BTreeMap<Key, Waker>,
    count: u64,
}

impl Timers {
    pub(crate) fn insert(&mut self, at: Moment, waker: Waker) -> Key {
        self.count += 1;
        let key = (at, self.count);
        if self.recent.len() == RECENT {
            self.older.extend(self.recent.drain(..));
        }
        self.recent.push((key, waker));
        key
    }

    pub(crate) fn remove(&mut self, key: Key) {
        match self.position(key) {
            Some(position) => drop(self.recent.swap_remove(position)),
            None => drop(self.older.remove(&key)),
        }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut Waker> {
        match self.position(key) {
            Some(position) => Some(&mut self.recent[position].1),
            None => self.older.get_mut(&key),
        }
    }

    fn position(&self, key: Key) -> Option<usize> {
        self.recent.iter().rposition(|(recent, _)| *recent == key)
    }

    /// When the next one is due.
    pub(crate) fn first(&self) -> Option<Moment> {
        let recent = self.recent.iter().map(|((at, _), _)| *at);
        recent.chain(self.older.first_key_value().map(|((at, _), _)| *at)).min()
    }

    /// Takes out all that are due by `now`, in their order.
    pub(crate) fn take_due(&mut self, now: Moment) -> BTreeMap<Key, Waker> {
        let after = (now, u64::MAX);
        let later = self.older.split_off(&after);
        let mut due = std::mem::replace(&mut self.older, later);
        due.extend(self.recent.extract_if(.., |(key, _)| *key < after));
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Moment {
        Moment::from_nanos(nanos)
    }

    /// Timers that many at moments that repeat and go up and down, and their keys.
    fn some(many: u64) -> (Timers, Vec<Key>) {
        let mut timers = Timers::default();
        let keys = (0..many).map(|n| timers.insert(at(n * 7 % 40), Waker::noop().clone())).collect();
        (timers, keys)
    }

    #[test]
    fn timers_are_taken_by_their_moments_whenever_they_were_set() {
        for many in [1, 3, RECENT as u64, 100] {
            let (mut timers, mut keys) = some(many);
            keys.sort();
            assert_eq!(timers.first(), Some(keys[0].0));
            let (due, later): (Vec<Key>, Vec<Key>) = keys.iter().partition(|key| key.0 <= at(20));
            assert_eq!(timers.take_due(at(20)).into_keys().collect::<Vec<_>>(), due);
            assert_eq!(timers.first(), later.first().map(|key| key.0));
        }
    }

    #[test]
    fn each_timer_is_found_and_taken_back_by_its_key() {
        let (mut timers, keys) = some(100);
        for (turn, key) in keys.iter().rev().step_by(2).chain(keys.iter().step_by(2)).enumerate() {
            assert!(timers.get_mut(*key).is_some());
            timers.remove(*key);
            assert!(timers.get_mut(*key).is_none());
            assert_eq!(timers.older.len() + timers.recent.len(), 99 - turn);
        }
        assert_eq!(timers.first(), None);
    }
}
