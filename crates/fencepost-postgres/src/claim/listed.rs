//! The claims of a client, as operators ask for them.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use fencepost_core::sync::Mutex;
use fencepost_core::{Claim, ClaimId, ClaimRecord, Token};

use crate::claim::held::Held;

/// The claims of a client that wait or hold.
#[derive(Default)]
pub(crate) struct ListedClaims(Mutex<HashMap<ClaimId, ListedClaim>>);

#[derive(Clone)]
pub(crate) struct ListedClaim {
    pub(crate) claim: Arc<Claim>,
    pub(crate) record: ClaimRecord,
    /// `None`: it waits.
    pub(crate) held: Option<Weak<Held>>,
    pub(crate) token: Option<Token>,
}

impl ListedClaims {
    /// Notes that a claim waits.
    pub(crate) fn waits(&self, claim: &Arc<Claim>) {
        self.set(claim, None);
    }

    /// Notes that a claim holds.
    pub(crate) fn holds(&self, claim: &Arc<Claim>, held: &Arc<Held>) {
        self.set(claim, Some(held));
    }

    fn set(&self, claim: &Arc<Claim>, held: Option<&Arc<Held>>) {
        // The claim's id is a secret.
        let record = || ClaimRecord { id: None, ..ClaimRecord::of(claim) };
        let mut claims = self.0.lock();
        let listed = claims.entry(claim.id).or_insert_with(|| ListedClaim {
            claim: Arc::clone(claim),
            record: record(),
            held: None,
            token: None,
        });
        listed.held = held.map(Arc::downgrade);
        listed.token = held.map(|held| held.token);
    }

    pub(crate) fn remove(&self, id: ClaimId) {
        self.0.lock().remove(&id);
    }

    /// Returns the claims whose names are `wanted`, by name. Holders come first, then waiters in the order of their arrival.
    pub(crate) fn select(&self, wanted: impl Fn(&str) -> bool) -> Vec<ListedClaim> {
        let claims = self.0.lock();
        let mut found: Vec<_> =
            claims.values().filter(|one| wanted(one.claim.want().name.as_str())).cloned().collect();
        drop(claims);
        found.sort_by(|a, b| {
            let order = |one: &ListedClaim| (one.held.is_none(), one.record.since_micros);
            a.claim.want().name.cmp(&b.claim.want().name).then_with(|| order(a).cmp(&order(b)))
        });
        found
    }
}
