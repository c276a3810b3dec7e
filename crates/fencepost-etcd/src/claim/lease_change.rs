//! Changes of the lease of a claim's key.

use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use fencepost_core::{ClaimRecord, Loss, Moment};

use crate::claim::state::{ClaimState, Phase};
use crate::client::{EtcdClient, TRIES};
use crate::error::Failed;
use crate::keys;
use crate::lease::Lease;
use crate::rpc::proto::{Compare, KeyValue, Op, Origin, PutRequest, RangeRequest, RequestOp, TxnRequest};

/// Why a key is written with a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Its claim keeps the lock under the lease that it has.
    Keep,
    /// Its claim keeps the lock for longer, or under a lease of its own.
    Extend,
    /// Its grant is to belong to no process.
    Detach,
    /// Its claim is evicted or has expired, and other claims may renew its lease without end.
    Evict,
}

/// The outcome of such a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moved {
    /// The key has the lease, or one of another program that the claim counts on for now, because it lasts longer. The key of an evicted claim may
    /// have any lease that nobody here renews.
    Done,
    /// The key is gone.
    Gone,
    /// An operator has evicted the claim. The claim has noted who, and why, but may not be told yet.
    Evicted,
    /// The claim keeps the lock no more: it is being detached, or it was lost.
    Ended,
    /// By another change the claim has another lease now, which lasts for at least as long as the given one.
    Superseded,
    /// Another program that has the text of the claim's lease has moved the key to a lease that lasts longer than the given one. The key stays
    /// there, because that program may count on it. A lease that lasts until this moment is long enough.
    Outlived(Moment),
}

