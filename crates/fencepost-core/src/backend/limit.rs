//! A limit on how many claims of a process wait at the engine for one name.

use crate::sync::Mutex;
use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::backend::admission::Mode;
use crate::backend::capabilities::Capabilities;
use crate::backend::claim::Claim;
use crate::backend::{Attempt, Backend, Operator, Removed, Reply, Session};
use crate::entry::Entry;
use crate::entry::place::{How, Leave, Left, Place, Request, Turn};
use crate::error::{Error, Result};
use crate::name::Name;

/// A claim that waits here learns within a third of that time that the engine fails.
const REACH: Duration = Duration::from_secs(30);
/// At most `IDLE` names that nobody claims are kept.
const IDLE: usize = 64;

/// A layer for engines whose queue gets slow or large: at most `most` claims of this process wait at the engine for one name. The others
/// wait here, in the order of their calls. Each costs the engine nothing, and a step costs the same whatever their number.
///
/// An exclusive claim is sent when those before it have been answered, so that the engine has them in the order of their calls. So is a
/// claim that has waited here. Claims that can hold together and find nobody waiting here are sent together. A claim that does not
/// [wait](Claim::waits) is refused while others wait here. A claim that is [unfair](Claim::unfair) passes those that wait at the engine. It
/// passes none of those that wait here: it has not reached the engine, and waits behind them.
pub struct Limit {
    inner: Arc<dyn Backend>,
    queues: Arc<Queues>,
    waits: Arc<Waits>,
}

/// The queues of one engine, for all clients of the process.
struct Queues {
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

impl Limit {
    /// A limit before `inner`. Clients of this process with the same `engine`, a name of the caller's choice, share it.
    pub fn new(inner: Arc<dyn Backend>, most: u32, engine: &str) -> Limit {
        static SHARED: OnceLock<Mutex<HashMap<String, Weak<Queues>>>> = OnceLock::new();
        let mut shared = SHARED.get_or_init(Mutex::default).lock();
        shared.retain(|_, queues| queues.strong_count() > 0);
        let known = shared.get(engine).and_then(Weak::upgrade);
        let queues = known.unwrap_or_else(|| {
            let queues = Arc::new(Queues { most, all: Mutex::default() });
            shared.insert(engine.to_owned(), Arc::downgrade(&queues));
            queues
        });
        let waits = Arc::new(Waits { inner: Arc::clone(&inner) });
        Limit { inner, queues, waits }
    }
}

impl Queues {
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

    /// Does a claim wait in the queue that the engine has not answered?
    fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty() || self.resumed > 0
    }

    fn enter(&mut self, alone: bool) {
        self.inside += 1;
        self.entering[usize::from(!alone)] += 1;
    }
}

impl Backend for Limit {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let inner = Arc::clone(&self.inner).entry(Arc::clone(&claim), how);
        if how == How::Attach {
            return inner;
        }
        let (queues, waits) = (Arc::clone(&self.queues), Arc::clone(&self.waits));
        let turn = LimitTurn { claim: Arc::clone(&claim), queues, at: At::Outside };
        Entry::new(claim, how, LimitPlace { turn, waits, inner })
    }

    fn operator(&self) -> &dyn Operator {
        self.inner.operator()
    }

    fn reach(&self) -> Reply<'_, Result<()>> {
        self.inner.reach()
    }

    fn leave_caller_runtime(&self) {
        self.inner.leave_caller_runtime();
    }

    fn close(&self) -> Reply<'_, ()> {
        self.inner.close()
    }
}

/// Where a claim is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// It has not asked.
    Outside,
    /// It waits here under this number, or was let in and does not know it.
    Waiting(u64),
    /// It asks the engine, alone or with others. Claims that are sent alone wait for the answer.
    Entering { alone: bool },
    /// The same alone, after it has waited here.
    Resumed,
    /// It waits at the engine.
    Inside,
    /// It is not counted: it holds, has left, or does not join the queue.
    Through,
}

