//! Renewal: one request for each lease, whatever hangs on it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Weak};

use fencepost_core::{Claim, Loss, Reply, Result, Session, Validity};

use crate::lease::Lease;
use crate::member::{Member, Stand};
use crate::shared::Shared;

/// What renews the claims that hang on one lease.
pub(crate) struct EtcdSession {
    /// Each claim's entry keeps it, for as long as there is something to renew.
    pub(crate) shared: Weak<Shared>,
    pub(crate) lease: Arc<Lease>,
}

impl EtcdSession {
    async fn round(&self, due: &[Arc<Claim>]) -> Result<()> {
        let Some(shared) = self.shared.upgrade() else { return Ok(()) };
        let lease = &self.lease;
        // Claims that come one after the other need no request each. One alone may be a user's, who wants all of it.
        let fresh =
            due.len() > 1 && lease.sent() + lease.ttl / 6 > shared.now() && !lease.is_over(shared.now());
        if !fresh {
            match lease.renew(&shared.net, &shared.runtime).await {
                Ok(()) => {}
                Err(failure) if failure.is_lease_gone() => {
                    shared.lose(lease, lease.has_time(shared.now()));
                    return Ok(());
                }
                Err(failure) => {
                    if lease.is_over(shared.now()) {
                        shared.lose(lease, false);
                    }
                    return Err(failure.into());
                }
            }
        }
        // One that fails keeps no other from what is known of the lease.
        let mut outcome = Ok(());
        for claim in due {
            let Some(member) = shared.member(claim.note.load(Ordering::Relaxed)) else { continue };
            // Its number may be another one's by now.
            if !Arc::ptr_eq(&member.claim, claim) {
                continue;
            }
            let confirmed = self.confirm(&shared, &member).await;
            outcome = outcome.and(confirmed);
        }
        outcome
    }

    async fn confirm(&self, shared: &Arc<Shared>, member: &Member) -> Result<()> {
        let (claim, lease) = (&member.claim, &self.lease);
        let ttl = claim.ttl();
        match member.stand() {
            Stand::Holding(revision) if ttl > lease.ttl => {
                let sent = shared.now();
                let longer = if claim.renewed {
                    shared.leases.get(&shared.net, &shared.runtime, ttl).await?
                } else {
                    shared.private(ttl).await?
                };
                // The lease may be older than this request.
                let sent = if claim.renewed { longer.sent() } else { sent };
                if shared.hang(member, revision, &longer).await? {
                    claim.confirm(sent, ttl);
                } else {
                    member.lose(Loss::Deleted);
                }
            }
            // Its key may hang on another lease by now.
            Stand::Holding(revision) if member.lease().is_some_and(|own| own.id == lease.id) => {
                // What another request has tried to move, and what others know the secret of, is where it should be, or lost.
                let sure =
                    ![&member.adopted, &member.adrift].iter().any(|doubt| doubt.load(Ordering::Relaxed));
                if sure || shared.hang(member, revision, lease).await? {
                    claim.confirm(lease.sent(), ttl);
                } else {
                    member.lose(Loss::Deleted);
                }
            }
            Stand::Holding(_) | Stand::Gone | Stand::Nowhere => {}
            Stand::Waiting(_) | Stand::Granted(_) => claim.validity.waiting(lease.sent(), ttl.min(lease.ttl)),
        }
        Ok(())
    }
}

impl Session for EtcdSession {
    fn id(&self) -> u64 {
        self.lease.id.unsigned_abs()
    }

    fn validity(&self) -> &Arc<Validity> {
        // Each claim has a validity of its own: it may be evicted, or have a lease of its own one day.
        static FOREVER: LazyLock<Arc<Validity>> = LazyLock::new(|| Arc::new(Validity::forever()));
        &FOREVER
    }

    fn keep<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        Reply::coming(self.round(due))
    }
}
