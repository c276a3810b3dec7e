//! Renewal of grants: one write for each lease.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Claim, Loss, Reply, Result, Session};
use futures_util::stream::{self, StreamExt as _};

use crate::client::{ClaimState, Known, ObjectClient};
use crate::error::contended;
use crate::lock_object::LockObject;
use crate::place::TRIES;

/// How many renewals are sent at the same time.
const AT_ONCE: usize = 32;

impl ObjectClient {
    async fn renew_all(&self, states: Vec<Arc<ClaimState>>) -> Result<()> {
        let renewals = states.iter().map(|state| self.renew_one(state));
        let mut renewed = stream::iter(renewals.collect::<Vec<_>>()).buffer_unordered(AT_ONCE);
        let mut outcome = Ok(());
        while let Some(one) = renewed.next().await {
            outcome = outcome.and(one);
        }
        outcome
    }

    /// Renews a lease, or ends the claim if it holds the lock no more.
    async fn renew_one(&self, state: &ClaimState) -> Result<()> {
        let claim = &state.claim;
        let name = &claim.want().name;
        let (clock, key) = (self.store.clock(), self.keys.lock(name));
        for _ in 0..TRIES {
            let (ttl, sent) = (claim.ttl(), clock.now());
            let known = match state.known() {
                Some(known) => known,
                None => match self.read_own(state).await? {
                    Ok(known) => known,
                    Err(lock) => {
                        end(state, &lock);
                        return Ok(());
                    }
                },
            };
            if known.lock.holder.as_ref().is_some_and(|holder| holder.record.evicted) {
                end(state, &known.lock);
                return Ok(());
            }
            let longest = ttl.max(known.until.since(sent));
            let next = known.lock.renewed(longest, clock.wall_micros(), |_| {});
            // Whatever becomes of the write: without its answer the version is unknown.
            state.learn(None);
            if let Some(version) = self.store.put(&key, Some(&known.version), next.to_bytes()).await? {
                state.learn(Some(Known { lock: next, version, until: clock.now() + longest }));
                claim.confirm(sent, ttl);
                return Ok(());
            }
        }
        Err(contended(self.store.shown()).unknown())
    }

    /// Reads the lock of a claim that holds it. Otherwise returns what is there instead.
    async fn read_own(&self, state: &ClaimState) -> Result<Result<Known, LockObject>> {
        let claim = &state.claim;
        let seen = self.look(&claim.want().name).await?;
        let Some(object) = seen.object else { return Ok(Err(LockObject::default())) };
        let (lock, id) = LockObject::read_any(&object.bytes);
        if id != Some(claim.id) {
            return Ok(Err(lock));
        }
        // Another program may have renewed it just now, for so long.
        let longest = lock.holder.as_ref().map_or(Duration::ZERO, |holder| holder.ttl);
        Ok(Ok(Known { lock, version: object.version, until: seen.now + longest }))
    }
}

/// Ends a claim that has lost the lock, or has been evicted.
fn end(state: &ClaimState, lock: &LockObject) {
    let validity = &state.claim.validity;
    if state.claim.is_leaving() {
        return;
    }
    match lock.loss_of(state.token()) {
        Some(reason) => validity.end_with(Loss::Evicted, reason),
        None => validity.end(Loss::Deleted),
    }
}

impl Session for ObjectClient {
    fn id(&self) -> u64 {
        // No other engine of the process has this address.
        std::ptr::from_ref(self).addr() as u64
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        let state_of =
            |claim: &Arc<Claim>| self.claims.get(claim.id).filter(|state| Arc::ptr_eq(&state.claim, claim));
        let states: Vec<_> = due.iter().filter_map(state_of).collect();
        let Some(client) = self.this.upgrade() else { return Reply::ready(Ok(())) };
        Reply::coming(self.store.run(async move { client.renew_all(states).await }))
    }
}
