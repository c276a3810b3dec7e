//! The request for a lock: one transaction creates the claim's key and reads the keys before it.
//!
//! Invariants, which hold although each step may be repeated after a lost reply:
//! - A claim's key is its own and is created at most once: only if it does not exist and the claim is not withdrawn. A withdrawn claim has a
//!   tombstone, see [`withdraw`](crate::claim::withdraw).
//! - The key is created under a lease that the server knows, or not at all.
//! - A claim with a smaller create revision is always before this one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use fencepost_core::backend::admission::Held;
use fencepost_core::{ClaimRecord, LaterFormat, Mode};

use crate::claim::confirm::confirm;
use crate::claim::state::{ClaimState, Phase};
use crate::client::{EtcdClient, TRIES};
use crate::error::Failed;
use crate::keys;
use crate::lease::Lease;
use crate::rpc::proto::{
    Compare, DeleteRequest, KeyValue, Op, PutRequest, RangeRequest, RequestOp, TxnReply, TxnRequest,
};

/// The first request of a shared claim reads at most `MAX_READ` keys: the contenders that may hold the lock together with it.
const MAX_READ: i64 = 16;
/// The shared lease under which a claim with a fixed lease waits.
const WAITING: Duration = Duration::from_secs(10);

/// The outcome of a request for a lock. The number is the key's create revision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The claim is at the front of the queue.
    First(i64),
    Queued(i64),
    /// Others hold the lock, and the claim has left nothing.
    Busy,
    /// The lease has expired, or the claim is withdrawn.
    Gone,
}

/// Requests the lock.
pub(crate) async fn enter(client: Arc<EtcdClient>, state: Arc<ClaimState>) -> Result<Outcome, Failed> {
    let lease = match state.first_lease() {
        Some(lease) => Arc::clone(lease),
        None => {
            // A claim with a fixed lease gets a dedicated one with its grant.
            let ttl = if state.claim.renewed { state.claim.ttl() } else { WAITING };
            client.leases.shared(ttl).await?
        }
    };
    let (lease, key) = state.choose_key(lease);
    if lease.is_over(client.now()) || state.claim.is_leaving() {
        return Ok(Outcome::Gone);
    }
    let request = Request { client: &client, state: &state, lease, key };
    let outcome = if state.claim.waits { request.enqueue().await } else { request.try_enter().await };
    match outcome {
        Err(failure) if failure.is_lease_not_found() => {
            client.lose_certain(lease, lease.has_time(client.now()));
            Ok(Outcome::Gone)
        }
        outcome => outcome,
    }
}

struct Request<'a> {
    client: &'a EtcdClient,
    state: &'a ClaimState,
    lease: &'a Arc<Lease>,
    key: &'a [u8],
}

/// The position of a claim in its queue.
enum Position {
    /// All claims before it leave room for it. The number is its key's create revision, or 0 without a key.
    First(i64),
    Behind,
    /// Not all keys that matter were read.
    Unknown,
}

