//! Moving a claim's key to another lease.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use fencepost_core::{ClaimRecord, Loss};

use crate::claim::state::ClaimState;
use crate::client::{EtcdClient, TRIES};
use crate::error::Failed;
use crate::keys;
use crate::lease::Lease;
use crate::rpc::proto::{Compare, Op, PutRequest, RequestOp, TxnRequest};

/// Why a key is moved to another lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Its claim keeps the lock.
    Keep,
    /// Its grant is to belong to no process.
    Detach,
    /// Its claim is evicted, and other claims may renew its lease without end.
    Evict,
}

/// The outcome of moving a key to another lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moved {
    Done,
    /// The key is gone.
    Gone,
    /// An operator has evicted the claim. The claim has noted who, and why, but may not be told yet.
    Evicted,
    /// The grant is being detached, or a program that knows the claim's id has detached it already, perhaps for longer.
    Detached,
}

/// Moves the claim's key to this lease. The write requires that nobody has written the key since it was read, so that a late request does not
/// move it back. If the claim is evicted, the key is moved only for that purpose. The mark in the record tells that, because the note is
/// deleted once the holder was told.
pub(crate) async fn move_key(
    client: &EtcdClient,
    state: &ClaimState,
    revision: i64,
    lease: &Arc<Lease>,
    purpose: Purpose,
) -> Result<Moved, Failed> {
    let (Some(key), Some(id)) = (state.key(), state.key_id()) else { return Ok(Moved::Gone) };
    let note = keys::eviction(&client.config.prefix, id, revision);
    let mut record = ClaimRecord::read(&state.value())?;
    record.detached |= purpose == Purpose::Detach;
    let mut written = state.moved_at().max(revision);
    // After `written` is read, because that may be the eviction's own write.
    if purpose != Purpose::Evict && state.claim.validity.ended() == Some(Loss::Evicted) {
        return Ok(Moved::Evicted);
    }
    for _ in 0..TRIES {
        // Read before each attempt, because an attempt that finds the detached key written would put it back. The detachment notes this before
        // its first request.
        if purpose == Purpose::Keep && state.detaching.load(Acquire) {
            return Ok(Moved::Detached);
        }
        // Until a reply tells the lease; this future may be dropped.
        state.lease_uncertain.store(true, Relaxed);
        let put = PutRequest::leased(key.to_vec(), record.to_bytes(), lease.id);
        let txn = TxnRequest {
            compare: vec![Compare::created(key, revision), Compare::written(key, written)],
            success: vec![Op::Put(put).into()],
            failure: vec![RequestOp::key(key), RequestOp::key(&note)],
        };
        let reply = client.cluster.call(txn, None).await?;
        let at = match reply.key(0).filter(|kv| kv.create_revision == revision) {
            _ if reply.succeeded => reply.revision(),
            None => return Ok(Moved::Gone),
            // Somebody else has written the key, or an earlier attempt has, whose reply was lost.
            Some(kv) => {
                let found = ClaimRecord::read(&kv.value)?;
                if found.evicted && purpose != Purpose::Evict {
                    let by = reply.key(1).map(|note| String::from_utf8_lossy(&note.value));
                    state.note_eviction(revision, &by.unwrap_or_default());
                    return Ok(Moved::Evicted);
                }
                if found.detached && purpose == Purpose::Detach && kv.lease != lease.id {
                    return Ok(Moved::Detached);
                }
                (written, record.evicted) = (kv.mod_revision, found.evicted);
                continue;
            }
        };
        set_lease(client, state, lease, at);
        return Ok(Moved::Done);
    }
    Err(Failed::contested())
}

/// Notes the key's lease since the revision `at`, and revokes a dedicated lease that it had before.
pub(crate) fn set_lease(client: &EtcdClient, state: &ClaimState, lease: &Arc<Lease>, at: i64) {
    if let Some(before) = state.set_lease(Arc::clone(lease), at).filter(|before| before.dedicated) {
        client.leases.revoke_unused(before.id);
    }
}
