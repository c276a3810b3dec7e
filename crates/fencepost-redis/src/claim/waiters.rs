//! The table of this client's waiters: a message finds its claim here.

use fencepost_core::sync::Mutex;
use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fencepost_core::{Claim, ClaimId, Moment, Name, Token};

use crate::claim::unanswered::UnansweredRequests;
use crate::script::queue::OLDEST;

/// So long the second of the refused leaves to the first.
const SPARE: Duration = Duration::from_millis(20);

/// The largest number of claims in one command: Lua takes no more than some thousands of values at once.
const MOST: usize = 1_024;

/// One claim of this client, from its first request until its entry is dropped.
pub(crate) struct TrackedClaim {
    pub(crate) claim: Arc<Claim>,
    /// By which connections its requests may still arrive.
    pub(crate) unanswered: UnansweredRequests,
    /// Most locks are granted at once, and those that are held are many: only who waits has one.
    state: Mutex<Option<Box<State>>>,
}

#[derive(Default)]
struct State {
    /// When the last request was sent that was answered "still waiting": what a handed grant counts from.
    anchor: Option<Moment>,
    /// The lock's last token at that request. News about a grant up to it is about one that has ended: it may lie in the
    /// socket of a process that was stopped, and be read when the claim stands in line again, with a fresh anchor.
    floor: Token,
    /// Its number in line, while it waits.
    number: Option<u64>,
    /// A grant that was handed to it, or found by a renewal, and not collected yet.
    pushed: Option<Pushed>,
    /// The server does not know it any more.
    gone: bool,
    /// It holds, and somebody else has asked for that: its release takes a script.
    asked_for: bool,
    /// A node of a quorum says that it is worth asking again.
    hinted: bool,
    /// How often it has asked a node of a quorum.
    asked: u32,
    waker: Option<Waker>,
}

/// A grant that came without being asked for.
#[derive(Clone, Copy)]
pub(crate) struct Pushed {
    pub(crate) token: Token,
    /// When it was confirmed by a request of ours, and for how long; `None`: it counts from the anchor.
    pub(crate) confirmed: Option<(Moment, Duration)>,
}

/// The result of [`TrackedClaim::collect`].
pub(crate) enum Collected {
    Nothing,
    Gone,
    Grant { pushed: Pushed, anchor: Option<Moment> },
}

