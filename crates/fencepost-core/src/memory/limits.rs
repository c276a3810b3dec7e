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
            let queue = shard.entry(name.clone()).or_default();
            queue.limit = limit;
            queue.clock()
        };
        // Without a clock nobody is here.
        let Some(clock) = clock else { return };
        self.on_queue(name, &clock, |queue, wakers| {
            queue.remove_impossible(wakers);
            queue.settle(clock.now(), &self.rules, wakers);
        });
    }
}
