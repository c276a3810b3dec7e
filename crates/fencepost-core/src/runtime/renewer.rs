//! The renewal of all claims of a client, holding and queued.

use crate::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::backend::claim::Claim;
use crate::backend::{Renewal, Session};
use crate::error::{Error, ErrorKind};
use crate::runtime::Runtime;
use crate::time::{DueKey, DueQueue, Moment};
use crate::validity::RenewalFailure;

/// The value of `Claim::scheduled` while a round is under way for the claim.
const IN_FLIGHT: u64 = u64::MAX;
/// A round also renews claims that are due within this time, or within a tenth of their lease if that is shorter.
const SLACK: Duration = Duration::from_secs(1);
/// Nothing is asked for again sooner.
const AT_ONCE: Duration = Duration::from_millis(20);

/// One per client: renews renewals at a third of their lease, batched by session, from an ordered map, never by a scan. One
/// task for all of it, one more for each round under way; a session that does not answer delays no other.
#[derive(Clone)]
pub(crate) struct Renewer(Arc<Shared>);

struct Shared {
    runtime: Runtime,
    state: Mutex<Renewals>,
}

/// How many renewals are put back while the lock is held.
const FEW: usize = 100;

/// Returns the claim's key. Two guards that are attached to one lease have claims with the same id, so its number identifies a claim.
fn key(due: Moment, claim: &Claim) -> DueKey {
    (due, claim.number)
}

/// The claims that one request renews.
type Round = (Arc<dyn Session>, Vec<Arc<Claim>>);

#[derive(Default)]
struct Renewals {
    due: DueQueue<Renewal>,
    /// Renewals that came while a round was under way for their claims, by the numbers of the claims: they take the place of those in the round.
    instead: BTreeMap<u64, Renewal>,
}

impl Renewer {
    /// A renewer whose task runs on the runtime's host.
    pub(crate) fn start(runtime: &Runtime) -> Renewer {
        let renewer = Renewer(Arc::new(Shared { runtime: runtime.clone(), state: Mutex::default() }));
        let (weak, clock) = (Arc::downgrade(&renewer.0), runtime.clock().clone());
        runtime.spawn(async move {
            // The task ends with the last guard and the client, which hold the strong references.
            while let Some(shared) =
                clock.next_due(&weak, |shared, waker| shared.renewals().due.plan(waker)).await
            {
                shared.start_rounds();
            }
        });
        renewer
    }

    /// Renews the claim from now on, until it is forgotten or has ended.
    pub(crate) fn schedule(&self, renewal: Renewal) {
        let due = renewal.claim.validity.due();
        if due == Moment::NEVER {
            return;
        }
        let mut renewals = self.0.renewals();
        renewals.remove(&renewal.claim);
        if renewal.claim.scheduled.load(Ordering::Relaxed) == IN_FLIGHT {
            renewals.instead.insert(renewal.claim.number, renewal);
        } else {
            renewals.insert(due, renewal);
        }
    }

    /// Renews this claim no more.
    pub(crate) fn forget(&self, claim: &Claim) {
        if claim.scheduled.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut renewals = self.0.renewals();
        let forgotten = (renewals.remove(claim), renewals.instead.remove(&claim.number));
        // A round under way finds the zero and does not put it back.
        claim.scheduled.store(0, Ordering::Relaxed);
        drop(renewals);
        drop(forgotten);
    }
}

impl Renewals {
    fn insert(&mut self, due: Moment, renewal: Renewal) {
        renewal.claim.scheduled.store(due.as_nanos(), Ordering::Relaxed);
        self.due.insert(key(due, &renewal.claim), renewal);
    }

    fn remove(&mut self, claim: &Claim) -> Option<Renewal> {
        match claim.scheduled.load(Ordering::Relaxed) {
            0 | IN_FLIGHT => None,
            due => self.due.remove(key(Moment::from_nanos(due), claim)),
        }
    }

    /// Takes out what is due, or nearly.
    fn take_due(&mut self, now: Moment) -> Vec<Renewal> {
        let near = self.due.take_due(now + SLACK);
        let mut taken = Vec::with_capacity(near.len());
        for (key, renewal) in near {
            if key.0 <= now + (renewal.claim.ttl() / 10).min(SLACK) {
                renewal.claim.scheduled.store(IN_FLIGHT, Ordering::Relaxed);
                taken.push(renewal);
            } else {
                self.due.insert(key, renewal);
            }
        }
        taken
    }
}