impl TrackedClaim {
    fn state(&self) -> MutexGuard<'_, Option<Box<State>>> {
        self.state.lock()
    }

    fn wake(&self, change: impl FnOnce(&mut State)) {
        let waker = {
            let mut state = self.state();
            let state = state.get_or_insert_default();
            change(state);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// A grant came. A confirmed one is not replaced by a message that was late.
    pub(crate) fn push(&self, pushed: Pushed) {
        self.wake(|state| {
            let newer = |known: Pushed| known.confirmed.is_none() || pushed.token > known.token;
            if pushed.token > state.floor && state.pushed.is_none_or(newer) {
                state.pushed = Some(pushed);
            }
        });
    }

    /// The server does not know it any more.
    pub(crate) fn end(&self) {
        self.wake(|state| state.gone = true);
    }

    /// Somebody else has asked for what it holds.
    pub(crate) fn ask_for(&self) {
        self.state().get_or_insert_default().asked_for = true;
    }

    /// Is it known that somebody else has asked for what it holds?
    pub(crate) fn is_asked_for(&self) -> bool {
        self.state().as_ref().is_some_and(|state| state.asked_for)
    }

    /// A node of a quorum says that it is worth asking again.
    pub(crate) fn hint(&self) {
        self.wake(|state| state.hinted = true);
    }

    /// The same in a while, unless it has asked by then.
    pub(crate) fn hint_later(self: &Arc<Self>) {
        let (tracked, asked) = (Arc::clone(self), self.asked());
        self.claim.runtime.spawn(async move {
            let clock = tracked.claim.runtime.clock();
            clock.sleep_until(clock.now() + SPARE).await;
            if tracked.asked() == asked {
                tracked.hint();
            }
        });
    }

    fn asked(&self) -> u32 {
        self.state().as_ref().map_or(0, |state| state.asked)
    }

    /// It asks again, whatever it was told before.
    pub(crate) fn begin_request(&self) {
        let mut state = self.state();
        let state = state.get_or_insert_default();
        state.hinted = false;
        state.asked += 1;
    }

    /// Ready when there is something to collect, or to ask.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        let state = state.get_or_insert_default();
        if state.pushed.is_some() || state.gone || state.hinted {
            return Poll::Ready(());
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    pub(crate) fn collect(&self) -> Collected {
        let state = self.state();
        let Some(state) = &*state else { return Collected::Nothing };
        match state.pushed {
            _ if state.gone => Collected::Gone,
            Some(pushed) => Collected::Grant { pushed, anchor: state.anchor },
            None => Collected::Nothing,
        }
    }

    /// A request sent at `sent` was answered "still waiting" when the lock's last token was `last`.
    fn anchor(&self, (sent, last): (Moment, Token)) {
        let mut state = self.state();
        let state = state.get_or_insert_default();
        state.anchor = Some(state.anchor.map_or(sent, |known| known.max(sent)));
        state.floor = state.floor.max(last);
        state.pushed = state.pushed.filter(|pushed| pushed.token > last);
    }

    fn waits(&self) -> bool {
        let state = self.state();
        let Some(state) = &*state else { return false };
        state.number.is_some() && state.pushed.is_none() && !state.gone
    }
}

type Shard = HashSet<ById, BuildHasherDefault<IdHasher>>;

/// A claim, found by its id.
struct ById(Arc<TrackedClaim>);

impl Borrow<ClaimId> for ById {
    fn borrow(&self) -> &ClaimId {
        &self.0.claim.id
    }
}

impl Hash for ById {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.claim.id.hash(hasher);
    }
}

impl PartialEq for ById {
    fn eq(&self, other: &ById) -> bool {
        self.0.claim.id == other.0.claim.id
    }
}

impl Eq for ById {}

/// Our own ids are as good as random; all that is left is to spread them over the whole hash.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u128(u128::from(*byte)));
    }

    fn write_u128(&mut self, id: u128) {
        self.0 = (self.0 ^ (id ^ (id >> 64)) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// The claims of a client, and its own part of each line.
#[derive(Default)]
pub(crate) struct TrackedClaims {
    all: [Mutex<Shard>; 16],
    queues: Mutex<HashMap<Name, Queue>>,
}

/// Where this client waits for one lock.
struct Queue {
    /// In the order of the server's line. The claims that are handed the lock are always a front part of it: the rule of admission
    /// lets nobody overtake, and a claim is passed over with its whole process.
    waiting: BTreeMap<u64, Arc<TrackedClaim>>,
    /// When this client's part of the queue is to be renewed.
    due: Moment,
    /// How many of the oldest are asked about then: more and more, while the server knows none of them.
    ask: usize,
}

impl TrackedClaims {
    fn shard(&self, id: ClaimId) -> MutexGuard<'_, Shard> {
        let bits = id.as_u128();
        let shard = (bits ^ (bits >> 64)) as usize % self.all.len();
        self.all[shard].lock()
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<Name, Queue>> {
        self.queues.lock()
    }

    /// Before the first request: a message may be quicker than its answer.
    pub(crate) fn add(&self, claim: &Arc<Claim>) -> Arc<TrackedClaim> {
        let tracked = Arc::new(TrackedClaim {
            claim: Arc::clone(claim),
            unanswered: UnansweredRequests::default(),
            state: Mutex::default(),
        });
        self.shard(claim.id).insert(ById(Arc::clone(&tracked)));
        tracked
    }

    pub(crate) fn get(&self, id: ClaimId) -> Option<Arc<TrackedClaim>> {
        self.shard(id).get(&id).map(|tracked| Arc::clone(&tracked.0))
    }

    /// Its entry is gone.
    pub(crate) fn remove(&self, tracked: &TrackedClaim) {
        self.leave(tracked);
        self.shard(tracked.claim.id).remove(&tracked.claim.id);
    }

    /// The server answered a request (when it was sent, and the lock's last token) that it waits, under this number, and that
    /// the line is to be asked again at `due`. Returns when that will be.
    pub(crate) fn stand(
        &self,
        tracked: &Arc<TrackedClaim>,
        answered: (Moment, Token),
        number: u64,
        due: Moment,
    ) -> Moment {
        // It may have stood there under another number before.
        self.leave(tracked);
        tracked.anchor(answered);
        tracked.state().get_or_insert_default().number = Some(number);
        let mut queues = self.queues();
        let queue = queues.entry(tracked.claim.want().name.clone());
        let queue = queue.or_insert_with(|| Queue { waiting: BTreeMap::new(), due, ask: OLDEST });
        let before = queue.waiting.insert(number, Arc::clone(tracked));
        queue.due = queue.due.min(due);
        let due = queue.due;
        drop(queues);
        // The queue lost its data and counts from the start again: the waiter that had this number has to ask.
        if let Some(before) = before.filter(|before| !Arc::ptr_eq(before, tracked)) {
            before.hint();
        }
        due
    }

    /// It holds the lock.
    pub(crate) fn hold(&self, tracked: &TrackedClaim) {
        self.leave(tracked);
        *tracked.state() = None;
    }

    /// It waits no more.
    pub(crate) fn leave(&self, tracked: &TrackedClaim) {
        let Some(number) = tracked.state().as_mut().and_then(|state| state.number.take()) else { return };
        let mut queues = self.queues();
        if let Some(queue) = queues.get_mut(&tracked.claim.want().name) {
            // Another one may stand under it by now.
            if queue.waiting.get(&number).is_some_and(|own| std::ptr::eq(Arc::as_ptr(own), tracked)) {
                queue.waiting.remove(&number);
            }
            if queue.waiting.is_empty() {
                queues.remove(&tracked.claim.want().name);
            }
        }
    }

    /// Returns the oldest claims in the queue of `name` if they are to be renewed by `now`, or else the time when they are.
    pub(crate) fn oldest(&self, name: &Name, now: Moment) -> Result<Vec<Arc<TrackedClaim>>, Moment> {
        let mut queues = self.queues();
        let Some(queue) = queues.get_mut(name) else { return Ok(Vec::new()) };
        if now < queue.due {
            return Err(queue.due);
        }
        // Until the answer is there nobody else asks.
        queue.due = now + crate::script::queue::BEAT;
        let waiting = queue.waiting.values().filter(|tracked| tracked.waits());
        Ok(waiting.take(queue.ask).cloned().collect())
    }

    /// A renewal sent at `sent` found that `first` (its number, and the lock's last token) still waits: so do all behind it, unless
    /// some of those asked for are `gone`. Sets when the line is asked again, and about how many: the rest of a line that was lost with
    /// the server's data is to be known soon, however long it was.
    pub(crate) fn anchored(
        &self,
        name: &Name,
        (first, gone): (Option<(u64, Token)>, bool),
        sent: Moment,
        due: Moment,
    ) {
        let mut queues = self.queues();
        let Some(queue) = queues.get_mut(name) else { return };
        queue.due = due;
        queue.ask = if first.is_some() && !gone { OLDEST } else { (queue.ask * 4).min(MOST) };
        if let Some((first, last)) = first {
            queue.waiting.range(first..).for_each(|(_, tracked)| tracked.anchor((sent, last)));
        }
        for tracked in queue.waiting.values() {
            if !tracked.claim.validity.is_confirmed() {
                tracked.claim.validity.waiting(due, Duration::ZERO);
            }
        }
    }

    /// Asking about this line has failed: who comes next is to find that out too, and not take it for renewed.
    pub(crate) fn unanswered(&self, name: &Name) {
        if let Some(queue) = self.queues().get_mut(name) {
            queue.due = Moment::ZERO;
        }
    }

    /// The number under which it waits.
    pub(crate) fn number(&self, tracked: &TrackedClaim) -> Option<u64> {
        tracked.state().as_ref()?.number
    }

    /// Every lock that this client waits for is to be asked about now.
    pub(crate) fn all_due(&self) -> Vec<Arc<Claim>> {
        let mut queues = self.queues();
        let ask = queues.values_mut().filter_map(|queue| {
            queue.due = Moment::ZERO;
            queue.waiting.values().next().map(|tracked| Arc::clone(&tracked.claim))
        });
        ask.collect()
    }
}

#[cfg(test)]
mod tests;
