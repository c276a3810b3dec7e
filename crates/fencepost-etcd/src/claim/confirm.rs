//! The confirmation of a claim that holds the lock, or is about to.

use std::sync::Arc;
use std::time::Duration;

use crate::claim::eviction;
use crate::claim::lease_change::{Moved, Purpose};
use crate::claim::state::ClaimState;
use crate::client::{EtcdClient, TRIES};
use crate::error::Failed;
use crate::lease::Lease;

/// Confirms a claim at the front of its queue, whose key was created at `revision`, for what its lease lasts since the lease was last renewed. The
/// caller has just renewed `renewed`. A claim that asks for a longer lease than it has gets one first, and a fixed grant gets a lease of its own.
///
/// If the key certainly has the claim's lease, and that is long enough, this takes no request.
///
/// # Cancel safety
/// May be dropped; a change of the lease goes on.
pub(crate) async fn confirm(
    client: &Arc<EtcdClient>,
    state: &Arc<ClaimState>,
    revision: i64,
    renewed: &Lease,
) -> Result<(), Failed> {
    let claim = &state.claim;
    let mut least = claim.ttl();
    for attempt in 0..TRIES {
        let Some(own) = state.lease() else { return Ok(()) };
        // Another change has given the claim another lease.
        let is_renewed = attempt == 0 && own.id == renewed.id || renew(client, &own, claim.ttl()).await?;
        if claim.validity.ended().is_some() {
            return Ok(());
        }
        // First of all, so that the key has this lease later than that: it could have another one when this one is renewed again.
        let sent = own.sent();
        // Without its lease the claim is not lost if another program may have moved the key.
        let needs_another =
            least > own.ttl || !(claim.renewed || own.dedicated) || !is_renewed || own.is_over(client.now());
        if !needs_another && state.certainly_has(&own) {
            claim.confirm(sent, claim.ttl().min(own.ttl));
            return Ok(());
        }
        let (purpose, lease) = match needs_another {
            false => (Purpose::Keep, own),
            true if claim.renewed => (Purpose::Extend, client.leases.shared_from_now(least).await?),
            true => (Purpose::Extend, client.leases.dedicated(least).await?),
        };
        match eviction::change_lease(client, state, revision, &lease, purpose).await {
            Ok(Moved::Superseded) => {}
            Ok(Moved::Outlived(most)) => least = most.since(client.now()).max(claim.ttl()),
            Ok(Moved::Done | Moved::Gone | Moved::Evicted | Moved::Ended) => return Ok(()),
            Err(failure) if failure.is_lease_not_found() => lease.end(),
            Err(failure) => return Err(failure),
        }
    }
    Err(Failed::contested())
}

/// Renews the lease of a claim that lasts for `ttl`. Returns whether it could be renewed. If it is gone, the claims whose keys certainly have it
/// are told.
pub(crate) async fn renew(client: &EtcdClient, lease: &Arc<Lease>, ttl: Duration) -> Result<bool, Failed> {
    let Err(failure) = client.leases.renew(lease, ttl).await else { return Ok(true) };
    if failure.is_lease_not_found() {
        client.lose_certain(lease, lease.has_time(client.now()));
        return Ok(false);
    }
    if lease.is_over(client.now()) {
        client.lose_certain(lease, false);
    }
    Err(failure)
}
