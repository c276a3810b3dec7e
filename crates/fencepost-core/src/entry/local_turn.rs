//! The turn of a claim in the queue of its process, which stands before the engine's queue.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::backend::admission::Mode;
use crate::backend::attempt::Attempt;
use crate::backend::claim::Claim;
use crate::backend::session::Session;
use crate::error::Result;
use crate::name::Name;
use crate::sync::Mutex;
use crate::time::Moment;

/// A claim that waits here learns within a third of this time that the engine fails.
pub(crate) const REACH: Duration = Duration::from_secs(30);
/// How many names that nobody claims stay in the table at most, because a name is often claimed again.
const IDLE: usize = 64;

/// The queues of one engine, for all clients of the process.
pub(crate) struct Queues {
    most: u32,
    all: Mutex<HashMap<Name, Queue, foldhash::fast::RandomState>>,
}

/// The claims of one name.
#[derive(Default)]
struct Queue {
    /// The number of the last claim that was queued.
    last: u64,
    /// The claims that wait here, in the order of their calls.
    waiting: BTreeMap<u64, Option<Waker>>,
    /// How many claims are at the engine and do not hold.
    inside: u32,
    /// How many of those have had no answer yet, of the claims that are sent alone.
    entering_alone: u32,
    /// The same, of the claims that are sent together.
    entering_together: u32,
    /// How many of the claims that are sent alone have waited here.
    resumed: u32,
}

impl Queues {
    pub(crate) fn new(most: u32) -> Queues {
        Queues { most, all: Mutex::default() }
    }

    /// Runs `work` on the queue of `name`. Then admits the first claim that waits, if the engine may be asked for it.
    fn on<T>(&self, name: &Name, work: impl FnOnce(&mut Queue) -> T) -> T {
        let mut all = self.all.lock();
        if !all.contains_key(name) {
            all.insert(name.clone(), Queue::default());
        }
        let Some(queue) = all.get_mut(name) else { unreachable!("it was inserted") };
        let result = work(queue);
        let mut woken = None;
        // No claim behind the first one is admitted with it, because the one that reached the engine earlier would be granted earlier.
        if !queue.waiting.is_empty() && queue.has_room(true, self.most) {
            queue.enter(true);
            queue.resumed += 1;
            woken = queue.waiting.pop_first().and_then(|(_, waker)| waker);
        }
        if queue.waiting.is_empty() && queue.inside == 0 && all.len() > IDLE {
            all.remove(name);
        }
        drop(all);
        woken.into_iter().for_each(Waker::wake);
        result
    }
}

impl Queue {
    fn has_room(&self, alone: bool, most: u32) -> bool {
        self.inside < most && self.entering_alone == 0 && (!alone || self.entering_together == 0)
    }

    /// Returns whether a claim is queued here, or was queued here and has no answer of the engine yet.
    fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty() || self.resumed > 0
    }

    fn enter(&mut self, alone: bool) {
        self.inside += 1;
        *self.entering(alone) += 1;
    }

    /// How many claims have had no answer yet, of those that are sent `alone` or of the others.
    fn entering(&mut self, alone: bool) -> &mut u32 {
        if alone { &mut self.entering_alone } else { &mut self.entering_together }
    }
}

/// Where a claim is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// It has not asked yet, or was refused.
    Outside,
    /// Queued in this process under this number. It may have been admitted already without having noticed.
    Waiting(u64),
    /// Its request to the engine is under way, alone or beside those of other claims.
    Entering { alone: bool },
    /// Its request is under way alone, after it was queued here.
    Resumed,
    /// Queued at the engine.
    Inside,
    /// It is not counted: it holds, has left, or does not join the queue.
    Through,
}

/// A claim's turn here. It is dropped when nothing of the claim is at the engine any more, and its drop leaves the queue.
pub(crate) struct LocalTurn {
    claim: Arc<Claim>,
    queues: Arc<Queues>,
    /// Renews the claims that wait here.
    session: Arc<dyn Session>,
    at: At,
}

