//! The queues of all resources, and the renewal of their leases.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use super::queue::{Change, MemoryQueue};
use super::records::MemoryRecords;
use super::rules::Rules;
use crate::backend::claim::Claim;
use crate::backend::{Reply, Session};
use crate::error::Result;
use crate::name::Name;
use crate::sync::Mutex;
use crate::time::{Clock, Moment};
use crate::token::Token;
use crate::validity::Loss;

/// So many queues are never swept.
const SWEEP_FROM: usize = 1_024;

/// The engine in memory. Clients of one `Memory` share its locks.
pub struct Memory {
    pub(super) queues: Mutex<HashMap<Name, MemoryQueue>>,
    /// How many queues there are when those are dropped whose grants have ended by their leases. Nobody may ever use their names again.
    sweep_at: AtomicUsize,
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
        Memory::with(Rules::new(None))
    }

    /// An engine whose tokens are at least the time of its clients' wall clock plus `offset` microseconds, as those of Redis or SQLite are:
    /// for tests of layers that compare the tokens of two engines.
    pub fn with_clock_tokens(offset: i64) -> Arc<Memory> {
        Memory::with(Rules::new(Some(offset)))
    }

    fn with(rules: Rules) -> Arc<Memory> {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        Arc::new_cyclic(|me| Memory {
            queues: Mutex::default(),
            sweep_at: AtomicUsize::new(SWEEP_FROM),
            me: me.clone(),
            id: COUNT.fetch_add(1, Ordering::Relaxed),
            rules,
            records: Arc::default(),
        })
    }

    /// Runs `work` on the queue of `name`, which it settles before and after. Then wakes the claims that it has news for, and sets the alarm
    /// for the next end of a lease if somebody waits for that.
    pub(super) fn on_queue<T>(
        &self,
        name: &Name,
        clock: &Clock,
        work: impl FnOnce(&mut MemoryQueue, &mut Change) -> T,
    ) -> T {
        let mut change = Change { now: clock.now(), rules: &self.rules, woken: Vec::new() };
        let (result, alarm) = self.with_queue(name, |queue| {
            queue.settle(&mut change);
            let result = work(queue, &mut change);
            queue.settle(&mut change);
            (result, queue.next_alarm(clock))
        });
        if let Some((at, clock)) = alarm {
            let expiry = Expiry { memory: self.me.clone(), name: name.clone(), at };
            clock.alarm(at, Waker::from(Arc::new(expiry)));
        }
        change.woken.into_iter().for_each(Waker::wake);
        result
    }

    /// Runs `work` on the queue of `name` as it is. Drops the queue if it is idle then.
    pub(super) fn with_queue<T>(&self, name: &Name, work: impl FnOnce(&mut MemoryQueue) -> T) -> T {
        let mut queues = self.queues.lock();
        let mut swept = Vec::new();
        if queues.len() >= self.sweep_at.load(Ordering::Relaxed) {
            swept.extend(queues.extract_if(|_, queue| queue.is_over()));
            // Twice as many, so that a sweep costs each new queue the same, however many are alive.
            self.sweep_at.store((2 * queues.len()).max(SWEEP_FROM), Ordering::Relaxed);
        }
        let queue = queues.entry(name.clone()).or_default();
        let result = work(queue);
        if queue.is_idle() {
            queues.remove(name);
        }
        drop(queues);
        // Dropped when the queues are unlocked, because a waker's task may have an entry.
        drop(swept);
        result
    }

    /// Stores the limit of permits, or forgets it, and lets those go who can now.
    pub(super) fn set_limit(&self, name: &Name, limit: Option<u32>) {
        let clock = self.with_queue(name, |queue| {
            queue.limit = limit;
            queue.clock()
        });
        // Without a clock nobody is here.
        if let Some(clock) = clock {
            self.on_queue(name, &clock, MemoryQueue::remove_impossible);
        }
    }

    /// Ends the grant with `token`, as an operator or a test wants it. Returns whether there is one.
    pub(super) fn end_grant(&self, name: &Name, token: Token, now: bool, why: Loss, detail: &str) -> bool {
        let Some(clock) = self.with_queue(name, |queue| queue.clock_to_read()) else { return false };
        let ended = self.on_queue(name, &clock, |queue, _| queue.evict(token, now));
        if let Some(validity) = &ended {
            validity.end_with(why, detail);
        }
        ended.is_some()
    }
}

/// Wakes when the lease of a queue's holder may have ended.
struct Expiry {
    memory: Weak<Memory>,
    name: Name,
    at: Moment,
}

impl Wake for Expiry {
    fn wake(self: Arc<Self>) {
        let Some(memory) = self.memory.upgrade() else { return };
        let clock = memory.with_queue(&self.name, |queue| {
            // An alarm cannot be taken back. If an earlier one has replaced this one, the queue has set another since.
            queue.alarm.take_if(|alarm| *alarm == self.at)?;
            queue.clock()
        });
        if let Some(clock) = clock {
            memory.on_queue(&self.name, &clock, |_, _| ());
        }
    }
}

