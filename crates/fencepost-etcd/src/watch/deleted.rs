//! Keys that were deleted while their claims held the lock.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::Loss;
use futures_util::future::join;

use crate::claim::eviction;
use crate::claim::state::{ClaimState, Phase};
use crate::client::EtcdClient;
use crate::error::Failed;
use crate::keys;
use crate::rpc::proto::{RangeRequest, RequestOp, TxnRequest};

/// At most `BATCH` keys are read by one request. etcd allows 128 by default (`--max-txn-ops`).
pub(crate) const BATCH: usize = 64;
/// The time limit of the search for the cause before the holder is told.
const CAUSE_TIMEOUT: Duration = Duration::from_millis(50);

/// Reads the keys of at most [`BATCH`] holders whose watches have begun. A key that is gone is a loss.
pub(crate) async fn check(client: &Arc<EtcdClient>, claims: &[Arc<ClaimState>]) -> Result<(), Failed> {
    let claims: Vec<_> = claims.iter().filter_map(|state| Some((state, state.key()?))).collect();
    let success = claims.iter().map(|(_, key)| RequestOp::key(key)).collect();
    let reply = client.cluster.call(TxnRequest { success, ..TxnRequest::default() }, None).await?;
    for (at, (state, _)) in claims.into_iter().enumerate() {
        let created = reply.range(at).ok_or_else(Failed::malformed)?.kvs.first().map(|kv| kv.create_revision);
        if let Phase::Holding(revision) = state.phase()
            && created != Some(revision)
        {
            deleted(client, state, reply.revision().max(revision + 1));
        }
    }
    Ok(())
}

/// Ends the claim whose key was deleted at the revision `at` by somebody else, and tells the holder the cause if it is found in time. A key
/// that was created after `at` still exists.
pub(crate) fn deleted(client: &Arc<EtcdClient>, state: &Arc<ClaimState>, at: i64) {
    let phase = state.phase();
    if phase.revision().is_none_or(|created| created >= at) || state.claim.is_leaving() {
        return;
    }
    let (Phase::Holding(revision), Some(lease)) = (phase, state.lease()) else {
        return state.lose(Loss::Deleted);
    };
    let (client, state) = (Arc::clone(client), Arc::clone(state));
    client.runtime.clone().spawn(async move {
        let note = state.key_id().map(|id| keys::eviction(&client.config.prefix, id, revision));
        let note = client
            .cluster
            .call(RangeRequest { key: note.unwrap_or_default(), ..RangeRequest::default() }, None);
        let clock = client.runtime.clock();
        let cause = join(note, client.leases.time_to_live(lease.id));
        let cause = clock.within(clock.now() + CAUSE_TIMEOUT, cause).await;
        let (key, id) = (String::from_utf8_lossy(state.key().unwrap_or_default()), lease.id);
        match cause {
            Some((Ok(notes), _)) if !notes.kvs.is_empty() => {
                state.note_eviction(revision, &String::from_utf8_lossy(&notes.kvs[0].value));
                eviction::evicted(&client, Arc::clone(&state));
            }
            Some((_, Ok(ttl))) if ttl < 0 => {
                client.lose_certain(&lease, true);
                // Its key may have had another lease, and is gone all the same. The first loss counts.
                state.lose_with(Loss::Deleted, format!("its key {key} was deleted"));
            }
            Some((_, Ok(_))) => state.lose_with(Loss::Deleted, format!("its key {key} was deleted")),
            _ => {
                let detail = format!("its key {key} was deleted, or its lease {id:016x} was revoked");
                state.lose_with(Loss::Deleted, detail);
            }
        }
    });
}
