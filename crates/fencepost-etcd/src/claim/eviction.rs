//! The eviction of a claim of this client by an operator.

use std::sync::Arc;

use fencepost_core::{Loss, SingleFlight};

use crate::claim::lease_change::{self, Moved, Purpose};
use crate::claim::state::{ClaimState, Phase};
use crate::claim::withdraw::clean_up;
use crate::client::{EtcdClient, PAUSE};
use crate::error::Failed;
use crate::keys::{self, KeyId};
use crate::lease::Lease;
use crate::rpc::proto::DeleteRequest;

/// Tells the holder. A key with a shared lease moves to a lease of its own that lasts for what is left of that one, because other claims renew
/// the shared lease, whatever this holder does.
pub(crate) fn evicted(client: &Arc<EtcdClient>, state: Arc<ClaimState>) {
    // An earlier call does the rest.
    if state.claim.validity.ended() == Some(Loss::Evicted) {
        return;
    }
    // The first loss counts.
    state.claim.validity.end_with(Loss::Evicted, state.evicted_by());
    let phase = state.phase();
    let (Some(revision), Some(id)) = (phase.revision(), state.key_id()) else {
        return state.set_phase(Phase::Gone);
    };
    let holds = matches!(phase, Phase::Holding(_));
    if !holds {
        // The entry deletes the key.
        state.set_phase(Phase::Gone);
    }
    let is_renewed = holds && !state.ends_by_itself();
    let client = Arc::clone(client);
    client.runtime.clone().spawn(async move {
        if is_renewed {
            move_away(&client, &state, revision).await;
        }
        delete_note(&client, id, revision).await;
    });
}

/// Moves the key of a lost claim to a lease that nobody renews, in the background.
pub(crate) fn leave_shared(client: &Arc<EtcdClient>, state: Arc<ClaimState>, revision: i64) {
    let client = Arc::clone(client);
    client.runtime.clone().spawn(async move { move_away(&client, &state, revision).await });
}

/// Moves the claim's key from the leases that this client renews to one that nobody renews. If that fails until nobody counts on the key any more,
/// for example because the server has no space left, the key is deleted.
async fn move_away(client: &Arc<EtcdClient>, state: &Arc<ClaimState>, revision: i64) {
    let clock = client.runtime.clock();
    let own = state.own_leases();
    let until = match (state.claim.is_lease_given(), state.lease()) {
        // A program that has the text of the claim's lease may count on all the time of the lease that the key has.
        (true, _) => clock.now() + own.iter().map(|own| own.ttl).max().unwrap_or_default(),
        (false, Some(lease)) => lease.sent() + state.claim.ttl().min(lease.ttl),
        (false, None) => return,
    };
    // All rounds have one lease, because a round whose answer was lost may have moved the key to it.
    let mut last = None;
    while !state.claim.is_leaving() && own.iter().any(|own| !own.is_over(clock.now())) {
        let moved = async {
            let lease = match &last {
                Some(lease) => lease,
                None => last.insert(client.leases.dedicated(until.since(clock.now())).await?),
            };
            lease_change::move_key(client, state, revision, lease, Purpose::Evict).await
        };
        if moved.await.is_ok() {
            // The key is gone, or has a lease that ends by itself.
            let is_unused = |last: &Arc<Lease>| state.lease().is_none_or(|own| own.id != last.id);
            if let Some(last) = last.filter(is_unused) {
                client.leases.revoke_unused(last.id);
            }
            return;
        }
        if clock.now() >= until {
            return clean_up(client, Arc::clone(state));
        }
        clock.sleep_until(clock.now() + PAUSE).await;
    }
}

/// Writes the claim's key with this lease, as [`lease_change::move_key`] says, and ends a claim whose key is gone or that is evicted. Revokes the
/// lease if it was made for this and the key does not have it. Returns the outcome.
///
/// # Cancel safety
/// Dropped, the change goes on, because the next change waits for it.
pub(crate) async fn change_lease(
    client: &Arc<EtcdClient>,
    state: &Arc<ClaimState>,
    revision: i64,
    lease: &Arc<Lease>,
    purpose: Purpose,
) -> Result<Moved, Failed> {
    let (client, state, lease) = (Arc::clone(client), Arc::clone(state), Arc::clone(lease));
    let runtime = client.runtime.clone();
    let change = async move {
        let moved = lease_change::move_key(&client, &state, revision, &lease, purpose).await?;
        match moved {
            Moved::Gone => state.lose(Loss::Deleted),
            // The note may come later, or its watch may be broken.
            Moved::Evicted => evicted(&client, Arc::clone(&state)),
            Moved::Done | Moved::Ended | Moved::Superseded | Moved::Outlived(_) => {}
        }
        // The key of an evicted claim may have this lease by an attempt whose reply was lost.
        let is_unused = matches!(moved, Moved::Gone | Moved::Ended | Moved::Superseded | Moved::Outlived(_));
        if is_unused && purpose != Purpose::Keep && lease.dedicated {
            client.leases.revoke_unused(lease.id);
        }
        Ok(moved)
    };
    SingleFlight::default().join(&runtime, change).await.unwrap_or_else(|| Err(Failed::closed()))
}

/// Deletes the note of an eviction. If that fails, the note ends with its lease.
pub(crate) async fn delete_note(client: &EtcdClient, id: KeyId, revision: i64) {
    let note = keys::eviction(&client.config.prefix, id, revision);
    let _ = client.cluster.call(DeleteRequest::one(&note), None).await;
}
