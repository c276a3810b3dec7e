//! The end of a claim: its key is deleted.
//!
//! A server handles requests concurrently, so a request that creates the key and had no reply may take effect after the claim is withdrawn.
//! Such a claim leaves a tombstone under the lease of the key. While the lease exists, the tombstone prevents the creation; after that there
//! is no lease to create the key under. The tombstone ends with the lease. Later claims get another lease, so this one ends although the client
//! goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use fencepost_core::{AbandonedClaim, ClaimId, ClaimRecord, Found, Left, Result, remove_abandoned};

use crate::claim::state::{ClaimState, Phase};
use crate::client::{EtcdClient, TRIES};
use crate::error::Failed;
use crate::keys;
use crate::rpc::proto::{Compare, DeleteRequest, Op, PutRequest, RangeRequest, TxnRequest};

/// The result of a deletion.
#[derive(Default)]
pub(crate) struct Deletion {
    /// The key existed.
    pub(crate) found: bool,
    /// The request was repeated, so an earlier attempt may have deleted the key.
    pub(crate) repeated: bool,
}

impl Deletion {
    pub(crate) fn left(&self) -> Left {
        let found = if self.found { Found::Valid } else { Found::Missing };
        Left { found, held: None, repeated: self.repeated }
    }
}

/// Deletes the claim's key, and revokes its dedicated lease.
pub(crate) async fn withdraw(client: &Arc<EtcdClient>, state: &ClaimState) -> Result<Deletion, Failed> {
    let (Some(key), Some(lease)) = (state.key(), state.first_lease()) else { return Ok(Deletion::default()) };
    leave_queue(client, state);
    let repeated = AtomicBool::new(false);
    let delete = DeleteRequest::one(key);
    let mut deleted = None;
    if state.create_unanswered.load(Relaxed) {
        client.leases.retire(lease.id);
        let tombstone = keys::tombstone(&client.config.prefix, (lease.id, state.number));
        let put = PutRequest::leased(tombstone, Vec::new(), lease.id);
        let success = vec![Op::Delete(delete.clone()).into(), Op::Put(put).into()];
        let txn = TxnRequest { success, ..TxnRequest::default() };
        match client.cluster.call(txn, Some(&repeated)).await {
            Ok(reply) => deleted = Some(reply.deleted(0)),
            // Nothing can create the key any more: its lease is gone, or the server is full. The key may exist with another lease.
            Err(failure) if failure.is_lease_not_found() || failure.is_no_space() => {}
            Err(failure) => return Err(failure),
        }
    }
    let deleted = match (deleted, state.taken_over()) {
        (Some(deleted), _) => deleted,
        (None, Some(created)) => delete_created(client, key, created, &repeated).await?,
        (None, None) => client.cluster.call(delete, Some(&repeated)).await?.deleted,
    };
    if let Some(lease) = state.lease().filter(|lease| lease.dedicated) {
        client.leases.revoke_unused(lease.id);
    }
    Ok(Deletion { found: deleted > 0, repeated: repeated.into_inner() })
}

/// Deletes the key that another client created at this revision. Once it is gone, that client may give its name to a later claim. Returns how
/// many keys were deleted.
async fn delete_created(
    client: &EtcdClient,
    key: &[u8],
    created: i64,
    repeated: &AtomicBool,
) -> Result<i64, Failed> {
    let txn = TxnRequest {
        compare: vec![Compare::created(key, created)],
        success: vec![Op::Delete(DeleteRequest::one(key)).into()],
        failure: Vec::new(),
    };
    Ok(client.cluster.call(txn, Some(repeated)).await?.deleted(0))
}

/// Takes the claim out of the waiters of its queue.
pub(crate) fn leave_queue(client: &EtcdClient, state: &ClaimState) {
    if let Phase::Queued(revision) = state.phase()
        && let Some(queue) = client.watched(&state.queue)
    {
        queue.remove_waiter(revision);
    }
}

/// Deletes the claim's key, unless it is detached: by a request of this claim whose answer was lost, or by a program that knows the claim's id
/// and has extended the grant. Such a key has a lease of its own, and others rely on it.
async fn withdraw_unless_detached(client: &Arc<EtcdClient>, state: &ClaimState) -> Result<(), Failed> {
    let Some(key) = state.key() else { return Ok(()) };
    for _ in 0..TRIES {
        let found = client.cluster.call(RangeRequest::one(key.to_vec()), None).await?.kvs.into_iter().next();
        // Once the entry has deleted the key, a later claim may have its name.
        let is_own = |record: &ClaimRecord| !record.detached && record.id == Some(state.claim.id);
        let written = match found {
            // A record of a later format was written by another program.
            Some(kv) if !ClaimRecord::read(&kv.value).is_ok_and(|record| is_own(&record)) => return Ok(()),
            // Another program has taken the grant over.
            Some(kv) if !state.may_have_given(kv.lease) => return Ok(()),
            Some(kv) => kv.mod_revision,
            None => 0,
        };
        // A creation may still arrive.
        if state.create_unanswered.load(Relaxed) {
            return withdraw(client, state).await.map(drop);
        }
        leave_queue(client, state);
        let txn = TxnRequest {
            compare: vec![Compare::written(key, written)],
            success: vec![Op::Delete(DeleteRequest::one(key)).into()],
            failure: Vec::new(),
        };
        if client.cluster.call(txn, None).await?.succeeded {
            if let Some(lease) = state.lease().filter(|lease| lease.dedicated) {
                client.leases.revoke_unused(lease.id);
            }
            return Ok(());
        }
    }
    Err(Failed::contested())
}

/// A key that stays until all leases have expired that it may have. If it is detached, it stays longer.
struct AbandonedKey {
    client: Arc<EtcdClient>,
    state: Arc<ClaimState>,
}

impl AbandonedClaim for AbandonedKey {
    fn has_ended(&self) -> bool {
        let is_over = || self.state.own_leases().iter().all(|lease| lease.is_over(self.client.now()));
        // Closing the client ends its leases.
        self.client.cluster.is_closed() || is_over()
    }

    async fn remove(&mut self) -> Result<()> {
        Ok(withdraw_unless_detached(&self.client, &self.state).await?)
    }
}

/// Deletes the claim's key in the background.
pub(crate) fn clean_up(client: &Arc<EtcdClient>, state: Arc<ClaimState>) {
    remove_abandoned(&client.runtime, AbandonedKey { client: Arc::clone(client), state });
}

/// Deletes the key of a detached claim.
pub(crate) async fn release_detached(
    client: &Arc<EtcdClient>,
    queue: &[u8],
    id: ClaimId,
) -> Result<Deletion, Failed> {
    let (_, kvs) = client.queue(queue).await?;
    let mut later = None;
    let found = kvs.into_iter().find_map(|kv| {
        let record = ClaimRecord::read(&kv.value).map_err(|error| later = Some(error)).ok()?;
        (record.id == Some(id)).then_some((record, kv))
    });
    let Some((record, kv)) = found else {
        // A record of a later format may be this claim's.
        return later.map_or(Ok(Deletion::default()), |later| Err(later.into()));
    };
    let repeated = AtomicBool::new(false);
    let deleted = delete_created(client, &kv.key, kv.create_revision, &repeated).await?;
    if record.detached {
        client.leases.revoke_unused(kv.lease);
    }
    Ok(Deletion { found: deleted > 0, repeated: repeated.into_inner() })
}