impl LocalTurn {
    pub(crate) fn new(claim: Arc<Claim>, queues: &Arc<Queues>, session: Arc<dyn Session>) -> LocalTurn {
        LocalTurn { claim, queues: Arc::clone(queues), session, at: At::Outside }
    }

    pub(super) fn waits(&self) -> bool {
        matches!(self.at, At::Waiting(_))
    }

    /// Returns what keeps the claim alive while it waits here.
    pub(super) fn session(&self) -> Option<Arc<dyn Session>> {
        self.waits().then(|| Arc::clone(&self.session))
    }

    /// Schedules its first renewal, because it was blocked here. Later ones are scheduled by the session: the engine was not asked, and a
    /// renewal that is due may be failing.
    pub(super) fn blocked(&self) {
        let first = self.claim.runtime.clock().now() + self.claim.ttl().min(REACH) / 3;
        self.claim.validity.reschedule(Moment::NEVER, first);
    }

    /// Is ready when the engine may be asked for the claim. `None`: the claim does not wait here.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Option<Poll<()>> {
        let At::Waiting(number) = self.at else { return None };
        Some(self.on(|queue| match queue.waiting.get_mut(&number) {
            Some(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        }))
    }

    fn exclusive(&self) -> bool {
        self.claim.want().mode == Mode::Exclusive
    }

    fn on<T>(&self, work: impl FnOnce(&mut Queue) -> T) -> T {
        self.queues.on(&self.claim.want().name, work)
    }

    /// Queues the claim if it has to wait here. Returns whether the engine may be asked for it.
    pub(super) fn pass(&mut self) -> bool {
        let (exclusive, join, most) = (self.exclusive(), self.claim.waits, self.queues.most);
        let at = self.at;
        self.at = self.on(|queue| match at {
            At::Outside if !join && !queue.is_waited_for() && queue.inside < most => At::Through,
            At::Outside if !join => At::Outside,
            At::Outside if queue.waiting.is_empty() && queue.has_room(exclusive, most) => {
                queue.enter(exclusive);
                At::Entering { alone: exclusive }
            }
            At::Outside => {
                queue.last += 1;
                queue.waiting.insert(queue.last, None);
                At::Waiting(queue.last)
            }
            At::Waiting(number) if !queue.waiting.contains_key(&number) => At::Resumed,
            at => at,
        });
        if self.waits() {
            self.claim.set_waited();
        }
        !matches!(self.at, At::Outside | At::Waiting(_))
    }

    /// Notes that the engine has answered, or that nobody needs its answer any more, so that the next claim may be sent.
    pub(super) fn answered(&mut self) {
        let (alone, resumed) = match self.at {
            At::Entering { alone } => (alone, 0),
            At::Resumed => (true, 1),
            _ => return,
        };
        self.on(|queue| {
            *queue.entering(alone) -= 1;
            queue.resumed -= resumed;
        });
        self.at = At::Inside;
    }

    /// Takes the claim out of the counts, because it holds, is gone, or leaves.
    pub(super) fn leave(&mut self) {
        if let At::Waiting(number) = self.at {
            let waited = self.on(|queue| queue.waiting.remove(&number).is_some());
            self.at = if waited { At::Through } else { At::Resumed };
        }
        self.answered();
        if self.at == At::Inside {
            self.on(|queue| queue.inside -= 1);
            self.at = At::Through;
        }
    }

    pub(super) fn hear(&mut self, answer: &Result<Attempt>) {
        match answer {
            Ok(Attempt::Granted(_) | Attempt::Gone) => self.leave(),
            Ok(Attempt::Blocked { .. }) => self.answered(),
            // After an error the claim stays the first one here until it was asked for again.
            Err(_) => {}
        }
    }
}

impl Drop for LocalTurn {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests;
