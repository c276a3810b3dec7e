//! The confirmation of a claim that holds the lock, or is about to.

use std::sync::Arc;

use crate::claim::eviction;
use crate::claim::lease_change::{Moved, Purpose};
use crate::claim::state::ClaimState;
use crate::client::{EtcdClient, TRIES};
use crate::error::Failed;
use crate::lease::Lease;

/// Confirms a claim at the front of its queue, whose key was created at `revision`, for what its lease lasts since the lease was last renewed. A
/// claim that asks for a longer lease than it has gets one first, and a fixed grant gets a lease of its own.
///
/// If the key certainly has the claim's lease, and that is long enough, this takes no request.
///
/// # Cancel safety
/// May be dropped; a change of the lease goes on.
pub(crate) async fn confirm(
    client: &Arc<EtcdClient>,
    state: &Arc<ClaimState>,
    revision: i64,
) -> Result<(), Failed> {
    let claim = &state.claim;
    for attempt in 0..TRIES {
        let Some(own) = state.lease() else { return Ok(()) };
        // Another change has replaced the lease that the caller has renewed.
        if attempt > 0 && !renew(client, &own).await? {
            return Ok(());
        }
        // Before it is known that the key has this lease: a renewal after that may come when the key has another one.
        let (sent, ttl) = (own.sent(), claim.ttl());
        let extends = ttl > own.ttl || !claim.renewed && !own.dedicated;
        if !extends && state.is_lease_certain() {
            claim.confirm(sent, ttl);
            return Ok(());
        }
        let (purpose, lease) = match extends {
            false => (Purpose::Keep, own),
            true if claim.renewed => (Purpose::Extend, client.leases.shared_from_now(ttl).await?),
            true => (Purpose::Extend, client.leases.dedicated(ttl).await?),
        };
        match eviction::move_key(client, state, revision, &lease, purpose).await {
            Ok(Moved::Superseded) => {}
            Ok(_) => return Ok(()),
            Err(failure) if failure.is_lease_not_found() => {
                lease.end();
                if state.lease().is_some_and(|own| own.id == lease.id) {
                    client.lose(&lease, lease.has_time(client.now()));
                    return Ok(());
                }
            }
            Err(failure) => return Err(failure),
        }
    }
    Err(Failed::contested())
}

/// Renews the lease. Returns whether its claims may go on; otherwise they were told.
pub(crate) async fn renew(client: &EtcdClient, lease: &Arc<Lease>) -> Result<bool, Failed> {
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
