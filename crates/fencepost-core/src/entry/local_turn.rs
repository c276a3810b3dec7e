//! The turn of a claim among those of its process that want the same lock.

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

/// A claim that waits here learns within a third of that time that the engine fails.
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
    last: u64,
    /// In the order of their calls.
    waiting: BTreeMap<u64, Option<Waker>>,
    /// Claims at the engine that do not hold.
    inside: u32,
    /// Those of them that had no answer yet: claims that are sent alone, and others.
    entering: [u32; 2],
    /// Those of the first kind that have waited here.
    resumed: u32,
}

impl Queues {
    pub(crate) fn new(most: u32) -> Queues {
        Queues { most, all: Mutex::default() }
    }

    /// Runs `work` on the queue of `name`, then lets in the first claim if it may go.
    fn on<T>(&self, name: &Name, work: impl FnOnce(&mut Queue) -> T) -> T {
        let mut all = self.all.lock();
        if !all.contains_key(name) {
            all.insert(name.clone(), Queue::default());
        }
        let Some(queue) = all.get_mut(name) else { unreachable!("it was inserted") };
        let result = work(queue);
        let mut woken = None;
        // The first alone: a claim behind it that reached the engine earlier would be granted earlier.
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
        let [lone, together] = self.entering;
        self.inside < most && lone == 0 && (!alone || together == 0)
    }

    /// Returns whether a claim is queued here, or was queued here and has no answer of the engine yet.
    fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty() || self.resumed > 0
    }

    fn enter(&mut self, alone: bool) {
        self.inside += 1;
        self.entering[usize::from(!alone)] += 1;
    }
}

/// Where a claim is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// It has not asked.
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

/// A claim's turn here. Its drop leaves the queue: it is dropped when the engine has nothing of the claim any more.
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

    /// What keeps the claim alive while it waits here.
    pub(super) fn session(&self) -> Option<Arc<dyn Session>> {
        self.waits().then(|| Arc::clone(&self.session))
    }

    /// Schedules its next renewal, because it was blocked here.
    pub(super) fn blocked(&self) {
        self.claim.validity.waiting(self.claim.runtime.clock().now(), self.claim.ttl().min(REACH));
    }

    /// Is ready when it may ask the engine. `None`: it does not wait here.
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

    /// Returns whether it may ask the engine.
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

    /// Notes that the engine has answered, or that its answer does not matter any more, so that the next claim may be sent.
    pub(super) fn answered(&mut self) {
        let (alone, resumed) = match self.at {
            At::Entering { alone } => (alone, 0),
            At::Resumed => (true, 1),
            _ => return,
        };
        self.on(|queue| {
            queue.entering[usize::from(!alone)] -= 1;
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
            // It keeps its position until it has asked again.
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
