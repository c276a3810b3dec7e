//! The table of this client's waiters: a message finds its claim here.

use fencepost_core::sync::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::{Claim, ClaimId, Error, Loss, Moment, Name, Token, Waiter, Waiters};

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
    /// Most locks are granted at once, and many are held: only a claim that waits has a state.
    waiter: Waiter<Option<Box<State>>>,
}

#[derive(Default)]
struct State {
    /// When the last request was sent that was answered "still waiting": what a handed grant counts from.
    anchor: Option<Moment>,
    /// The lock's last token at that request. News about a grant up to it is about one that has ended: it may lie in the
    /// socket of a process that was stopped, and be read when the claim waits in the queue again, with a fresh anchor.
    floor: Token,
    /// Why its last request has no answer, as far as that is known.
    trouble: Option<Error>,
    /// Its number in the queue, while it waits.
    number: Option<u64>,
    /// A grant that was handed to it, or found by a renewal, and not collected yet.
    pushed: Option<Pushed>,
    /// When that came.
    pushed_at: Moment,
    /// The server does not know it any more.
    gone: bool,
    /// A node of a quorum says that it is worth asking again.
    hinted: bool,
    /// How often it has asked a node of a quorum.
    asked: u32,
}

/// A grant that came without being asked for.
#[derive(Clone, Copy)]
pub(crate) struct Pushed {
    pub(crate) token: Token,
    /// When it was confirmed by a request of ours, and for how long; `None`: it counts from the anchor.
    pub(crate) confirmed: Option<(Moment, Duration)>,
}

/// The result of [`TrackedClaim::collect`].
#[derive(Default)]
pub(crate) enum Collected {
    #[default]
    Nothing,
    Gone,
    Grant {
        pushed: Pushed,
        anchor: Option<Moment>,
    },
}

impl AsRef<Claim> for TrackedClaim {
    fn as_ref(&self) -> &Claim {
        &self.claim
    }
}

impl TrackedClaim {
    /// Looks at the state, if there is one.
    fn look<R: Default>(&self, look: impl FnOnce(&State) -> R) -> R {
        self.waiter.with(|state| state.as_deref().map(look).unwrap_or_default())
    }

    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        self.waiter.with(|state| change(state.get_or_insert_default()))
    }

    fn tell(&self, change: impl FnOnce(&mut State)) {
        self.waiter.tell(|state| change(state.get_or_insert_default()));
    }

    /// A grant came. A confirmed one is not replaced by a message that was late.
    pub(crate) fn push(&self, pushed: Pushed) {
        let now = self.claim.runtime.clock().now();
        self.tell(|state| {
            let newer = |known: Pushed| known.confirmed.is_none() || pushed.token > known.token;
            if pushed.token > state.floor && state.pushed.is_none_or(newer) {
                (state.pushed, state.pushed_at) = (Some(pushed), now);
            }
        });
    }

    /// The server does not know it any more.
    pub(crate) fn end(&self) {
        self.tell(|state| state.gone = true);
    }

    /// A node of a quorum says that it is worth asking again.
    pub(crate) fn hint(&self) {
        self.tell(|state| state.hinted = true);
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
        self.look(|state| state.asked)
    }

    /// It asks again, whatever it was told before.
    pub(crate) fn begin_request(&self) {
        self.change(|state| {
            state.hinted = false;
            state.asked += 1;
        });
    }

    /// Its request failed so, and is tried again.
    pub(crate) fn fails(&self, failure: &Error) {
        self.change(|state| state.trouble = Some(failure.clone()));
    }

    /// It asks again: an earlier failure says nothing about that.
    pub(crate) fn forget_trouble(&self) {
        self.waiter.with(|state| {
            if let Some(state) = state {
                state.trouble = None;
            }
        });
    }

    /// Returns why its last request has no answer, as far as that is known.
    pub(crate) fn trouble(&self) -> Option<Error> {
        self.look(|state| state.trouble.clone())
    }

    /// Ready when there is something to collect, or to ask.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        self.waiter.poll(cx, |state| {
            state.as_ref().is_some_and(|state| state.pushed.is_some() || state.gone || state.hinted)
        })
    }

    /// Ready when it is worth asking again. Late news about the grant does not count, because the claim holds it.
    pub(crate) fn poll_hint(&self, cx: &Context<'_>) -> Poll<()> {
        self.waiter.poll(cx, |state| state.as_ref().is_some_and(|state| state.hinted))
    }

    pub(crate) fn collect(&self) -> Collected {
        self.look(|state| match state.pushed {
            _ if state.gone => Collected::Gone,
            Some(pushed) => Collected::Grant { pushed, anchor: state.anchor },
            None => Collected::Nothing,
        })
    }

    /// A request sent at `sent` was answered "still waiting" when the lock's last token was `last`. So a grant that came before `sent` has
    /// ended. Its token may be above `last`: a server that lost data hands out tokens again.
    fn anchor(&self, (sent, last): (Moment, Token)) {
        self.change(|state| {
            state.anchor = Some(state.anchor.map_or(sent, |known| known.max(sent)));
            state.floor = state.floor.max(last);
            let came_later = state.pushed_at >= sent;
            state.pushed = state.pushed.filter(|pushed| came_later && pushed.token > last);
        });
    }

    fn waits(&self) -> bool {
        self.look(|state| state.number.is_some() && state.pushed.is_none() && !state.gone)
    }
}

