//! The state of a claim of this client.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use fencepost_core::{Claim, ClaimRecord, Loss, Validity, Waiter};
use tokio::sync::Mutex;

use crate::keys::{self, KeyId};
use crate::lease::Lease;

/// A claim from its first request to its end, as its entry, its lease and the watch share it.
pub(crate) struct ClaimState {
    pub(crate) claim: Arc<Claim>,
    pub(crate) number: u64,
    /// The prefix of the keys in the lock's queue.
    pub(crate) queue: Vec<u8>,
    key: OnceLock<ClaimKey>,
    inner: Waiter<Inner>,
    /// A request that creates the key may still arrive.
    pub(crate) create_unanswered: AtomicBool,
    /// The key may exist, or a request that creates or deletes it may still arrive, so no other claim may use its number.
    pub(crate) key_used: AtomicBool,
    /// The key is being detached, or was. No request that keeps the lock moves it any more.
    pub(crate) detaching: AtomicBool,
    /// Held by the request that moves the key to another lease, because two of them could undo each other.
    pub(crate) lease_changes: Mutex<()>,
    /// Its key has a watch of its own.
    pub(crate) key_watched: AtomicBool,
}

struct ClaimKey {
    /// The lease under which the key was created.
    lease: Arc<Lease>,
    key: Vec<u8>,
    value: Vec<u8>,
    /// The create revision of a key that was taken over. `None`: this client chose the name, and no other claim has it.
    taken_over: Option<i64>,
}

struct Inner {
    phase: Phase,
    /// The key's lease.
    lease: Option<Arc<Lease>>,
    /// The revision at which the key moved to that lease; 0: at its creation.
    moved_at: i64,
    /// Leases of requests to move the key that had no reply since then. They may have taken effect, or may do so yet.
    tried: Vec<Arc<Lease>>,
    /// The create revision of the key that was evicted; 0: none. The note of an eviction may arrive before the reply to the creation.
    evicted: i64,
    /// The operator who evicted the claim, and the reason.
    evicted_by: Option<Arc<str>>,
}

/// The phase of a claim. The number is its key's create revision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// It has no key, as far as is known.
    New,
    Queued(i64),
    /// At the front of the queue; its entry does not know that yet.
    Granted(i64),
    /// Its entry has confirmed the grant.
    Holding(i64),
    /// Its key or its lease is gone.
    Gone,
}

impl Phase {
    /// Returns the key's create revision, if it is known.
    pub(crate) fn revision(self) -> Option<i64> {
        match self {
            Phase::Queued(revision) | Phase::Granted(revision) | Phase::Holding(revision) => Some(revision),
            Phase::New | Phase::Gone => None,
        }
    }
}

impl ClaimState {
    pub(crate) fn new(claim: Arc<Claim>, number: u64, queue: Vec<u8>) -> ClaimState {
        let inner = Inner {
            phase: Phase::New,
            lease: None,
            moved_at: 0,
            tried: Vec::new(),
            evicted: 0,
            evicted_by: None,
        };
        ClaimState {
            claim,
            number,
            queue,
            key: OnceLock::new(),
            inner: Waiter::new(inner),
            create_unanswered: AtomicBool::new(false),
            key_used: AtomicBool::new(false),
            detaching: AtomicBool::new(false),
            lease_changes: Mutex::default(),
            key_watched: AtomicBool::new(false),
        }
    }

    /// Chooses the lease under which the key is created, unless that is done already. Returns the lease and the key.
    pub(crate) fn choose_key(&self, lease: Arc<Lease>) -> (&Arc<Lease>, &[u8]) {
        let chosen = self.key.get_or_init(|| {
            self.inner.with(|inner| inner.lease = Some(Arc::clone(&lease)));
            let key = keys::key(&self.queue, (lease.id, self.number));
            let value = ClaimRecord::of(&self.claim).to_bytes();
            ClaimKey { lease, key, value, taken_over: None }
        });
        (&chosen.lease, &chosen.key)
    }

    /// Takes over a key that another client created at the revision `created`, and that has this lease since the revision `at`.
    pub(crate) fn take_over(
        &self,
        lease: Arc<Lease>,
        (key, created): (Vec<u8>, i64),
        value: Vec<u8>,
        at: i64,
    ) {
        self.set_lease(Arc::clone(&lease), at);
        let _ = self.key.set(ClaimKey { lease, key, value, taken_over: Some(created) });
    }

    /// Returns the lease under which the key was created, once it is chosen.
    pub(crate) fn first_lease(&self) -> Option<&Arc<Lease>> {
        self.key.get().map(|key| &key.lease)
    }

