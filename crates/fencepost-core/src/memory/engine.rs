//! The queues of all resources, and the renewal of their leases.

use crate::sync::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;

#[cfg(feature = "planted")]
use super::bug::Bug;
use super::bug::Planted;
use super::queue::Queue;
use super::records::MemoryRecords;
use super::rules::Rules;
use super::wakers::Wakers;
use crate::backend::claim::Claim;
use crate::backend::{Reply, Session};
use crate::error::Result;
use crate::name::Name;
use crate::time::Clock;
use crate::validity::Loss;

const SHARDS: usize = 16;
/// How many queues a shard may hold before empty ones are dropped.
const IDLE_QUEUES: usize = 64;

/// By name, hashed with a key of the process.
pub(super) type Queues = HashMap<Name, Queue, foldhash::fast::RandomState>;

/// The engine in memory. Clients of one `Memory` share its locks.
pub struct Memory {
    pub(super) shards: [Mutex<Queues>; SHARDS],
    /// Ours, for alarms.
    me: Weak<Memory>,
    id: u64,
    pub(super) rules: Rules,
    pub(super) records: Arc<MemoryRecords>,
}

impl Memory {
    /// An engine of its own.
    #[allow(clippy::new_ret_no_self)]
    pub fn new() -> Arc<Memory> {
        Memory::with(Rules::new(Planted::default()))
    }

    /// An engine whose tokens are at least the time of its clients' wall clock plus `offset` microseconds, as those of Redis or SQLite are:
    /// for tests of layers that compare the tokens of two engines.
    pub fn with_clock_tokens(offset: i64) -> Arc<Memory> {
        let mut rules = Rules::new(Planted::default());
        rules.clock_offset = Some(offset);
        Memory::with(rules)
    }

    /// An engine with a bug, for proving the checker.
    #[cfg(feature = "planted")]
    pub fn with_bug(bug: Bug) -> Arc<Memory> {
        Memory::with(Rules::new(Planted::new(bug)))
    }

    fn with(rules: Rules) -> Arc<Memory> {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        Arc::new_cyclic(|me| Memory {
            shards: std::array::from_fn(|_| Mutex::default()),
            me: me.clone(),
            id: COUNT.fetch_add(1, Ordering::Relaxed),
            rules,
            records: Arc::default(),
        })
    }

    pub(super) fn shard(&self, name: &Name) -> MutexGuard<'_, Queues> {
        // Any spread will do: the map inside hashes with a key of its own.
        let spread =
            name.as_str().bytes().rev().take(8).fold(0usize, |sum, byte| sum * 31 + usize::from(byte));
        self.shards[spread % SHARDS].lock()
    }

    /// Runs `work` on the queue of `name`, then wakes whom it made winners, drops the queue if it is idle, and sets the alarm
    /// for its next expiry if somebody waits.
    pub(super) fn on_queue<T>(
        &self,
        name: &Name,
        clock: &Clock,
        work: impl FnOnce(&mut Queue, &mut Wakers) -> T,
    ) -> T {
        let mut wakers = Wakers::default();
        let mut shard = self.shard(name);
        let queue = match shard.get_mut(name) {
            Some(queue) => queue,
            None => shard.entry(name.clone()).or_default(),
        };
        let result = work(queue, &mut wakers);
        let mut alarm = None;
        if queue.is_empty() {
            // A name that was just used is likely to be used again: its empty queue may stay, if they are few. A limit is kept.
            if queue.limit.is_none() && shard.len() > IDLE_QUEUES {
                shard.remove(name);
            }
        } else if let Some((at, clock)) = queue.next_alarm(clock) {
            alarm = Some((at, clock));
        }
        drop(shard);
        if let Some((at, clock)) = alarm {
            let expiry = Expiry { memory: self.me.clone(), name: name.clone() };
            clock.alarm(at, Waker::from(Arc::new(expiry)));
        }
        wakers.wake();
        result
    }
}

/// Wakes when the lease of a queue's holder may have ended.
struct Expiry {
    memory: Weak<Memory>,
    name: Name,
}

impl std::task::Wake for Expiry {
    fn wake(self: Arc<Self>) {
        let Some(memory) = self.memory.upgrade() else { return };
        let clock = {
            let mut shard = memory.shard(&self.name);
            let Some(queue) = shard.get_mut(&self.name) else { return };
            // Also for a queue that is idle now: it may be used again, and then needs an alarm of its own.
            queue.alarm_fired();
            let Some(clock) = queue.clock() else { return };
            clock
        };
        memory.on_queue(&self.name, &clock, |queue, wakers| {
            queue.settle(clock.now(), &memory.rules, wakers);
        });
    }
}

impl Session for Memory {
    fn id(&self) -> u64 {
        self.id
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        for claim in due {
            let clock = claim.runtime.clock();
            let (now, ttl) = (clock.now(), claim.ttl());
            let kept = {
                let mut shard = self.shard(&claim.want().name);
                shard
                    .get_mut(&claim.want().name)
                    .map_or(Err(Loss::Deleted), |queue| queue.keep(claim, now, ttl, self.rules.planted))
            };
            match kept {
                Ok(()) => {
                    #[cfg(feature = "planted")]
                    if self.rules.planted.has(Bug::LateRenewal) {
                        claim.validity.revive(now, ttl);
                    }
                    claim.confirm(now, ttl);
                }
                Err(why) => claim.validity.end(why),
            }
        }
        Reply::ready(Ok(()))
    }
}