/// The claims of a client, and its own part of each line.
#[derive(Default)]
pub(crate) struct TrackedClaims {
    all: Waiters<TrackedClaim>,
    /// The claims of guards that are attached to detached leases. All guards of one lease have its id. They are few.
    attached: Mutex<Vec<Arc<Claim>>>,
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
    fn queues(&self) -> MutexGuard<'_, HashMap<Name, Queue>> {
        self.queues.lock()
    }

    /// Before the first request: a message may be quicker than its answer.
    pub(crate) fn add(&self, claim: &Arc<Claim>) -> Arc<TrackedClaim> {
        self.all.insert(TrackedClaim {
            claim: Arc::clone(claim),
            unanswered: UnansweredRequests::default(),
            waiter: Waiter::default(),
        })
    }

    pub(crate) fn get(&self, id: ClaimId) -> Option<Arc<TrackedClaim>> {
        self.all.get(id)
    }

    /// Adds the claim of a guard that is attached to a lease, unless it was added before.
    pub(crate) fn attach(&self, claim: &Arc<Claim>) {
        let mut attached = self.attached.lock();
        if !attached.iter().any(|known| Arc::ptr_eq(known, claim)) {
            attached.push(Arc::clone(claim));
        }
    }

    /// Removes the claim of a guard that was attached to a lease.
    pub(crate) fn detach(&self, claim: &Arc<Claim>) {
        self.attached.lock().retain(|known| !Arc::ptr_eq(known, claim));
    }

    /// Ends all claims with this id, because an operator has evicted their grant. `by` says who did that and why.
    pub(crate) fn evict(&self, id: ClaimId, by: &str) {
        let mut evicted: Vec<_> =
            self.attached.lock().iter().filter(|claim| claim.id == id).cloned().collect();
        evicted.extend(self.get(id).map(|tracked| Arc::clone(&tracked.claim)));
        evicted.iter().for_each(|claim| claim.validity.end_with(Loss::Evicted, by));
    }

    /// Its entry is gone.
    pub(crate) fn remove(&self, tracked: &Arc<TrackedClaim>) {
        self.leave(tracked);
        self.all.remove(tracked);
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
        tracked.change(|state| state.number = Some(number));
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
        tracked.waiter.reset();
    }

    /// It waits no more.
    pub(crate) fn leave(&self, tracked: &TrackedClaim) {
        let number = tracked.waiter.with(|state| state.as_mut().and_then(|state| state.number.take()));
        let Some(number) = number else { return };
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

    /// Returns the oldest claims in the queue of `name`, and behind them the last one, if they are to be renewed by `now`, or else the time
    /// when they are. After a server has lost its data, new claims get numbers from 1 again, so that the last one is of those that it lost.
    pub(crate) fn oldest(&self, name: &Name, now: Moment) -> Result<Vec<Arc<TrackedClaim>>, Moment> {
        let mut queues = self.queues();
        let Some(queue) = queues.get_mut(name) else { return Ok(Vec::new()) };
        if now < queue.due {
            return Err(queue.due);
        }
        // Until the answer is there nobody else asks.
        queue.due = now + crate::script::queue::BEAT;
        let mut waiting = queue.waiting.values().filter(|tracked| tracked.waits());
        let mut asked: Vec<_> = waiting.by_ref().take(queue.ask).cloned().collect();
        asked.extend(waiting.next_back().cloned());
        Ok(asked)
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
        tracked.look(|state| state.number)
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
