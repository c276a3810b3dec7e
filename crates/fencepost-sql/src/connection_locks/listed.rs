//! The claims of a client, as operators ask for them.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use fencepost_core::sync::Mutex;
use fencepost_core::{Claim, ClaimId, ClaimRecord, Token};

use crate::connection_locks::connection::Connection;
use crate::connection_locks::{Held, Server};

/// The claims of a client that wait or hold.
pub struct ListedClaims<S: Server>(Mutex<HashMap<ClaimId, ListedClaim<S>>>);

/// A claim that waits or holds.
pub struct ListedClaim<S: Server> {
    /// The claim.
    pub claim: Arc<Claim>,
    /// Its description, without its id, which is a secret.
    pub record: ClaimRecord,
    /// The token of a claim that holds.
    pub token: Option<Token>,
    held: Option<Weak<Held<S>>>,
}

impl<S: Server> Default for ListedClaims<S> {
    fn default() -> ListedClaims<S> {
        ListedClaims(Mutex::default())
    }
}

impl<S: Server> Clone for ListedClaim<S> {
    fn clone(&self) -> ListedClaim<S> {
        ListedClaim {
            claim: Arc::clone(&self.claim),
            record: self.record.clone(),
            token: self.token,
            held: self.held.clone(),
        }
    }
}

impl<S: Server> ListedClaim<S> {
    /// Returns its lock if it holds.
    #[must_use]
    pub fn held(&self) -> Option<Arc<Held<S>>> {
        self.held.as_ref()?.upgrade()
    }
}

impl<S: Server> ListedClaims<S> {
    /// Notes that a claim waits (`None`), or what it holds.
    pub(super) fn note(&self, claim: &Arc<Claim>, held: Option<&Arc<Held<S>>>) {
        let mut claims = self.0.lock();
        let listed = claims.entry(claim.id).or_insert_with(|| ListedClaim {
            claim: Arc::clone(claim),
            record: ClaimRecord { id: None, ..ClaimRecord::of(claim) },
            held: None,
            token: None,
        });
        listed.held = held.map(Arc::downgrade);
        listed.token = held.map(|held| held.token);
    }

    pub(super) fn remove(&self, id: ClaimId) {
        self.0.lock().remove(&id);
    }

    /// Returns the locks of this connection whose holders are lost, because their own leases have ended. A lease that is not renewed is
    /// released by its own task.
    pub(super) fn expired(&self, connection: &Connection<S>) -> Vec<Arc<Held<S>>> {
        let claims: Vec<_> = self.0.lock().values().cloned().collect();
        let mut held: Vec<_> = claims.iter().filter_map(ListedClaim::held).collect();
        held.retain(|held| connection.holds(&held.claim) && held.is_expired());
        held
    }

    /// Returns the claim that was granted with this token. It is found as well if the server has freed its lock since, because a question
    /// of an operator arrives once for each connection that listens, and each arrival must have the same answer.
    pub fn granted(&self, name: &str, token: Token) -> Option<ListedClaim<S>> {
        let claims = self.0.lock();
        let is_wanted =
            |one: &&ListedClaim<S>| one.token == Some(token) && one.claim.want().name.as_str() == name;
        claims.values().find(is_wanted).cloned()
    }

    /// Returns the claims whose names are `wanted`, by name. Holders come first, then waiters in the order of their arrival. A lost claim
    /// whose lock the server has freed is not among them, although its guard is kept.
    pub fn select(&self, wanted: impl Fn(&str) -> bool) -> Vec<ListedClaim<S>> {
        let claims = self.0.lock();
        let mut found: Vec<_> =
            claims.values().filter(|one| wanted(one.claim.want().name.as_str())).cloned().collect();
        drop(claims);
        found.retain(|one| one.held.is_none() || one.held().is_some_and(|held| !held.is_free()));
        found.sort_by(|a, b| {
            let order = |one: &ListedClaim<S>| (one.held.is_none(), one.record.since_micros);
            a.claim.want().name.cmp(&b.claim.want().name).then_with(|| order(a).cmp(&order(b)))
        });
        found
    }

    /// Returns the lock with this token that is `wanted`.
    pub fn find(&self, token: Token, wanted: impl Fn(&Held<S>) -> bool) -> Option<Arc<Held<S>>> {
        let claims = self.0.lock();
        let mut held = claims.values().filter(|one| one.token == Some(token)).filter_map(ListedClaim::held);
        held.find(|held| wanted(held))
    }
}
