//! Moving a claim's key to another lease.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use fencepost_core::ClaimRecord;

use crate::claim::state::ClaimState;
use crate::client::{EtcdClient, TRIES};
use crate::error::Failed;
use crate::lease::Lease;
use crate::rpc::proto::{Compare, Op, PutRequest, RequestOp, TxnRequest};

/// Moves the claim's key to this lease. Returns `false` if the key is gone. The write requires that nobody has written the key since it was
/// read, so that a late request does not move it back.
pub(crate) async fn move_key(
    client: &EtcdClient,
    state: &ClaimState,
    revision: i64,
    lease: &Arc<Lease>,
) -> Result<bool, Failed> {
    let Some(key) = state.key() else { return Ok(false) };
    let mut value = state.value();
    let mut written = state.moved_at().max(revision);
    // Until a reply tells the lease; this future may be dropped.
    state.lease_uncertain.store(true, Relaxed);
    for _ in 0..TRIES {
        let put = PutRequest::leased(key.to_vec(), value.clone(), lease.id);
        let txn = TxnRequest {
            compare: vec![Compare::created(key, revision), Compare::written(key, written)],
            success: vec![Op::Put(put).into()],
            failure: vec![RequestOp::key(key)],
        };
        let reply = client.cluster.call(txn, None).await?;
        let at = match reply.key(0).filter(|kv| kv.create_revision == revision) {
            _ if reply.succeeded => reply.revision(),
            None => return Ok(false),
            // Somebody else has written the key, or an earlier attempt has, whose reply was lost.
            Some(kv) => {
                written = kv.mod_revision;
                let evicted = ClaimRecord::read(&kv.value)?.evicted;
                value = ClaimRecord { evicted, ..ClaimRecord::read(&state.value())? }.to_bytes();
                continue;
            }
        };
        set_lease(client, state, lease, at);
        return Ok(true);
    }
    Err(Failed::contested())
}

/// Notes the key's lease since the revision `at`, and revokes a dedicated lease that it had before.
pub(crate) fn set_lease(client: &EtcdClient, state: &ClaimState, lease: &Arc<Lease>, at: i64) {
    if let Some(before) = state.set_lease(Arc::clone(lease), at).filter(|before| before.dedicated) {
        client.leases.revoke_unused(before.id);
    }
}