/// Writes the claim's key with this lease, and confirms a claim that keeps the lock. The write requires that nobody has written the key since it
/// was read, so that a late request does not move it back. If the claim is evicted, the key is moved only for that purpose. The mark in the
/// record tells that, because the note is deleted once the holder was told.
///
/// No write moves the key to a lease that ends before the time for which somebody may count on the key. Whoever counts on a lease of the key has
/// written the key after the lease was measured, so that the write of somebody who does not know of that fails, and measures as well. The writes of
/// one claim come one after the other. The caller drives this to its end, because others wait for it. Its requests have time limits.
pub(crate) async fn move_key(
    client: &EtcdClient,
    state: &ClaimState,
    revision: i64,
    lease: &Arc<Lease>,
    purpose: Purpose,
) -> Result<Moved, Failed> {
    let (Some(key), Some(id)) = (state.key(), state.key_id()) else { return Ok(Moved::Gone) };
    let _only = state.lease_changes.lock().await;
    let claim = &state.claim;
    let note = keys::eviction(&client.config.prefix, id, revision);
    let mut record = ClaimRecord::read(&state.value())?;
    record.detached |= purpose == Purpose::Detach;
    let (known, mut written) = (state.lease(), state.moved_at().max(revision));
    // After `written` is read, because that may be the eviction's own write.
    if purpose != Purpose::Evict && claim.validity.ended() == Some(Loss::Evicted) {
        return Ok(Moved::Evicted);
    }
    let keeps = matches!(purpose, Purpose::Keep | Purpose::Extend);
    if keeps && (state.detaching.load(Acquire) || state.phase() == Phase::Gone || !claim.is_valid()) {
        return Ok(Moved::Ended);
    }
    // Since the eviction was decided, a detachment may have moved the key to a lease of its own. Nobody renews that, and others count on it.
    if purpose == Purpose::Evict && state.ends_by_itself() {
        return Ok(Moved::Done);
    }
    if let Some(known) = known.as_ref().filter(|known| keeps && known.id != lease.id) {
        // The shared lease under which a claim has waited is none for a fixed grant, because other claims renew it.
        let is_its_own = claim.renewed || known.dedicated;
        if purpose == Purpose::Keep || is_its_own && known.until() >= lease.until() {
            return Ok(Moved::Superseded);
        }
    }
    for _ in 0..TRIES {
        // Until a reply tells the lease; the client's tasks may end before that.
        state.try_lease(lease);
        let sent = lease.sent();
        let put = PutRequest::leased(key.to_vec(), record.to_bytes(), lease.id);
        let txn = TxnRequest {
            compare: vec![Compare::created(key, revision), Compare::written(key, written)],
            success: vec![Op::Put(put).into()],
            failure: vec![RequestOp::key(key), RequestOp::key(&note)],
        };
        let reply = match client.cluster.call(txn, None).await {
            Err(failure) if failure.is_no_space() && purpose == Purpose::Keep => {
                return keep_without_space(client, state, revision, lease, &note).await;
            }
            reply => reply?,
        };
        if reply.succeeded {
            let before = state.set_lease(Arc::clone(lease), reply.revision());
            if let Some(before) = before.filter(|before| before.dedicated) {
                client.leases.revoke_unused(before.id);
            }
            if purpose != Purpose::Evict {
                claim.confirm(sent, claim.ttl().min(lease.ttl));
            }
            return Ok(Moved::Done);
        }
        // Somebody else has written the key, or an earlier attempt has, whose reply was lost.
        let Some(kv) = reply.key(0).filter(|kv| kv.create_revision == revision) else {
            return Ok(gone_or_evicted(state, revision, false, reply.key(1)));
        };
        let found = ClaimRecord::read(&kv.value)?;
        if found.evicted && purpose != Purpose::Evict {
            return Ok(gone_or_evicted(state, revision, true, reply.key(1)));
        }
        (written, record.evicted) = (kv.mod_revision, found.evicted);
        let is_moved = kv.lease != lease.id && (found.detached || !state.may_have_given(kv.lease));
        if purpose == Purpose::Evict && is_moved {
            // A detachment whose answer was lost, or another program, has moved the key to a lease that nobody here renews. Others may count on it.
            return Ok(Moved::Done);
        }
        if purpose == Purpose::Evict || !claim.is_lease_given() || kv.lease == lease.id {
            continue;
        }
        let (asked, left, origin) = time_left(client, kv.lease, reply.origin()).await?;
        // The server tells whole seconds, and forgets the rest.
        let most = client.now() + left + Duration::from_secs(1);
        if most <= lease.sent() + lease.ttl {
            continue;
        }
        let is_enough = asked + left >= lease.sent() + claim.ttl();
        if !keeps || !is_enough {
            // Some time passes until there is a longer lease.
            return Ok(Moved::Outlived(most + Duration::from_secs(1)));
        }
        let put = PutRequest::with_its_lease(key.to_vec(), kv.value.clone());
        let txn = TxnRequest {
            compare: vec![Compare::created(key, revision), Compare::written(key, written)],
            success: vec![Op::Put(put).into()],
            failure: Vec::new(),
        };
        let reply = client.cluster.call(txn, None).await?;
        // A leader that was stopped tells what it knew before another one followed.
        if reply.succeeded && reply.origin().term == origin.term {
            claim.confirm(asked, claim.ttl().min(left));
            return Ok(Moved::Done);
        }
    }
    Err(Failed::contested())
}

/// Returns how much time a lease has left, as a leader tells it by a member that knew this leader before and after it asked: a member's term
/// never falls. Also when that was asked, and whom. `known` is the member of the request before.
async fn time_left(
    client: &EtcdClient,
    lease: i64,
    known: Origin,
) -> Result<(Moment, Duration, Origin), Failed> {
    let mut seen = vec![known];
    for _ in 0..TRIES {
        let asked = client.now();
        let (left, origin) = client.leases.time_left(lease).await?;
        if seen.contains(&origin) {
            return Ok((asked, left, origin));
        }
        // Each request may go to another member.
        seen.push(origin);
    }
    Err(Failed::leader_changed())
}

/// Returns the outcome for a claim whose key is gone or has the mark of an eviction, and notes who has evicted it and why. An eviction at once
/// deletes the key and leaves only the note.
fn gone_or_evicted(state: &ClaimState, revision: i64, has_mark: bool, note: Option<&KeyValue>) -> Moved {
    if !has_mark && note.is_none() {
        return Moved::Gone;
    }
    let by = note.map(|note| String::from_utf8_lossy(&note.value));
    state.note_eviction(revision, &by.unwrap_or_default());
    Moved::Evicted
}