/// A claim's turn here. Its drop leaves the queue: it is dropped when the engine has nothing of the claim any more.
struct LimitTurn {
    claim: Arc<Claim>,
    queues: Arc<Queues>,
    at: At,
}

impl LimitTurn {
    fn exclusive(&self) -> bool {
        self.claim.want().mode == Mode::Exclusive
    }

    fn on<T>(&self, work: impl FnOnce(&mut Queue) -> T) -> T {
        self.queues.on(&self.claim.want().name, work)
    }

    /// Returns whether it may ask the engine.
    fn pass(&mut self) -> bool {
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
        !matches!(self.at, At::Outside | At::Waiting(_))
    }

    /// The engine has answered, or it does not matter any more what it answers.
    fn answered(&mut self) {
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

    /// It waits no more.
    fn leave(&mut self) {
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

    fn hear(&mut self, answer: &Result<Attempt>) {
        match answer {
            Ok(Attempt::Granted(_) | Attempt::Gone) => self.leave(),
            Ok(Attempt::Blocked { .. }) => self.answered(),
            // Asked again, it keeps its place.
            Err(_) => {}
        }
    }
}

impl Drop for LimitTurn {
    fn drop(&mut self) {
        self.leave();
    }
}

struct LimitPlace {
    turn: LimitTurn,
    waits: Arc<Waits>,
    inner: Entry,
}

impl Place for LimitPlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        let claim = &self.turn.claim;
        let (now, ttl) = (claim.runtime.clock().now(), claim.ttl().min(REACH));
        if !self.turn.pass() {
            self.turn.claim.validity.waiting(now, ttl);
            return Request::ready(Ok(Attempt::Blocked { again: None }));
        }
        let (turn, request) = (&mut self.turn, self.inner.ask());
        match request {
            request if turn.at == At::Through => request,
            Request::Ready(answer) => {
                turn.hear(&answer);
                Request::Ready(answer)
            }
            coming => Request::drops(async move {
                let answer = coming.await;
                turn.hear(&answer);
                answer
            }),
        }
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let At::Waiting(number) = self.turn.at else { return self.inner.poll_news(cx) };
        self.turn.on(|queue| match queue.waiting.get_mut(&number) {
            Some(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        })
    }

    fn leave(&mut self, how: Leave, again: bool) -> Request<'_, Left> {
        if let At::Waiting(_) = self.turn.at {
            self.turn.leave();
            return Request::ready(Ok(Removed::Withdrawn.into()));
        }
        // Those behind it need not wait for the answer.
        self.turn.answered();
        self.inner.leave(how, again)
    }

    fn session(&self, holds: bool) -> Option<Arc<dyn Session>> {
        match self.turn.at {
            At::Waiting(_) => Some(Arc::<Waits>::clone(&self.waits)),
            _ => self.inner.session(holds),
        }
    }

    fn turn(&mut self, to: Turn) -> Request<'_, Attempt> {
        self.inner.turn(to)
    }

    fn abandon(&mut self, asking: bool) {
        self.inner.abandon(asking);
    }

    fn why_silent(&self) -> Option<Error> {
        self.inner.why_silent()
    }

    fn native(&mut self) -> Option<&mut (dyn Any + Send)> {
        self.inner.native()
    }
}

/// Claims that wait here: they are told when the engine fails, as those that wait there are.
struct Waits {
    inner: Arc<dyn Backend>,
}

impl Session for Waits {
    fn id(&self) -> u64 {
        std::ptr::from_ref(self).addr() as u64
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        Reply::coming(async move {
            let Some(first) = due.first() else { return Ok(()) };
            let sent = first.runtime.clock().now();
            self.inner.reach().await?;
            // One that holds by now is renewed by its engine.
            for claim in due.iter().filter(|claim| !claim.validity.is_confirmed()) {
                claim.validity.waiting(sent, claim.ttl().min(REACH));
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