impl Shared {
    fn renewals(&self) -> MutexGuard<'_, Renewals> {
        self.state.lock()
    }

    fn start_rounds(self: &Arc<Self>) {
        let now = self.runtime.clock().now();
        let due = self.renewals().take_due(now);
        let mut rounds: BTreeMap<u64, Round> = BTreeMap::new();
        for Renewal { claim, session } in due {
            rounds.entry(session.id()).or_insert_with(|| (session, Vec::new())).1.push(claim);
        }
        for (session, claims) in rounds.into_values() {
            let shared = Arc::clone(self);
            self.runtime.spawn(async move { shared.round(session, claims).await });
        }
    }

    async fn round(&self, session: Arc<dyn Session>, claims: Vec<Arc<Claim>>) {
        let clock = self.runtime.clock();
        let start = clock.now();
        let due_before: Vec<Moment> = claims.iter().map(|claim| claim.validity.due()).collect();
        // Once the last of these leases has expired there is nothing left to renew. The leases of queued claims are known to the engine alone, so they get 5 s.
        let bound = claims
            .iter()
            .filter(|claim| claim.validity.is_confirmed())
            .map(|claim| claim.validity.until())
            .max();
        let bound = bound.unwrap_or(Moment::ZERO).max(start + Duration::from_secs(5));
        // If this future is dropped here the client's host has stopped: the lives run out by the clock.
        let answer = clock.within(bound, session.renew(&claims)).await;
        let trouble = match answer {
            Some(Ok(())) => None,
            Some(Err(error)) => {
                let trouble = RenewalFailure::of(error);
                tracing::debug!(why = &*trouble.why, claims = claims.len(), "renewal failed, trying again");
                Some(trouble)
            }
            None => Some(RenewalFailure {
                why: Error::NO_ANSWER.into(),
                kind: ErrorKind::Unreachable,
                transient: true,
            }),
        };
        let now = clock.now();
        // A few at a time: who locks or releases waits for no more than that.
        let mut claims = claims.into_iter().zip(due_before);
        let mut rescheduled = Vec::with_capacity(FEW);
        while claims.len() > 0 {
            for (claim, due_before) in claims.by_ref().take(FEW) {
                match due_after(&claim, due_before, trouble.as_ref(), start, now) {
                    Some(due) => rescheduled.push((due, Renewal { claim, session: Arc::clone(&session) })),
                    None => drop(self.renewals().instead.remove(&claim.number)),
                }
            }
            let mut renewals = self.renewals();
            for (due, renewal) in rescheduled.drain(..) {
                // Forgotten meanwhile: its guard is being released.
                if renewal.claim.scheduled.load(Ordering::Relaxed) == IN_FLIGHT {
                    let renewal = renewals.instead.remove(&renewal.claim.number).unwrap_or(renewal);
                    renewals.insert(due, renewal);
                }
            }
        }
    }
}

/// Returns when the claim is to be renewed next, after a round that began at `start`, when the claim was due at `due_before`. `None`: it has
/// ended.
fn due_after(
    claim: &Claim,
    due_before: Moment,
    trouble: Option<&RenewalFailure>,
    start: Moment,
    now: Moment,
) -> Option<Moment> {
    let validity = &claim.validity;
    if validity.ended().is_some() {
        return None;
    }
    let confirmed = validity.is_confirmed();
    if confirmed && validity.loss_at(now).is_some() {
        if trouble.is_some() {
            validity.tell_renewal_failed(trouble);
        }
        validity.state(now);
        return None;
    }
    let due = validity.due();
    // Each answer of the engine moves the time. So a round that failed for others, or took long, may have renewed this claim.
    let is_renewed = due != due_before;
    match trouble {
        _ if confirmed => {}
        // The engine is away since the request was sent, and not since it was given up.
        Some(trouble) if !is_renewed => validity.set_unrenewed(start, trouble.clone()),
        _ => validity.forget_trouble(),
    }
    // A grant that was confirmed just before the round began is not in question either.
    let is_confirmed_anyway = confirmed && due > now + (claim.ttl() / 10).min(SLACK);
    if is_renewed || is_confirmed_anyway || trouble.is_none() && (due > now || !confirmed) {
        // What is due at once is renewed after a short pause.
        return Some(due.max(now + AT_ONCE));
    }
    if confirmed {
        validity.tell_renewal_failed(trouble);
        validity.renewal_failed(trouble.cloned());
    }
    // Try again soon, and more often as the end comes near.
    let left = if confirmed { validity.until().since(now) } else { claim.ttl() };
    Some(now + (left / 8).clamp(AT_ONCE, SLACK))
}

#[cfg(test)]
mod tests;
