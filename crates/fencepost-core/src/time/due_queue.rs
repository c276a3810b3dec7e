//! Items ordered by the moment at which they are due.

use std::collections::BTreeMap;
use std::task::Waker;

use crate::time::Moment;

/// Identifies an item: the moment at which it is due, and a number that tells it from the others of that moment.
pub type DueKey = (Moment, u64);

/// The number of items outside of the tree. A search through them takes less time than one in the tree.
const RECENT: usize = 16;

/// Items ordered by the moment at which they are due, and the waker of the task that takes them out.
///
/// Most items are taken back long before they are due: a request is answered, a lock is released. The last ones are the most likely to be
/// taken back next. They are kept outside of the tree, so a client with few requests under way needs no tree.
pub struct DueQueue<T> {
    recent: Vec<(DueKey, T)>,
    older: BTreeMap<DueKey, T>,
    waker: Option<Waker>,
    /// When the task wakes by itself. Taking an item back does not move this, so that it costs the task nothing.
    planned: Moment,
}

impl<T> Default for DueQueue<T> {
    fn default() -> DueQueue<T> {
        DueQueue { recent: Vec::new(), older: BTreeMap::new(), waker: None, planned: Moment::NEVER }
    }
}

impl<T> DueQueue<T> {
    /// Adds an item. Its key must not be in use. Wakes the task if it would wake later than the item is due.
    pub fn insert(&mut self, key: DueKey, item: T) {
        if self.recent.len() == RECENT {
            self.older.extend(self.recent.drain(..));
        }
        self.recent.push((key, item));
        if key.0 < self.planned {
            self.planned = key.0;
            self.waker.iter().for_each(Waker::wake_by_ref);
        }
    }

    /// Takes an item back.
    pub fn remove(&mut self, key: DueKey) -> Option<T> {
        match self.position(key) {
            Some(position) => Some(self.recent.swap_remove(position).1),
            None => self.older.remove(&key),
        }
    }

    /// Returns an item.
    pub fn get_mut(&mut self, key: DueKey) -> Option<&mut T> {
        match self.position(key) {
            Some(position) => Some(&mut self.recent[position].1),
            None => self.older.get_mut(&key),
        }
    }

    /// Returns all items, in no order.
    pub fn items(&self) -> impl Iterator<Item = &T> {
        self.recent.iter().map(|(_, item)| item).chain(self.older.values())
    }

    fn position(&self, key: DueKey) -> Option<usize> {
        self.recent.iter().rposition(|(recent, _)| *recent == key)
    }

    /// Returns the number of items.
    pub fn len(&self) -> usize {
        self.recent.len() + self.older.len()
    }

    /// Returns whether there is no item.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns when the next item is due; [`Moment::NEVER`] without one.
    pub fn first(&self) -> Moment {
        let recent = self.recent.iter().map(|((at, _), _)| *at);
        let older = self.older.first_key_value().map(|((at, _), _)| *at);
        recent.chain(older).min().unwrap_or(Moment::NEVER)
    }

    /// Takes out all items that are due by `now`, in their order.
    pub fn take_due(&mut self, now: Moment) -> BTreeMap<DueKey, T> {
        let after = (now, u64::MAX);
        let later = self.older.split_off(&after);
        let mut due = std::mem::replace(&mut self.older, later);
        due.extend(self.recent.extract_if(.., |(key, _)| *key < after));
        due
    }

    /// Returns when the next item is due. The task of `waker` wakes by itself then, and is woken for each earlier item.
    pub fn plan(&mut self, waker: &Waker) -> Moment {
        self.waker = Some(waker.clone());
        self.planned = self.first();
        self.planned
    }
}

impl<T> Drop for DueQueue<T> {
    /// Wakes the task, which ends: see [`Clock::next_due`](crate::Clock::next_due).
    fn drop(&mut self) {
        self.waker.iter().for_each(Waker::wake_by_ref);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Moment {
        Moment::from_nanos(nanos)
    }

    /// Returns a queue with `many` items at moments that repeat and go up and down, and their keys.
    fn some(many: u64) -> (DueQueue<()>, Vec<DueKey>) {
        let mut queue = DueQueue::default();
        let keys: Vec<_> = (0..many).map(|n| (at(n * 7 % 40), n)).collect();
        keys.iter().for_each(|key| queue.insert(*key, ()));
        (queue, keys)
    }

    #[test]
    fn items_are_taken_by_their_moments_whenever_they_were_added() {
        for many in [1, 3, RECENT as u64, 100] {
            let (mut queue, mut keys) = some(many);
            keys.sort();
            assert_eq!(queue.first(), keys[0].0);
            let (due, later): (Vec<DueKey>, Vec<DueKey>) = keys.iter().partition(|key| key.0 <= at(20));
            assert_eq!(queue.take_due(at(20)).into_keys().collect::<Vec<_>>(), due);
            assert_eq!(queue.first(), later.first().map_or(Moment::NEVER, |key| key.0));
        }
    }

    #[test]
    fn each_item_is_found_and_taken_back_by_its_key() {
        let (mut queue, keys) = some(100);
        for (turn, key) in keys.iter().rev().step_by(2).chain(keys.iter().step_by(2)).enumerate() {
            assert!(queue.get_mut(*key).is_some());
            assert!(queue.remove(*key).is_some());
            assert!(queue.get_mut(*key).is_none());
            assert_eq!(queue.len(), 99 - turn);
        }
        assert!(queue.is_empty() && queue.first() == Moment::NEVER);
    }
}
