//! Renewal of claims: one request for each lease.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use fencepost_core::{Claim, Reply, Result, Session};

use crate::claim::eviction;
use crate::claim::lease_change::{Moved, Purpose};
use crate::claim::state::{ClaimState, Phase};
use crate::claim::withdraw::end_expired;
use crate::client::EtcdClient;
use crate::lease::Lease;

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
        if !fresh && let Err(failure) = client.leases.renew(lease).await {
            if failure.is_lease_not_found() {
                client.lose(lease, lease.has_time(client.now()));
                return Ok(());
            }
            if lease.is_over(client.now()) {
                client.lose(lease, false);
            }
            return Err(failure.into());
        }
        end_expired(&client, lease);
        // A claim that fails does not prevent the confirmation of the others.
        let mut outcome = Ok(());
        for claim in due {
            // The number may belong to another claim by now.
            let state =
                client.state(claim.note.load(Relaxed)).filter(|state| Arc::ptr_eq(&state.claim, claim));
            if let Some(state) = state {
                let confirmed = self.confirm(&client, &state).await;
                outcome = outcome.and(confirmed);
            }
        }
        outcome
    }

    async fn confirm(&self, client: &Arc<EtcdClient>, state: &Arc<ClaimState>) -> Result<()> {
        let (claim, lease) = (&state.claim, &self.lease);
        // The key of a claim that was evicted during this round has another lease soon.
        if claim.validity.ended().is_some() {
            return Ok(());
        }
        let ttl = claim.ttl();
        match state.phase() {
            Phase::Holding(revision) if ttl > lease.ttl => {
                let now = client.now();
                let longer = if claim.renewed {
                    client.leases.shared(ttl).await?
                } else {
                    client.leases.dedicated(ttl).await?
                };
                // A shared lease may be older than this request.
                let sent = if claim.renewed { longer.sent() } else { now };
                let moved = eviction::move_key(client, state, revision, &longer, Purpose::Keep).await?;
                if moved == Moved::Done {
                    claim.confirm(sent, ttl);
                }
            }
            // The key may have another lease by now.
            Phase::Holding(revision) if state.lease().is_some_and(|own| own.id == lease.id) => {
                // Another request, or a program that knows the claim's secret, may have moved the key to another lease.
                let certain = !state.attached.load(Relaxed) && !state.lease_uncertain.load(Relaxed);
                let keep = || eviction::move_key(client, state, revision, lease, Purpose::Keep);
                if certain || keep().await? == Moved::Done {
                    claim.confirm(lease.sent(), ttl);
                }
            }
            Phase::Holding(_) | Phase::Gone | Phase::New => {}
            Phase::Queued(_) | Phase::Granted(_) => claim.validity.waiting(lease.sent(), ttl.min(lease.ttl)),
        }
        Ok(())
    }
}

impl Session for EtcdSession {
    fn id(&self) -> u64 {
        self.lease.id.unsigned_abs()
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        Reply::coming(self.renew(due))
    }
}