impl Request<'_> {
    fn mode(&self) -> Mode {
        self.state.claim.want().mode
    }

    fn range(&self, limit: i64) -> RequestOp {
        let queue = &self.state.queue;
        Op::Range(RangeRequest::by_creation(queue.clone(), keys::end(queue), limit)).into()
    }

    /// Creates the key if `condition` holds and the claim is not withdrawn. Then, or otherwise after its own key, reads up to `limit` keys of
    /// the queue.
    async fn create(
        &self,
        condition: Compare,
        limit: Option<i64>,
        read_created: bool,
    ) -> Result<TxnReply, Failed> {
        let tombstone = keys::tombstone(&self.client.config.prefix, (self.lease.id, self.state.number));
        let put = PutRequest::leased(self.key.to_vec(), self.state.value(), self.lease.id);
        let read = limit.map(|limit| self.range(limit));
        let txn = TxnRequest {
            compare: vec![condition, Compare::created(&tombstone, 0)],
            success: [Op::Put(put).into()].into_iter().chain(read.clone().filter(|_| read_created)).collect(),
            failure: [RequestOp::key(self.key)].into_iter().chain(read).collect(),
        };
        let used = self.state.key_used.swap(true, Relaxed);
        let reply = self.client.cluster.call(txn, Some(&self.state.create_unanswered)).await;
        let Err(failure) = reply else { return reply };
        if failure.is_unknown() {
            return Err(failure);
        }
        // A server that runs out of space by a request carries it out and refuses it. For deletions it needs no space.
        if failure.is_no_space() {
            let repeated = AtomicBool::new(false);
            let deleted = self.client.cluster.call(DeleteRequest::one(self.key), Some(&repeated)).await;
            // A deletion without an answer may arrive later, so no key may have this name again: neither one of this claim, which gives up here
            // and is made anew, nor one of a later claim.
            if repeated.into_inner() || deleted.as_ref().is_err_and(Failed::is_unknown) {
                self.state.create_unanswered.store(true, Relaxed);
                self.state.set_phase(Phase::Gone);
                return Err(failure.unknown());
            }
            if deleted.is_err() {
                return Err(failure.unknown());
            }
        }
        self.state.key_used.store(used, Relaxed);
        Err(failure)
    }

    /// Returns whether an earlier attempt of this claim, whose reply was lost, has created the key.
    fn is_own(&self, kv: &KeyValue) -> Result<bool, LaterFormat> {
        Ok(ClaimRecord::read(&kv.value)?.id == Some(self.state.claim.id))
    }

    /// Joins the queue.
    async fn enqueue(&self) -> Result<Outcome, Failed> {
        // With others before it the claim is granted by the watch, and nothing has to be read.
        let watched = self.client.watched(&self.state.queue).is_some_and(|queue| !queue.is_empty());
        let limit = if self.mode() == Mode::Exclusive { 1 } else { MAX_READ };
        let reply = self.create(Compare::created(self.key, 0), (!watched).then_some(limit), true).await?;
        let revision = match reply.key(0) {
            _ if reply.succeeded => reply.revision(),
            Some(kv) if self.is_own(kv)? => kv.create_revision,
            _ => return Ok(Outcome::Gone),
        };
        Ok(match reply.range(1).map(|range| self.position(&range.kvs, range.more)).transpose()? {
            Some(Position::First(revision)) => Outcome::First(revision),
            _ => Outcome::Queued(revision),
        })
    }

    /// Creates the key only if the claim holds the lock at once.
    ///
    /// A key that is created and then taken back makes other tries busy for a moment. So the creation requires that the queue is as it was
    /// when it was read. It fails only if another claim entered, and is made up to `TRIES` times. The last creation requires nothing.
    async fn try_enter(&self) -> Result<Outcome, Failed> {
        let queue = &self.state.queue;
        let nobody = Compare::nothing(queue.clone(), keys::end(queue));
        let mut reply = self.create(nobody, Some(MAX_READ), false).await?;
        for round in 1..=TRIES {
            if reply.succeeded {
                return Ok(Outcome::First(reply.revision()));
            }
            let range = reply.range(1).ok_or_else(Failed::malformed)?;
            let mut revision = reply.revision();
            let mut position = self.position(&range.kvs, range.more)?;
            if matches!(position, Position::Unknown) {
                let (read_at, kvs) = self.client.queue(queue).await?;
                (revision, position) = (read_at, self.position(&kvs, false)?);
            }
            let exists = match reply.key(0) {
                Some(kv) if !self.is_own(kv)? => return Ok(Outcome::Gone),
                found => found.is_some(),
            };
            match (position, exists) {
                (Position::First(revision), true) => return Ok(Outcome::First(revision)),
                (Position::Behind | Position::Unknown, true) => return self.take_back().await,
                _ if self.state.claim.is_leaving() => return Ok(Outcome::Gone),
                // All holders leave room for the claim.
                (Position::First(_), false) if round < TRIES => {
                    let unchanged = Compare::unchanged(queue.clone(), keys::end(queue), revision);
                    reply = self.create(unchanged, Some(0), false).await?;
                }
                (Position::First(_), false) => break,
                (Position::Behind | Position::Unknown, false) => {
                    self.state.key_used.store(false, Relaxed);
                    return Ok(Outcome::Busy);
                }
            }
        }
        let reply = self.create(Compare::created(self.key, 0), Some(0), true).await?;
        if !reply.succeeded && !reply.key(0).is_some_and(|kv| self.is_own(kv).unwrap_or(false)) {
            return Ok(Outcome::Gone);
        }
        match reply.range(1).map(|range| self.position(&range.kvs, false)).transpose()? {
            Some(Position::First(revision)) => Ok(Outcome::First(revision)),
            // Another claim was faster.
            _ => self.take_back().await,
        }
    }

    /// Deletes the key. If that fails, the next attempt finds the key and deletes it.
    async fn take_back(&self) -> Result<Outcome, Failed> {
        let repeated = AtomicBool::new(false);
        self.client.cluster.call(DeleteRequest::one(self.key), Some(&repeated)).await?;
        self.state.key_used.store(repeated.into_inner(), Relaxed);
        Ok(Outcome::Busy)
    }

    /// Returns the claim's position. Without a key of its own it is the last.
    fn position(&self, kvs: &[KeyValue], more: bool) -> Result<Position, LaterFormat> {
        let mut held = Held::default();
        for kv in kvs.iter().filter(|kv| keys::contends(&self.state.queue, &kv.key)) {
            let own = kv.key == self.key;
            let mode = if own { self.mode() } else { keys::mode(kv)? };
            if !held.admit(mode) {
                return Ok(Position::Behind);
            }
            if own {
                return Ok(Position::First(kv.create_revision));
            }
        }
        Ok(match held.fits(self.mode()) {
            _ if more => Position::Unknown,
            true => Position::First(0),
            false => Position::Behind,
        })
    }
}

/// Confirms the grant of a claim at the front of the queue. Returns whether the claim holds the lock.
pub(crate) async fn hold(
    client: &Arc<EtcdClient>,
    state: &Arc<ClaimState>,
    revision: i64,
) -> Result<bool, Failed> {
    let claim = &state.claim;
    let Some(lease) = state.lease() else { return Ok(false) };
    // A claim may be granted long after its last renewal.
    if claim.renewed
        && lease.until().since(client.now()) < lease.ttl / 2
        && let Err(failure) = client.leases.renew(&lease, claim.ttl()).await
        && !failure.is_lease_not_found()
    {
        return Err(failure);
    }
    if !lease.is_over(client.now()) {
        confirm(client, state, revision, &lease).await?;
    }
    if !claim.validity.is_confirmed() || !claim.is_valid() {
        state.lose(claim.runtime.session_loss());
        return Ok(false);
    }
    state.set_phase(Phase::Holding(revision));
    client.granted(state);
    Ok(state.phase() == Phase::Holding(revision))
}
