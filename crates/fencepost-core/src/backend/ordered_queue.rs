//! The queue of a resource as a client sees it, for an engine whose server only lists the contenders and notifies of changes.

use std::collections::BTreeMap;

use crate::backend::admission::{Held, Mode};

/// The contenders of a resource in the order of arrival, and the claims of this client among them that wait.
///
/// `K` identifies a contender and orders it by its arrival. `W` is what the engine keeps for a claim that waits. The engine fills the queue
/// from a listing and keeps it current by events. Whether a missing contender has left, or has not been heard of yet, is the engine's to
/// know, because only the server's protocol tells.
///
/// No contender says whether it holds the resource. The [rule of admission](crate::backend::admission::winners) decides: the first ones
/// hold, as long as each fits beside all before it.
#[derive(Debug)]
pub struct OrderedQueue<K, W> {
    contenders: BTreeMap<K, Mode>,
    waiters: BTreeMap<K, W>,
}

impl<K, W> Default for OrderedQueue<K, W> {
    fn default() -> OrderedQueue<K, W> {
        OrderedQueue { contenders: BTreeMap::new(), waiters: BTreeMap::new() }
    }
}

impl<K: Ord, W> OrderedQueue<K, W> {
    /// Adds a contender. Returns whether it is new.
    pub fn insert(&mut self, key: K, mode: Mode) -> bool {
        self.contenders.insert(key, mode).is_none()
    }

    /// Removes a contender. Returns whether it was there. A waiter of that key stays.
    pub fn remove(&mut self, key: &K) -> bool {
        self.contenders.remove(key).is_some()
    }

    /// Removes all contenders, before a new listing. The waiters stay.
    pub fn clear(&mut self) {
        self.contenders.clear();
    }

    /// Returns whether this is a contender.
    pub fn contains(&self, key: &K) -> bool {
        self.contenders.contains_key(key)
    }

    /// Returns the contenders in the order of arrival.
    pub fn contenders(&self) -> impl Iterator<Item = &K> {
        self.contenders.keys()
    }

    /// Returns whether there is no contender.
    pub fn is_empty(&self) -> bool {
        self.contenders.is_empty()
    }

    /// Returns whether the contender holds the resource. `None`: it is no contender.
    pub fn holds(&self, key: &K) -> Option<bool> {
        self.contains(key)
            .then(|| first(&self.contenders).take_while(|first| *first <= key).any(|first| first == key))
    }

    /// Adds a claim that waits. It may come before its key is known as a contender.
    pub fn wait(&mut self, key: K, waiter: W) {
        self.waiters.insert(key, waiter);
    }

    /// Removes a claim that waits.
    pub fn stop_waiting(&mut self, key: &K) -> Option<W> {
        self.waiters.remove(key)
    }

    /// Returns the claim that waits with this key.
    pub fn waiter(&mut self, key: &K) -> Option<&mut W> {
        self.waiters.get_mut(key)
    }

    /// Returns all claims that wait.
    pub fn waiters(&mut self) -> impl Iterator<Item = (&K, &mut W)> {
        self.waiters.iter_mut()
    }

    /// Returns whether a claim waits.
    pub fn is_awaited(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Returns the claims that wait although their contenders are gone.
    pub fn missing(&mut self) -> impl Iterator<Item = (&K, &mut W)> {
        let contenders = &self.contenders;
        self.waiters.iter_mut().filter(|(key, _)| !contenders.contains_key(key))
    }

    /// Calls `granted` with each waiting claim that holds the resource, in the order of arrival.
    pub fn for_each_granted(&mut self, mut granted: impl FnMut(&K, &mut W)) {
        if self.is_awaited() {
            for key in first(&self.contenders) {
                if let Some(waiter) = self.waiters.get_mut(key) {
                    granted(key, waiter);
                }
            }
        }
    }

    /// Takes out the waiting claims that hold the resource, in the order of arrival.
    pub fn take_granted(&mut self) -> Vec<(K, W)> {
        if !self.is_awaited() {
            return Vec::new();
        }
        first(&self.contenders).filter_map(|key| self.waiters.remove_entry(key)).collect()
    }
}

/// Returns the contenders that hold the resource.
fn first<K>(contenders: &BTreeMap<K, Mode>) -> impl Iterator<Item = &K> {
    let mut held = Held::default();
    contenders.iter().take_while(move |(_, mode)| held.admit(**mode)).map(|(key, _)| key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Mode::{Exclusive as X, Shared as S};

    fn queue(contenders: &[(u8, Mode)]) -> OrderedQueue<u8, &'static str> {
        let mut queue = OrderedQueue::default();
        for (key, mode) in contenders {
            assert!(queue.insert(*key, *mode), "{key} is there twice");
        }
        queue
    }

    #[test]
    fn the_first_that_fit_together_hold() {
        let mut queue = queue(&[(1, S), (2, S), (3, X), (4, S)]);
        let holds = [1, 2, 3, 4, 5].map(|key| queue.holds(&key));
        assert_eq!(holds, [Some(true), Some(true), Some(false), Some(false), None]);
        assert!(queue.remove(&1) && !queue.remove(&1) && queue.remove(&2));
        assert_eq!([3, 4].map(|key| queue.holds(&key)), [Some(true), Some(false)]);
        let permits = |n| Mode::Permits { n, of: 3 };
        let queue = self::queue(&[(1, permits(2)), (2, permits(2)), (3, permits(1))]);
        assert_eq!(queue.holds(&3), Some(false), "a small claim passes no large one");
    }

    #[test]
    fn waiters_are_granted_in_the_order_of_arrival() {
        let mut queue = queue(&[(1, X), (2, S), (3, S), (4, X)]);
        for (key, waiter) in [(4, "last"), (3, "third"), (2, "second")] {
            queue.wait(key, waiter);
        }
        assert_eq!(queue.take_granted(), []);
        queue.remove(&1);
        let mut seen = Vec::new();
        queue.for_each_granted(|key, waiter| seen.push((*key, *waiter)));
        assert_eq!(seen, [(2, "second"), (3, "third")]);
        assert_eq!(queue.take_granted(), seen);
        assert!(queue.is_awaited() && queue.stop_waiting(&4).is_some() && !queue.is_awaited());
    }

    #[test]
    fn a_listing_shows_which_waiters_are_gone() {
        let mut queue = queue(&[(1, X), (2, X)]);
        queue.wait(2, "listed");
        queue.wait(3, "missing");
        queue.clear();
        assert!(queue.is_empty() && queue.insert(2, X));
        assert_eq!(queue.missing().map(|(key, _)| *key).collect::<Vec<_>>(), [3]);
        assert_eq!(queue.holds(&2), Some(true));
    }
}
