//! The eviction of a claim of this client by an operator.

use std::sync::Arc;

use fencepost_core::Loss;

use crate::claim::lease_change::{self, Moved};
use crate::claim::state::{ClaimState, Phase};
use crate::client::{EtcdClient, PAUSE};
use crate::error::Failed;
use crate::keys::{self, KeyId};
use crate::lease::Lease;
use crate::rpc::proto::DeleteRequest;

/// Tells the holder. Its key moves to a lease of its own that expires, whatever the holder does.
pub(crate) fn evicted(client: &Arc<EtcdClient>, state: Arc<ClaimState>) {
    if state.claim.validity.ended().is_some() {
        return;
    }
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
    let (client, ttl) = (Arc::clone(client), state.claim.ttl());
    client.runtime.clone().spawn(async move {
        let clock = client.runtime.clock();
        let until = clock.now() + ttl;
        while holds && !state.claim.is_leaving() && clock.now() < until {
            let moved = async {
                let lease = client.leases.dedicated(until.since(clock.now())).await?;
                lease_change::move_key(&client, &state, revision, &lease, true).await
            };
            if moved.await.is_ok() {
                break;
            }
            clock.sleep_until(clock.now() + PAUSE).await;
        }
        delete_note(&client, id, revision).await;
    });
}

/// Moves the claim's key to this lease, unless the key is gone or the claim is evicted. Then the claim has ended, and this returns `false`.
pub(crate) async fn move_key(
    client: &Arc<EtcdClient>,
    state: &Arc<ClaimState>,
    revision: i64,
    lease: &Arc<Lease>,
) -> Result<bool, Failed> {
    let moved = lease_change::move_key(client, state, revision, lease, false).await?;
    match moved {
        Moved::Done => {}
        Moved::Gone => state.lose(Loss::Deleted),
        // The note may come later, or its watch may be broken.
        Moved::Evicted => evicted(client, Arc::clone(state)),
    }
    Ok(moved == Moved::Done)
}

/// Deletes the note of an eviction. If that fails, the note ends with its lease.
pub(crate) async fn delete_note(client: &EtcdClient, id: KeyId, revision: i64) {
    let note = keys::eviction(&client.config.prefix, id, revision);
    let _ = client.cluster.call(DeleteRequest::one(&note), None).await;
}
