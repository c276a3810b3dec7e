//! Leaving: the claim's key is deleted.
//!
//! Requests are served side by side, so one that makes the key and was never answered may take effect after its claim has left.
//! Such a claim leaves a tombstone under the lease that the key would be made under: while the lease lives the tombstone keeps
//! the key from being made, and after that there is no lease to make it under. It ends with the lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fencepost_core::{ClaimId, ClaimRecord};

use crate::error::Failure;
use crate::keys;
use crate::member::{Member, Stand};
use crate::net::{DELETE, TXN};
use crate::proto::{DeleteRequest, DeleteResponse, Op, PutRequest, TxnRequest, TxnResponse};
use crate::shared::{PAUSE, Shared};

/// What a request to leave has found.
pub(crate) struct Found {
    /// The key was there.
    pub(crate) key: bool,
    /// The request was made more than once, so an earlier one may have deleted it.
    pub(crate) repeated: bool,
}

/// Deletes the member's key and all that belongs to it.
pub(crate) async fn leave(shared: &Arc<Shared>, member: &Member) -> Result<Found, Failure> {
    let (Some(key), Some(home)) = (member.key(), member.home()) else {
        return Ok(Found { key: false, repeated: false });
    };
    if let Stand::Waiting(revision) = member.stand()
        && let Some(folder) = shared.watched(&member.folder)
    {
        folder.leave(revision);
    }
    if let Some(run) = member.alone.get() {
        shared.calm.end(&member.folder, *run);
    }
    let repeated = AtomicBool::new(false);
    let question = DeleteRequest { key: key.to_vec(), range_end: Vec::new() };
    let mut deleted = None;
    if member.doubt.load(Ordering::Relaxed) {
        let tombstone = keys::tombstone(&shared.config.prefix, (home.id, member.number));
        let put = PutRequest { key: tombstone, value: Vec::new(), lease: home.id, ignore_lease: false };
        let success = vec![Op::Delete(question.clone()).into(), Op::Put(put).into()];
        let txn = TxnRequest { success, ..TxnRequest::default() };
        match shared.net.insist::<_, TxnResponse>(TXN, txn, &repeated).await {
            Ok(answer) => deleted = Some(answer.deleted(0)),
            // Nothing can be made under it any more. The key may hang on another one by now. A server that is full makes nothing either, and
            // deletes what is there.
            Err(failure) if failure.is_lease_gone() || failure.is_full() => {}
            Err(failure) => return Err(failure),
        }
    }
    let deleted = match deleted {
        Some(deleted) => deleted,
        None => shared.net.insist::<_, DeleteResponse>(DELETE, question, &repeated).await?.deleted,
    };
    if let Some(lease) = member.lease().filter(|lease| lease.private) {
        shared.revoke(lease.id);
    }
    Ok(Found { key: deleted > 0, repeated: repeated.into_inner() })
}

/// Deletes the member's key until that is confirmed, or all leases are over that it can hang on.
pub(crate) async fn clean_up(shared: Arc<Shared>, member: Arc<Member>) {
    let clock = shared.runtime.clock();
    let is_over = || {
        let leases = [member.home().cloned(), member.lease()];
        leases.into_iter().flatten().all(|lease| lease.is_over(clock.now()))
    };
    // When the client is closed its leases are over.
    while !shared.net.is_closed() && !is_over() {
        if leave(&shared, &member).await.is_ok() {
            return;
        }
        clock.sleep_until(clock.now() + PAUSE).await;
    }
}

/// Deletes the key of a detached claim, wherever in its folder it is.
pub(crate) async fn release(shared: &Arc<Shared>, folder: &[u8], id: ClaimId) -> Result<Found, Failure> {
    let (_, line) = shared.line(folder).await?;
    let repeated = AtomicBool::new(false);
    for kv in line {
        let payload = ClaimRecord::read(&kv.value);
        if payload.id != Some(id) {
            continue;
        }
        let question = DeleteRequest { key: kv.key, range_end: Vec::new() };
        let answer: DeleteResponse = shared.net.call(DELETE, question, Some(&repeated)).await?;
        if payload.detached {
            shared.revoke(kv.lease);
        }
        return Ok(Found { key: answer.deleted > 0, repeated: repeated.into_inner() });
    }
    Ok(Found { key: false, repeated: false })
}
