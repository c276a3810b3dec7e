//! Stored limits of permits.

use super::chain::NodeState;
use super::engine::Memory;
use super::queue::Queue;
use super::wakers::Wakers;
use crate::backend::admission::Mode;
use crate::error::{Error, Result};
use crate::name::Name;

impl Queue {
    /// Returns whether a claim in this mode can hold the resource beside the holders.
    pub(super) fn fits(&self, mode: Mode) -> bool {
        self.held.fits(mode.limited(self.limit))
    }

    /// Refuses a claim for more permits than the limit.
    pub(super) fn check_limit(&self, mode: Mode) -> Result<()> {
        match self.limit {
            Some(limit) if !mode.limited(self.limit).is_possible() => {
                Err(Error::over_limit(limit).on("memory"))
            }
            _ => Ok(()),
        }
    }

    /// Removes the waiters that ask for more permits than the limit. Each finds that it is gone, and its next claim is refused.
    fn remove_impossible(&mut self, wakers: &mut Wakers) {
        let modes = self.keys(self.waiters).map(|key| (key, self.nodes[key].mode));
        let impossible: Vec<_> =
            modes.filter(|(_, mode)| self.check_limit(*mode).is_err()).map(|(key, _)| key).collect();
        for key in impossible {
            if let NodeState::Waiting { waker } = &mut self.nodes[key].state {
                wakers.push(waker.take());
            }
            self.remove(key);
        }
    }
}

impl Memory {
    pub(super) fn limit(&self, name: &Name) -> Option<u32> {
        self.shard(name).get(name).and_then(|queue| queue.limit)
    }

    /// Stores the limit, or forgets it, and lets those go who can now.
    pub(super) fn set_limit(&self, name: &Name, limit: Option<u32>) {
        let clock = {
            let mut shard = self.shard(name);
            let queue = match limit {
                Some(_) => shard.entry(name.clone()).or_default(),
                None => match shard.get_mut(name) {
                    Some(queue) => queue,
                    None => return,
                },
            };
            queue.limit = limit;
            let clock = queue.clock();
            if limit.is_none() && queue.is_empty() {
                shard.remove(name);
                return;
            }
            clock
        };
        // Without a clock nobody is here.
        let Some(clock) = clock else { return };
        self.on_queue(name, &clock, |queue, wakers| {
            queue.remove_impossible(wakers);
            queue.settle(clock.now(), &self.rules, wakers);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_forgotten_leaves_no_queue() {
        let (memory, name) = (Memory::new(), Name::new("a").expect("a name"));
        let kept = || memory.shard(&name).contains_key(&name);
        memory.set_limit(&name, None);
        assert!(!kept(), "nobody knows the name");
        memory.set_limit(&name, Some(1));
        assert!(kept() && memory.limit(&name) == Some(1));
        memory.set_limit(&name, None);
        assert!(!kept());
    }
}
