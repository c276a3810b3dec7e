//! Renewal of claims: one request for each lease.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use fencepost_core::{Claim, Reply, Result, Session};
use futures_util::{StreamExt, stream};

use crate::claim::eviction;
use crate::claim::lease_change::{Moved, Purpose};
use crate::claim::state::{ClaimState, Phase};
use crate::claim::withdraw::end_expired;
use crate::client::{EtcdClient, TRIES};
use crate::error::Failed;
use crate::lease::Lease;

/// How many claims of one round have a request under way. Each claim whose lease was given out has one.
const AT_ONCE: usize = 64;

/// Renews the claims of one lease.
pub(crate) struct EtcdSession {
    /// The entry of each claim keeps the client alive.
    pub(crate) client: Weak<EtcdClient>,
    pub(crate) lease: Arc<Lease>,
}

impl EtcdSession {
    async fn renew(&self, due: &[Arc<Claim>]) -> Result<()> {
        let Some(client) = self.client.upgrade() else { return Ok(()) };
        let lease = &self.lease;
        // Several claims that are due one after the other need one renewal. A single one may be a user's extension, which needs all its time.
        let now = client.now();
        let fresh = due.len() > 1 && lease.sent() + lease.ttl / 6 > now && !lease.is_over(now);
        if !fresh && !renew(&client, lease).await? {
            return Ok(());
        }
        end_expired(&client, lease);
        // The number may belong to another claim by now.
        let state = |claim: &Arc<Claim>| {
            client.state(claim.note.load(Relaxed)).filter(|state| Arc::ptr_eq(&state.claim, claim))
        };
        // A claim that fails does not prevent the confirmation of the others.
        let confirmations = due.iter().filter_map(state).map(|state| self.confirm(&client, state));
        let confirmed = stream::iter(confirmations).buffer_unordered(AT_ONCE);
        confirmed.fold(Ok(()), async |all, one| all.and(one)).await
    }

    async fn confirm(&self, client: &Arc<EtcdClient>, state: Arc<ClaimState>) -> Result<()> {
        let claim = &state.claim;
        // The key of a claim that was evicted during this round has another lease soon.
        if claim.validity.ended().is_some() {
            return Ok(());
        }
        match state.phase() {
            Phase::Holding(revision) => self.confirm_holder(client, &state, revision).await?,
            Phase::Gone | Phase::New => {}
            Phase::Queued(_) | Phase::Granted(_) => {
                claim.validity.waiting(self.lease.sent(), claim.ttl().min(self.lease.ttl));
            }
        }
        Ok(())
    }

    /// Confirms a claim that holds the lock. If the claim asks for a longer lease than it has, its key moves to one.
    async fn confirm_holder(
        &self,
        client: &Arc<EtcdClient>,
        state: &Arc<ClaimState>,
        revision: i64,
    ) -> Result<(), Failed> {
        let claim = &state.claim;
        let ttl = claim.ttl();
        let (mut lease, mut least) = (Arc::clone(&self.lease), ttl);
        for _ in 0..TRIES {
            let Some(own) = state.lease() else { return Ok(()) };
            if own.id != lease.id {
                // A claim waits under a shared lease. This round was under way when the claim was granted with a fixed one, which is renewed only
                // by its user.
                if !claim.renewed && !self.lease.dedicated {
                    return Ok(());
                }
                // Another request has changed the claim's lease.
                lease = own;
                if !renew(client, &lease).await? {
                    return Ok(());
                }
            }
            let extends = least > lease.ttl;
            if extends {
                lease = if claim.renewed {
                    client.leases.shared_from_now(least).await?
                } else {
                    client.leases.dedicated(least).await?
                };
            } else if state.is_lease_certain() {
                claim.confirm(lease.sent(), ttl);
                return Ok(());
            }
            let purpose = if extends { Purpose::Extend } else { Purpose::Keep };
            match eviction::move_key(client, state, revision, (&lease, ttl), purpose).await? {
                Moved::Done | Moved::Gone | Moved::Evicted | Moved::Detached => return Ok(()),
                Moved::Superseded => {}
                Moved::Outlived(left) => least = left,
            }
        }
        Err(Failed::contested())
    }
}

/// Renews the lease. Returns whether its claims may go on; otherwise they were told.
async fn renew(client: &EtcdClient, lease: &Arc<Lease>) -> Result<bool, Failed> {
    let Err(failure) = client.leases.renew(lease).await else { return Ok(true) };
    if failure.is_lease_not_found() {
        client.lose(lease, lease.has_time(client.now()));
        return Ok(false);
    }
    if lease.is_over(client.now()) {
        client.lose(lease, false);
    }
    Err(failure)
}

impl Session for EtcdSession {
    fn id(&self) -> u64 {
        self.lease.id.unsigned_abs()
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        Reply::coming(self.renew(due))
    }
}
