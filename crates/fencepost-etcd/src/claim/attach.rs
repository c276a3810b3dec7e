//! Taking over the key of a detached claim, or extending its lease.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::ClaimRecord;
use fencepost_core::backend::admission::Held;

use crate::claim::state::{ClaimState, Phase};
use crate::client::{EtcdClient, TRIES};
use crate::error::Failed;
use crate::keys;
use crate::rpc::proto::{Compare, Op, PutRequest, RequestOp, TxnRequest};

/// Takes over the key of a detached claim. Returns its create revision; `None`: the claim is gone.
pub(crate) async fn attach(client: Arc<EtcdClient>, state: Arc<ClaimState>) -> Result<Option<i64>, Failed> {
    let mut attachment = Attachment { client: &client, state: &state, ended: None };
    // Other programs that know the secret write the key too, with each renewal for example.
    for _ in 0..TRIES {
        if let AttemptOutcome::Done(revision) = attachment.attempt().await? {
            return Ok(revision);
        }
    }
    Err(Failed::contested())
}

struct Attachment<'a> {
    client: &'a Arc<EtcdClient>,
    state: &'a Arc<ClaimState>,
    /// The key's lease that had ended when the key was last read.
    ended: Option<i64>,
}

enum AttemptOutcome {
    /// The create revision of the key that the claim holds; `None`: the claim is gone.
    Done(Option<i64>),
    /// Another program wrote the key meanwhile.
    Changed,
}

impl Attachment<'_> {
    async fn attempt(&mut self) -> Result<AttemptOutcome, Failed> {
        let (client, state) = (self.client, self.state);
        let claim = &state.claim;
        let (_, kvs) = client.queue(&state.queue).await?;
        let (mut later, mut held, mut all_hold) = (None, Held::default(), true);
        let found = kvs.into_iter().find_map(|kv| {
            let read = keys::mode(&kv).and_then(|mode| Ok((mode, ClaimRecord::read(&kv.value)?)));
            let (mode, record) = read.map_err(|error| later = Some(error)).ok()?;
            // A claim that waits has a lease as well, and nothing to take over. Behind a record of a later format nobody can tell who holds.
            all_hold &= later.is_none() && held.admit(mode);
            let same = record.id == Some(claim.id) && record.mode == Some(claim.want().mode);
            (same && all_hold && !record.evicted).then_some((kv, record))
        });
        let Some((kv, mut record)) = found.filter(|(kv, _)| self.ended != Some(kv.lease)) else {
            // A record of a later format may be this claim's.
            return later.map_or(Ok(AttemptOutcome::Done(None)), |later| Err(later.into()));
        };
        let ttl = claim.ttl();
        // No program shortens the lease: a holder that may be alive counts on it until its next renewal, and a program that has extended it counts
        // on that.
        let mut length = ttl;
        if kv.lease != 0 {
            let sent = client.now();
            let left = match client.cluster.keep_alive(kv.lease, sent + client.config.timeout).await {
                Ok(reply) => reply.ttl,
                Err(failure) if failure.is_lease_not_found() => 0,
                Err(failure) => return Err(failure),
            };
            if left <= 0 {
                // Another program may have moved the key and ended this lease.
                self.ended = Some(kv.lease);
                return Ok(AttemptOutcome::Changed);
            }
            if left.unsigned_abs() >= ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0) {
                if record.detached && !claim.renewed {
                    // The write makes a move of the key fail that does not know of this extension.
                    let put = PutRequest::with_its_lease(kv.key.clone(), kv.value.clone());
                    let txn = TxnRequest {
                        compare: vec![Compare::written(&kv.key, kv.mod_revision)],
                        success: vec![Op::Put(put).into()],
                        failure: Vec::new(),
                    };
                    if !client.cluster.call(txn, None).await?.succeeded {
                        return Ok(AttemptOutcome::Changed);
                    }
                    claim.confirm(sent, ttl);
                    return Ok(AttemptOutcome::Done(Some(kv.create_revision)));
                }
                // A key that is not detached could be deleted by the client that has its lease.
                length = Duration::from_secs(left.unsigned_abs());
            }
        }
        let was_detached = std::mem::replace(&mut record.detached, !claim.renewed);
        let value = record.to_bytes();
        // A new one for each attempt, because the key's lease may have been renewed since the last one was made.
        let lease = client.leases.dedicated(length).await?;
        let put = PutRequest::leased(kv.key.clone(), value.clone(), lease.id);
        let txn = TxnRequest {
            compare: vec![Compare::written(&kv.key, kv.mod_revision)],
            success: vec![Op::Put(put).into()],
            failure: vec![RequestOp::key(&kv.key)],
        };
        let reply = client.cluster.call(txn, None).await?;
        let moved =
            reply.key(0).filter(|now| now.create_revision == kv.create_revision && now.lease == lease.id);
        let at = match moved {
            _ if reply.succeeded => reply.revision(),
            // An earlier attempt took effect, and its reply was lost.
            Some(now) => now.mod_revision,
            None => {
                client.leases.revoke_unused(lease.id);
                return Ok(AttemptOutcome::Changed);
            }
        };
        // A detached claim had a dedicated lease.
        if was_detached && kv.lease != 0 {
            client.leases.revoke_unused(kv.lease);
        }
        let sent = lease.sent();
        client.took_over(&kv.key, state);
        state.take_over(lease, (kv.key, kv.create_revision), value, at);
        if !claim.confirm(sent, ttl) {
            return Ok(AttemptOutcome::Done(None));
        }
        state.set_phase(Phase::Holding(kv.create_revision));
        client.granted(state);
        Ok(AttemptOutcome::Done(Some(kv.create_revision)))
    }
}