impl Session for Memory {
    fn id(&self) -> u64 {
        self.id
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        for claim in due {
            let (ttl, clock) = (claim.ttl(), claim.runtime.clock());
            let kept = self.on_queue(&claim.want().name, clock, |queue, change| {
                queue.renew(claim, ttl, change).map(|()| change.now)
            });
            match kept {
                Ok(now) => {
                    claim.confirm(now, ttl);
                }
                Err(why) => claim.validity.end(why),
            }
        }
        Reply::ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

    use super::*;
    use crate::backend::admission::Mode;
    use crate::backend::claim::Want;
    use crate::backend::{Attempt, Backend};
    use crate::entry::Entry;
    use crate::entry::place::How;
    use crate::operator::holder::HolderInfo;
    use crate::runtime::Runtime;
    use crate::testing::NoTasks;

    #[test]
    fn a_limit_that_is_forgotten_leaves_no_queue() {
        let (memory, name) = (Memory::new(), Name::new("a").expect("a name"));
        let limit = || memory.queues.lock().get(&name).map(|queue| queue.limit);
        memory.set_limit(&name, None);
        assert_eq!(limit(), None, "nobody knows the name");
        memory.set_limit(&name, Some(1));
        assert_eq!(limit(), Some(Some(1)));
        memory.set_limit(&name, None);
        assert_eq!(limit(), None);
    }
    /// Leases of 30 s and 2 s alternate, and somebody always waits. An alarm cannot be taken back, so those for the end of a long lease that
    /// was released stay until their time.
    #[test]
    fn an_alarm_that_an_earlier_one_replaced_sets_no_other() {
        let (memory, name, clock) = (Memory::new(), Name::new("a").expect("a name"), Clock::manual());
        let runtime = Runtime::for_client(1, clock.clone(), Arc::new(NoTasks));
        let enter = |seconds| {
            let want = Want { name: name.clone(), mode: Mode::Exclusive };
            let (ttl, holder) = (Duration::from_secs(seconds), Arc::new(HolderInfo::this_process()));
            let mut claim = Claim::new(runtime.fresh_id(), want, ttl, holder, runtime.clone());
            claim.waits = true;
            let mut entry = Arc::clone(&memory).entry(Arc::new(claim), How::Enter);
            assert!(matches!(entry.attempt(), Reply::Ready(Some(Ok(_)))));
            entry
        };
        let mut claims: VecDeque<Entry> = [30, 2, 30].map(enter).into();
        for _ in 0..200 {
            claims.extend([2, 30].map(enter));
            drop(claims.pop_front());
            clock.advance_to(clock.now() + Duration::from_secs(2));
            drop(claims.pop_front());
        }
        assert!(clock.timer_count() <= 20, "{} alarms", clock.timer_count());
    }

    /// The entry of a claim that is granted.
    fn granted(memory: &Arc<Memory>, name: &str, ttl: Duration, runtime: &Runtime) -> Entry {
        let want = Want { name: Name::new(name).expect("a name"), mode: Mode::Exclusive };
        let holder = Arc::new(HolderInfo::this_process());
        let claim = Claim::new(runtime.fresh_id(), want, ttl, holder, runtime.clone());
        let mut entry = Arc::clone(memory).entry(Arc::new(claim), How::Enter);
        assert!(matches!(entry.attempt(), Reply::Ready(Some(Ok(Attempt::Granted(_))))));
        entry
    }

    #[test]
    fn a_grant_whose_client_is_closed_can_be_evicted() {
        for now in [false, true] {
            let (memory, name, clock) = (Memory::new(), Name::new("a").expect("a name"), Clock::manual());
            let runtime = Runtime::for_client(1, clock.clone(), Arc::new(NoTasks));
            granted(&memory, "a", Duration::from_secs(30), &runtime).forget();
            clock.stop();
            let holder = memory.with_queue(&name, |queue| queue.claims()).remove(0);
            let token = holder.token.expect("it holds");
            assert!(memory.end_grant(&name, token, now, Loss::Evicted, ""));
            let left = memory.with_queue(&name, |queue| queue.claims());
            assert!(left.iter().all(|holder| holder.evicted) && left.is_empty() == now, "{left:?}");
        }
    }

    #[test]
    fn grants_that_ended_by_their_leases_do_not_pile_up() {
        let (memory, clock) = (Memory::new(), Clock::manual());
        let runtime = Runtime::for_client(1, clock.clone(), Arc::new(NoTasks));
        // As of marks: each has a name of its own.
        let lives = granted(&memory, "lives", Duration::from_secs(3_600), &runtime);
        for number in 0..10_000 {
            granted(&memory, &format!("{number}"), Duration::from_secs(1), &runtime).forget();
            clock.advance_to(clock.now() + Duration::from_millis(1));
            let names = memory.queues.lock().len();
            assert!(names <= 2_048, "{names} names, of which 1,001 are held");
        }
        assert!(memory.with_queue(&lives.claim().want().name, |queue| queue.claims().len()) == 1);
    }
}