/// Confirms a claim that keeps the lock at a server that has no space left, and so refuses each write: by a look at the key. Other programs cannot
/// move the key either. A write of theirs that was sent before and arrives when there is space again is not stopped by a look, so it may move the
/// key to a lease that ends before this claim's next renewal.
async fn keep_without_space(
    client: &EtcdClient,
    state: &ClaimState,
    revision: i64,
    lease: &Arc<Lease>,
    note: &[u8],
) -> Result<Moved, Failed> {
    let claim = &state.claim;
    let sent = lease.sent();
    // No transaction, because etcd before 3.5.7 refuses even one that only reads.
    let read = async |key: &[u8]| {
        let found = client.cluster.call(RangeRequest::one(key.to_vec()), None).await?;
        Ok::<_, Failed>(found.kvs.into_iter().next())
    };
    let found = read(state.key().unwrap_or_default()).await?.filter(|kv| kv.create_revision == revision);
    let has_mark = match &found {
        Some(kv) => ClaimRecord::read(&kv.value)?.evicted,
        None => false,
    };
    let Some(kv) = found.filter(|_| !has_mark) else {
        return Ok(gone_or_evicted(state, revision, has_mark, read(note).await?.as_ref()));
    };
    if kv.lease == lease.id {
        claim.confirm(sent, claim.ttl().min(lease.ttl));
    } else {
        // Another program has moved the key to this lease. It may not renew it, and a renewal needs no space.
        let asked = client.now();
        let left = match client.cluster.keep_alive(kv.lease, asked + client.config.timeout).await {
            Ok(reply) => reply.ttl,
            // The key is gone with its lease, or was moved meanwhile. The next renewal finds out.
            Err(failure) if failure.is_lease_not_found() => 0,
            Err(failure) => return Err(failure),
        };
        let left = Duration::from_secs(left.try_into().unwrap_or_default());
        // A claim of which nothing was confirmed is in doubt, and asks again after a pause.
        if !left.is_zero() {
            claim.confirm(asked, claim.ttl().min(left));
        }
    }
    Ok(Moved::Done)
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use fencepost_core::{
        Attempt, Backend, BackendUrl, Claim, ClaimId, Client, Entry, HolderInfo, How, Mode, Name, Registry,
        Reply, Result, Runtime, Want,
    };
    use fencepost_testkit::etcd::{Config, Etcd};
    use fencepost_testkit::needs;

    use super::*;
    use crate::backend::EtcdBackend;
    use crate::rpc::proto::DeleteRequest;

    static CLIENT: OnceLock<Arc<EtcdClient>> = OnceLock::new();

    /// Opens the engine, and notes its client.
    fn noted(url: BackendUrl, runtime: Runtime) -> Reply<'static, Result<Arc<dyn Backend>>> {
        Reply::coming(async move {
            let backend = EtcdBackend::open(crate::config::Config::parse(&url)?, runtime).await?;
            assert!(CLIENT.set(Arc::clone(&backend.client)).is_ok(), "it is opened once");
            Ok(backend as Arc<dyn Backend>)
        })
    }

    /// A renewal that finds the key on the lease of an extension would put it back on a lease that the extended claim does not count on.
    #[tokio::test(flavor = "multi_thread")]
    async fn an_extension_and_a_renewal_at_the_same_time_leave_the_key_on_the_longer_lease() {
        needs!(ETCD);
        let (short, long) = (Duration::from_secs(30), Duration::from_secs(90));
        let etcd = Etcd::start(&Config::new()).unwrap();
        let registry = Registry::new().with("etcd", noted);
        let url = format!("{}?timeout=20s", etcd.url());
        let locks =
            Client::builder().ttl(short).release_timeout(short).connect(&registry, &url).await.unwrap();
        for number in 1..=20 {
            let guard = locks.mutex("stock").unwrap().lock().await.unwrap();
            let client = CLIENT.get().unwrap();
            // The number is used again with each grant.
            let state = client.state(1).unwrap();
            let (revision, lease) = (state.phase().revision().unwrap(), state.lease().unwrap());
            let longer = client.leases.dedicated(long).await.unwrap();
            state.claim.set_ttl(long);
            // The first attempt of both finds this write, so that their next ones compete.
            let key = state.key().unwrap().to_vec();
            let again = PutRequest::leased(key.clone(), state.value(), lease.id);
            let again = TxnRequest { success: vec![Op::Put(again).into()], ..TxnRequest::default() };
            client.cluster.call(again, None).await.unwrap();
            let extend = move_key(client, &state, revision, &longer, Purpose::Extend);
            let keep = move_key(client, &state, revision, &lease, Purpose::Keep);
            let (extended, kept) = tokio::join!(extend, keep);
            assert_eq!(extended.unwrap(), Moved::Done);
            let found = client.cluster.call(RangeRequest::one(key), None).await.unwrap();
            assert_eq!(found.kvs[0].lease, longer.id, "{number}: the renewal was {kept:?}");
            assert_eq!(kept.unwrap(), Moved::Superseded);
            assert!(guard.remaining() > short, "{number}: the guard counts on {:?}", guard.remaining());
            // A later extension for less time, and one whose lease may have been moved by another program.
            let less = client.leases.dedicated(2 * short).await.unwrap();
            for _ in 0..2 {
                let extended = move_key(client, &state, revision, &less, Purpose::Extend).await.unwrap();
                assert_eq!(extended, Moved::Superseded);
                state.claim.give_lease();
            }
            guard.release().await.unwrap();
        }
        locks.close().await;
    }

    /// A claim that holds the lock `stock`, without the layers above the engine, so that nobody renews it.
    struct Alone {
        client: Arc<EtcdClient>,
        state: Arc<ClaimState>,
        revision: i64,
        entry: Entry,
        /// Has the runtime.
        helper: Client,
    }

    impl Alone {
        async fn holding(etcd: &Etcd) -> Alone {
            let helper = Client::builder().connect(&Registry::new(), "memory:").await.unwrap();
            let runtime = helper.runtime().clone();
            let url = BackendUrl::parse(&format!("{}?timeout=60s", etcd.url())).unwrap();
            let backend = EtcdBackend::open(crate::config::Config::parse(&url).unwrap(), runtime.clone())
                .await
                .unwrap();
            let client = Arc::clone(&backend.client);
            let want = Want { name: Name::new("stock").unwrap(), mode: Mode::Exclusive };
            let (id, holder) = (ClaimId::from_u128(7), HolderInfo::labelled("test"));
            let claim = Arc::new(Claim::new(id, want, LEASE, holder, runtime));
            let mut entry = backend.entry(claim, How::Enter);
            assert!(matches!(entry.attempt().await.unwrap(), Attempt::Granted(_)));
            let state = client.state(1).unwrap();
            let revision = state.phase().revision().unwrap();
            Alone { client, state, revision, entry, helper }
        }

        async fn move_key(&self, lease: &Arc<Lease>, purpose: Purpose) -> Moved {
            move_key(&self.client, &self.state, self.revision, lease, purpose).await.unwrap()
        }

        async fn dedicated(&self) -> Arc<Lease> {
            self.client.leases.dedicated(LEASE).await.unwrap()
        }

        /// Leaves the note of an eviction, and writes the key for it or deletes it. No watch tells the claim of that.
        async fn evict(&self, key: RequestOp) {
            self.client.remove(&self.state);
            let note =
                keys::eviction(&self.client.config.prefix, self.state.key_id().unwrap(), self.revision);
            let note = PutRequest::leased(note, b"maintenance".to_vec(), self.dedicated().await.id);
            let txn = TxnRequest { success: vec![key, Op::Put(note).into()], ..TxnRequest::default() };
            self.client.cluster.call(txn, None).await.unwrap();
        }

        /// Fills the server, so that it refuses writes.
        async fn fill(&self) {
            let put = PutRequest::leased(b"filler".to_vec(), vec![b'x'; 50_000], 0);
            let txn = TxnRequest { success: vec![Op::Put(put).into()], ..TxnRequest::default() };
            for _ in 0..100 {
                let reply = self.client.cluster.call(txn.clone(), None).await;
                if reply.is_err_and(|failure| failure.is_no_space()) {
                    return;
                }
            }
            panic!("it has no end");
        }

        /// Writes the key as another program does.
        async fn put(&self, record: &ClaimRecord, lease: i64) {
            let put = PutRequest::leased(self.state.key().unwrap().to_vec(), record.to_bytes(), lease);
            let txn = TxnRequest { success: vec![Op::Put(put).into()], ..TxnRequest::default() };
            self.client.cluster.call(txn, None).await.unwrap();
        }

        /// Returns the key's record and lease.
        async fn found(&self) -> (ClaimRecord, i64) {
            let read = RangeRequest::one(self.state.key().unwrap().to_vec());
            let found = self.client.cluster.call(read, None).await.unwrap();
            let kv = found.kvs.first().expect("the key exists");
            (ClaimRecord::read(&kv.value).unwrap(), kv.lease)
        }

        async fn close(self) {
            self.entry.forget();
            self.client.close().await;
            self.helper.close().await;
        }
    }

    /// Longer than any test.
    const LEASE: Duration = Duration::from_secs(600);

    /// The cleanup of an expired claim, or its eviction, waits for a detachment that is under way. The program that has the text of the lease
    /// counts on the detached key.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_key_that_was_detached_meanwhile_stays_detached() {
        needs!(ETCD, ETCDCTL);
        let etcd = Etcd::start(&Config::new()).unwrap();
        for is_answered in [true, false] {
            let alone = Alone::holding(&etcd).await;
            let (detached, last) = (alone.dedicated().await, alone.dedicated().await);
            if is_answered {
                assert_eq!(alone.move_key(&detached, Purpose::Detach).await, Moved::Done);
            } else {
                // The request took effect, and its answer was lost.
                alone.state.try_lease(&detached);
                let record = ClaimRecord::read(&alone.state.value()).unwrap();
                alone.put(&ClaimRecord { detached: true, ..record }, detached.id).await;
            }
            assert_eq!(alone.move_key(&last, Purpose::Evict).await, Moved::Done);
            let (record, lease) = alone.found().await;
            assert!(
                record.detached && lease == detached.id,
                "answered: {is_answered}, {lease:x}: {record:?}"
            );
            etcd.look().run(&["del", "--prefix", "stock/"]);
            alone.close().await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_renewal_that_finds_the_key_deleted_by_an_eviction_tells_who_and_why() {
        needs!(ETCD);
        let etcd = Etcd::start(&Config::new()).unwrap();
        let alone = Alone::holding(&etcd).await;
        let lease = alone.state.lease().unwrap();
        alone.evict(Op::Delete(DeleteRequest::one(alone.state.key().unwrap())).into()).await;
        assert_eq!(alone.move_key(&lease, Purpose::Keep).await, Moved::Evicted);
        assert_eq!(&*alone.state.evicted_by(), "maintenance");
        alone.close().await;
    }

    fn small() -> Etcd {
        Etcd::start(&Config::new().argument("--quota-backend-bytes=200000")).unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_renewal_without_space_that_finds_the_mark_of_an_eviction_tells_who_and_why() {
        needs!(ETCD);
        let etcd = small();
        let alone = Alone::holding(&etcd).await;
        let lease = alone.state.lease().unwrap();
        let record = ClaimRecord::read(&alone.state.value()).unwrap();
        let marked = ClaimRecord { evicted: true, ..record }.to_bytes();
        let key = alone.state.key().unwrap().to_vec();
        alone.evict(Op::Put(PutRequest::with_its_lease(key, marked)).into()).await;
        alone.fill().await;
        assert_eq!(alone.move_key(&lease, Purpose::Keep).await, Moved::Evicted);
        assert_eq!(&*alone.state.evicted_by(), "maintenance");
        alone.close().await;
    }

    /// Its own program cannot move the key back to a lease that is renewed.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_renewal_without_space_renews_the_lease_to_which_another_program_has_moved_the_key() {
        needs!(ETCD);
        let etcd = small();
        let alone = Alone::holding(&etcd).await;
        let (own, other) = (alone.state.lease().unwrap(), alone.dedicated().await);
        alone.state.claim.give_lease();
        alone.put(&ClaimRecord::read(&alone.state.value()).unwrap(), other.id).await;
        alone.fill().await;
        let renewals = || etcd.requests().unwrap().get("LeaseKeepAlive").copied().unwrap_or_default();
        let (before, until) = (renewals(), alone.state.claim.validity.until());
        assert_eq!(alone.move_key(&own, Purpose::Keep).await, Moved::Done);
        assert_eq!(renewals(), before + 1);
        assert!(alone.state.claim.validity.until() > until);
        alone.close().await;
    }
}
