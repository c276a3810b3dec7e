//! The claims of a layer that are renewed: those that hold, and those that wait.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::engines::{Engines, Role};
use super::part::Part;
use fencepost_core::sync::{Mutex, MutexGuard};
use fencepost_core::{Claim, ClaimId, Degraded, Moment, Renewal, margin};

/// A claim that is renewed, as its entry and the renewal share it.
#[derive(Default)]
pub(super) struct Held(Mutex<HeldParts>);

#[derive(Default)]
pub(super) struct HeldParts {
    pub(super) parts: Vec<HeldPart>,
    /// The part at the primary that a grant of the fallback got after the primary's return.
    pub(super) added: Option<Part>,
    /// The claim is being left: nothing is added any more.
    pub(super) leaving: bool,
}

/// A part, as the renewal sees it.
#[derive(Clone)]
pub(super) struct HeldPart {
    pub(super) role: Role,
    pub(super) claim: Arc<Claim>,
    /// `None`: nothing has to renew it.
    pub(super) renewal: Option<Renewal>,
}

impl HeldPart {
    pub(super) fn of(part: &Part) -> HeldPart {
        HeldPart { role: part.role, claim: Arc::clone(part.claim()), renewal: part.entry.renewal() }
    }

    /// Returns when the last request was sent that has confirmed it.
    fn confirmed_at(&self, engines: &Engines, now: Moment) -> Moment {
        let ttl = self.claim.ttl();
        let until = self.claim.validity.until();
        if until <= now + ttl {
            return until.less(ttl.saturating_sub(margin(ttl)));
        }
        // It rests on a session, whose own end the engine knows. The client has to have reached the engine all the same.
        match self.role {
            Role::Primary if engines.has_fallback() => engines.last_answer().unwrap_or(Moment::ZERO),
            Role::Primary | Role::Second => now,
        }
    }
}

/// Schedules the next renewal of a claim that waits: when the first of its parts is due. An engine may forget a position in the queue long before
/// the lease would end.
pub(super) fn waits(outer: &Claim, parts: &[HeldPart], sent: Moment) {
    // In one step, because the renewer takes a time that has moved for a sign that the claim was renewed.
    outer.validity.waiting(first_due(parts).min(sent + outer.ttl() / 3), Duration::ZERO);
}

/// Returns when the first of the parts is to be renewed.
pub(super) fn first_due(parts: &[HeldPart]) -> Moment {
    let alive = parts.iter().filter(|part| part.renewal.is_some() && part.claim.validity.ended().is_none());
    alive.map(|part| part.claim.validity.due()).min().unwrap_or(Moment::NEVER)
}

impl Held {
    pub(super) fn lock(&self) -> MutexGuard<'_, HeldParts> {
        self.0.lock()
    }
}

impl HeldParts {
    /// Returns when the last request was sent that has confirmed all parts, as far as the claim may rest on them.
    pub(super) fn confirmed_at(&self, engines: &Engines, now: Moment) -> Moment {
        let sent = self.parts.iter().map(|part| part.confirmed_at(engines, now)).fold(now, Moment::min);
        if !engines.has_fallback() || self.parts.iter().any(|part| part.role == Role::Primary) {
            return sent;
        }
        // The fallback alone counts only as long as the primary is known to be away.
        match engines.plan() {
            plan if plan.degraded == Some(Degraded::Fallback) && plan.wait.is_none() => {
                sent.min(plan.sent_by)
            }
            _ => Moment::ZERO,
        }
    }
}

/// All of a layer, by their ids.
#[derive(Default)]
pub(super) struct AllHeld(Mutex<HashMap<ClaimId, Arc<Held>>>);

impl AllHeld {
    pub(super) fn get(&self, id: ClaimId) -> Option<Arc<Held>> {
        self.0.lock().get(&id).map(Arc::clone)
    }

    pub(super) fn add(&self, id: ClaimId, held: &Arc<Held>) {
        self.0.lock().insert(id, Arc::clone(held));
    }

    pub(super) fn remove(&self, id: ClaimId) {
        let removed = self.0.lock().remove(&id);
        drop(removed);
    }
}