    /// Returns the key, once a request for it may have been sent.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.key.get().map(|key| &*key.key)
    }

    /// Returns the create revision of a key that was taken over. `None`: this client chose the name, and no other claim has it.
    pub(crate) fn taken_over(&self) -> Option<i64> {
        self.key.get().and_then(|key| key.taken_over)
    }

    /// Returns the end of the key that tells it from all others.
    pub(crate) fn key_id(&self) -> Option<KeyId> {
        self.key().and_then(keys::id)
    }

    /// Returns the key's value.
    pub(crate) fn value(&self) -> Vec<u8> {
        self.key.get().map(|key| key.value.clone()).unwrap_or_default()
    }

    pub(crate) fn phase(&self) -> Phase {
        self.inner.with(|inner| inner.phase)
    }

    /// Returns the key's lease.
    pub(crate) fn lease(&self) -> Option<Arc<Lease>> {
        self.inner.with(|inner| inner.lease.clone())
    }

    /// Returns the revision at which the key moved to its lease; 0: at its creation.
    pub(crate) fn moved_at(&self) -> i64 {
        self.inner.with(|inner| inner.moved_at)
    }

    /// Returns whether the key certainly has this lease, which is the one that is noted here. Otherwise a request whose reply was lost, or a
    /// program that has the text of the claim's lease, may have moved it.
    pub(crate) fn certainly_has(&self, lease: &Lease) -> bool {
        let is_certain = |inner: &mut Inner| {
            inner.tried.is_empty() && inner.lease.as_ref().is_some_and(|own| own.id == lease.id)
        };
        !self.claim.is_lease_given() && self.inner.with(is_certain)
    }

    /// Returns whether the key has a lease that this client does not renew once the claim has ended. Another program may have moved the key.
    pub(crate) fn ends_by_itself(&self) -> bool {
        self.inner
            .with(|inner| inner.tried.is_empty() && inner.lease.as_ref().is_some_and(|lease| lease.dedicated))
    }

    /// Notes that a request may move the key to this lease.
    pub(crate) fn try_lease(&self, lease: &Arc<Lease>) {
        self.inner.with(|inner| {
            if inner.tried.iter().all(|tried| tried.id != lease.id) {
                inner.tried.push(Arc::clone(lease));
            }
        });
    }

    /// Returns whether a request of this claim may have given the key this lease.
    pub(crate) fn may_have_given(&self, lease: i64) -> bool {
        let is_it = |own: &Arc<Lease>| own.id == lease;
        self.first_lease().is_some_and(is_it)
            || self.inner.with(|inner| inner.lease.iter().chain(&inner.tried).any(is_it))
    }

    /// Returns the leases that requests of this claim may have given the key.
    pub(crate) fn own_leases(&self) -> Vec<Arc<Lease>> {
        let first = self.first_lease().cloned();
        let later =
            self.inner.with(|inner| inner.lease.iter().chain(&inner.tried).cloned().collect::<Vec<_>>());
        first.into_iter().chain(later).collect()
    }

    /// Notes that the key certainly has this lease since the revision `at`. Returns the lease before, if that was another one.
    pub(crate) fn set_lease(&self, lease: Arc<Lease>, at: i64) -> Option<Arc<Lease>> {
        let id = lease.id;
        let before = self.inner.with(|inner| {
            inner.moved_at = at;
            inner.tried = Vec::new();
            inner.lease.replace(lease)
        });
        before.filter(|before| before.id != id)
    }

    /// Changes the phase and wakes the entry. `Gone` is final.
    pub(crate) fn set_phase(&self, phase: Phase) {
        self.inner.tell(|inner| {
            if inner.phase != Phase::Gone {
                inner.phase = phase;
            }
        });
    }

    /// Ends the claim because its lease or its key is gone.
    pub(crate) fn lose(&self, why: Loss) {
        self.lost(|validity| validity.end(why));
    }

    /// Ends the claim with a detail for the error.
    pub(crate) fn lose_with(&self, why: Loss, detail: String) {
        self.lost(|validity| validity.end_with(why, detail));
    }

    fn lost(&self, end: impl FnOnce(&Validity)) {
        if self.claim.is_leaving() {
            return;
        }
        // In one step: either the entry confirms the grant before this, or it does not confirm it.
        let before = self.inner.tell(|inner| std::mem::replace(&mut inner.phase, Phase::Gone));
        if let Phase::Holding(_) = before {
            end(&self.claim.validity);
        }
    }

    /// Notes that the claim whose key was created at `revision` is evicted. Returns whether that is this claim. If the create revision is not
    /// known yet, [`is_evicted`](ClaimState::is_evicted) returns it later.
    pub(crate) fn note_eviction(&self, revision: i64, by: &str) -> bool {
        self.inner.with(|inner| {
            if revision > inner.evicted {
                (inner.evicted, inner.evicted_by) = (revision, Some(by.into()));
            }
            inner.phase.revision() == Some(revision)
        })
    }

    /// Returns the operator who evicted the claim, and the reason.
    pub(crate) fn evicted_by(&self) -> Arc<str> {
        self.inner.with(|inner| inner.evicted_by.clone()).unwrap_or_default()
    }

    pub(crate) fn is_evicted(&self) -> bool {
        self.inner.with(|inner| inner.evicted > 0 && inner.phase.revision() == Some(inner.evicted))
    }

    /// Returns whether the number must not be used for another claim.
    pub(crate) fn is_number_used(&self) -> bool {
        self.key_used.load(Relaxed) || self.create_unanswered.load(Relaxed)
    }

    /// Completes when another attempt may bring news.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        self.inner.poll(cx, |inner| !matches!(inner.phase, Phase::Queued(_)))
    }
}
