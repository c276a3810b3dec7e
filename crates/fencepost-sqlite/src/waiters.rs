//! The claims of this client, as its messages and its rounds of renewal see them.

use std::sync::Arc;
use std::task::{Context, Poll};

use fencepost_core::sync::Mutex;
use fencepost_core::{Claim, ClaimId, Loss, Waiter, Waiters};

type Id = [u8; 16];

/// A claim from its entry's start to its end.
pub(crate) struct TrackedClaim {
    pub(crate) claim: Arc<Claim>,
    waiter: Waiter<State>,
}

#[derive(Default)]
struct State {
    /// It is worth asking again. Cleared before the question is sent.
    woken: bool,
    /// The watch on a file has woken it: the file's lock may fall a moment later.
    file_closed: bool,
    /// Only holders were before it when it last asked.
    first: bool,
    /// Rounds of renewal while it waited.
    rounds: u32,
}

impl AsRef<Claim> for TrackedClaim {
    fn as_ref(&self) -> &Claim {
        &self.claim
    }
}

impl TrackedClaim {
    pub(crate) fn new(claim: Arc<Claim>) -> TrackedClaim {
        TrackedClaim { claim, waiter: Waiter::default() }
    }

    pub(crate) fn id(&self) -> Id {
        self.claim.id.as_u128().to_be_bytes()
    }

    pub(crate) fn name(&self) -> &str {
        self.claim.want().name.as_str()
    }

    /// Counts a round of renewal while it waits. Returns whether the queue is to be read: always for the first waiter, else in each
    /// third round.
    pub(crate) fn is_poll_due(&self) -> bool {
        self.waiter.with(|state| {
            state.rounds += 1;
            state.first || state.rounds.is_multiple_of(3)
        })
    }

    pub(crate) fn set_first(&self, first: bool) {
        self.waiter.with(|state| state.first = first);
    }

    /// Tells the claim that it is worth asking again.
    pub(crate) fn wake(&self) {
        self.waiter.tell(|state| state.woken = true);
    }

    /// Tells the claim that a process before it has closed its heartbeat file.
    pub(crate) fn wake_file_closed(&self) {
        self.waiter.tell(|state| (state.woken, state.file_closed) = (true, true));
    }

    /// Ends the claim, which an operator has evicted. `by` names the operator and the reason.
    pub(crate) fn evict(&self, by: &str) {
        self.claim.validity.end_with(Loss::Evicted, by);
        self.wake();
    }

    /// Returns whether the watched file was closed since the last call.
    pub(crate) fn take_file_closed(&self) -> bool {
        self.waiter.with(|state| std::mem::take(&mut state.file_closed))
    }

    /// Starts a question, which answers every wake-up from before it.
    pub(crate) fn clear_woken(&self) {
        self.waiter.with(|state| state.woken = false);
    }

    pub(crate) fn poll_woken(&self, cx: &Context<'_>) -> Poll<()> {
        self.waiter.poll(cx, |state| std::mem::take(&mut state.woken))
    }
}

/// Claims that may share an id with others of the client. They are few.
#[derive(Default)]
pub(crate) struct SharedIds(Mutex<Vec<Arc<Claim>>>);

impl SharedIds {
    pub(crate) fn insert(&self, claim: &Arc<Claim>) {
        let mut claims = self.0.lock();
        if !claims.iter().any(|known| Arc::ptr_eq(known, claim)) {
            claims.push(Arc::clone(claim));
        }
    }

    pub(crate) fn remove(&self, claim: &Arc<Claim>) {
        self.0.lock().retain(|known| !Arc::ptr_eq(known, claim));
    }

    /// Returns the claims with this id.
    pub(crate) fn with_id(&self, id: ClaimId) -> Vec<Arc<Claim>> {
        self.0.lock().iter().filter(|claim| claim.id == id).cloned().collect()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Claim>> {
        self.0.lock().clone()
    }
}

/// Returns the claim with the id of a row or a message.
pub(crate) fn find(waiters: &Waiters<TrackedClaim>, id: &Id) -> Option<Arc<TrackedClaim>> {
    waiters.get(ClaimId::from_u128(u128::from_be_bytes(*id)))
}

/// Tells a claim that it is worth asking again.
pub(crate) fn wake(waiters: &Waiters<TrackedClaim>, id: &Id) {
    if let Some(waiter) = find(waiters, id) {
        waiter.wake();
    }
}
