//! The requests of operators: show, list and evict.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use fencepost_core::backend::admission::Held;
use fencepost_core::{
    ClaimInfo, ClaimRecord, Error, ErrorKind, Eviction, HolderInfo, Info, Listing, Mode, Name, Page, Result,
    Token,
};
use futures_util::future::join_all;

use crate::client::{EtcdClient, TRIES};
use crate::error::{ENGINE, Failed};
use crate::keys;
use crate::rpc::proto::{
    Compare, DeleteRequest, KeyValue, Op, PutRequest, RangeRequest, RequestOp, TxnRequest,
};

/// Keys are scanned in pages of `PAGE`.
const PAGE: i64 = 5_000;
/// At most `BATCH` queues are read concurrently.
const BATCH: usize = 32;
/// The remaining time is read for at most `MAX_LEASES` holders of a lock.
const MAX_LEASES: usize = 16;

/// Shows one lock.
pub(crate) async fn inspect(client: &Arc<EtcdClient>, name: &Name) -> Result<Info> {
    let (_, kvs) = client.queue(&keys::queue(&client.config.prefix, name)).await?;
    let wall = client.runtime.clock().wall_micros();
    let holders = holders(&kvs);
    let mut claims: Vec<ClaimInfo> = kvs
        .iter()
        .enumerate()
        .map(|(at, kv)| {
            let token = (at < holders).then(|| Token::new(kv.create_revision.unsigned_abs()));
            claim_info(kv, token, wall)
        })
        .collect();
    let leased = kvs[..holders].iter().enumerate().filter(|(_, kv)| kv.lease != 0).take(MAX_LEASES);
    let left = leased.map(|(at, kv)| async move { (at, client.leases.time_to_live(kv.lease).await) });
    for (at, left) in join_all(left).await {
        let left = left.ok().and_then(|seconds| u64::try_from(seconds).ok());
        claims[at].expires_in = left.map(Duration::from_secs);
    }
    let last_token = claims.iter().filter_map(|claim| claim.token).max();
    Ok(Info::new(name.clone(), last_token, claims))
}

/// Returns how many of the first contenders hold the lock.
fn holders(kvs: &[KeyValue]) -> usize {
    let mut held = Held::default();
    kvs.iter().take_while(|kv| held.admit(mode(kv))).count()
}

/// Returns the mode to show. A claim of a later format may have another one.
fn mode(kv: &KeyValue) -> Mode {
    keys::mode(kv).unwrap_or(Mode::Exclusive)
}

fn claim_info(kv: &KeyValue, token: Option<Token>, wall: u64) -> ClaimInfo {
    let mode = mode(kv);
    let mut record = ClaimRecord::shown(&kv.value);
    let endless = kv.lease == 0;
    if endless && record.id.is_none() {
        // Put by hand, or by a program that is no lock.
        let (key, value) = (String::from_utf8_lossy(&kv.key), &record.holder.label);
        record.holder.label = HolderInfo::cut(format!("unknown, by the key {key} without a lease: {value}"));
    }
    let mut info = record.into_info(mode, token, wall, 0);
    info.endless = endless;
    info
}

/// Lists a page of the locks that are held or waited for.
pub(crate) async fn list(client: &Arc<EtcdClient>, prefix: &str, page: &Page) -> Result<Listing> {
    // Because of the escapes the order of the keys is not that of the names, so all are scanned.
    let queues = scan(client, prefix, usize::MAX).await?.into_iter();
    let names = queues.filter(|(_, queue)| queue.is_listed(client)).map(|(name, _)| name);
    let names: Vec<Name> = names.filter(|name| page.begins_before(name)).collect();
    let mut listing = Listing::default();
    for batch in names.chunks(BATCH) {
        for info in join_all(batch.iter().map(|name| inspect(client, name))).await {
            if !listing.add(info?, page) {
                return Ok(listing);
            }
        }
    }
    Ok(listing)
}

/// A queue as its keys show it.
#[derive(Default)]
pub(crate) struct ScannedQueue {
    /// A key looks like that of a claim.
    claimed: bool,
    /// The first of the keys without a lease, and how many there are.
    pub(crate) endless: Option<(String, usize)>,
}

impl ScannedQueue {
    /// Returns whether it is a lock's. With a prefix that ends in a slash all are; otherwise the store may contain keys of other programs.
    pub(crate) fn is_listed(&self, client: &EtcdClient) -> bool {
        self.claimed || client.config.prefix.ends_with('/')
    }
}

/// Returns the queues of names that begin with `prefix`, from at most `pages` pages of keys.
pub(crate) async fn scan(
    client: &Arc<EtcdClient>,
    prefix: &str,
    pages: usize,
) -> Result<BTreeMap<Name, ScannedQueue>> {
    let start = keys::names(&client.config.prefix, prefix);
    let end = keys::end(&start);
    // etcd has no empty key.
    let mut from = if start.is_empty() { vec![0] } else { start };
    let mut queues = BTreeMap::<Name, ScannedQueue>::new();
    for _ in 0..pages {
        let range_end = end.clone();
        let request =
            RangeRequest { key: from, range_end, limit: PAGE, keys_only: true, ..RangeRequest::default() };
        let reply = client.cluster.call(request, None).await?;
        for kv in &reply.kvs {
            let Some(name) = keys::name_of(&client.config.prefix, &kv.key) else { continue };
            let queue = queues.entry(name).or_default();
            queue.claimed |= keys::is_claim(kv);
            if kv.lease == 0 {
                let first = || (String::from_utf8_lossy(&kv.key).into_owned(), 0);
                queue.endless.get_or_insert_with(first).1 += 1;
            }
        }
        match reply.kvs.last() {
            Some(last) if reply.more => from = [&*last.key, &[0]].concat(),
            _ => break,
        }
    }
    Ok(queues)
}

/// Evicts the holder whose key has this create revision.
pub(crate) async fn evict(client: &Arc<EtcdClient>, name: &Name, token: Token, how: &Eviction) -> Result<()> {
    let unanswered = AtomicBool::new(false);
    for _ in 0..TRIES {
        let (_, kvs) = client.queue(&keys::queue(&client.config.prefix, name)).await?;
        let mut holders = kvs[..holders(&kvs)].iter();
        let Some(kv) = holders.find(|kv| kv.create_revision.unsigned_abs() == token.get()) else {
            // An earlier attempt may have deleted the key.
            let done = how.now && unanswered.into_inner();
            return if done { Ok(()) } else { Err(Error::no_grant(name.clone(), token).on(ENGINE)) };
        };
        // What is written rests on the record as it was read, and the lease of the note on that of the key. A program that takes over the key
        // of a detached claim changes both.
        let txn = |success| TxnRequest {
            compare: vec![Compare::written(&kv.key, kv.mod_revision)],
            success,
            failure: Vec::new(),
        };
        let reply = client.cluster.call(txn(writes(client, name, kv, how)?), Some(&unanswered)).await;
        let reply = match reply {
            // Without space for the note the holder is told of the deletion, but not by whom.
            Err(failure) if failure.is_no_space() && how.now => {
                client.cluster.call(txn(vec![delete(kv)]), Some(&unanswered)).await?
            }
            Err(failure) if failure.is_no_space() => {
                return Err(failure.advising("or evict at once (--now), which only deletes").error);
            }
            reply => reply?,
        };
        if reply.succeeded {
            return Ok(());
        }
    }
    Err(Failed::contested().into())
}

fn delete(kv: &KeyValue) -> RequestOp {
    Op::Delete(DeleteRequest::one(&kv.key)).into()
}

fn writes(client: &EtcdClient, name: &Name, kv: &KeyValue, how: &Eviction) -> Result<Vec<RequestOp>> {
    let mut record = ClaimRecord::read(&kv.value)?;
    // A key without a lease was put by hand, even if it looks like a claim's. No client would delete its note.
    let id = keys::id(&kv.key).filter(|_| record.id.is_some() && kv.lease != 0);
    let mut writes = Vec::new();
    if how.now {
        writes.push(delete(kv));
    } else if id.is_some() {
        record.evicted = true;
        let value = record.to_bytes();
        writes.push(Op::Put(PutRequest { key: kv.key.clone(), value, ignore_lease: true, lease: 0 }).into());
    } else {
        let message = if kv.lease == 0 {
            "the holder cannot be told, because its key has no lease; evict at once (--now), which deletes the key"
        } else {
            "the holder cannot be told, because it uses another library; evict at once (--now), but it may go on working"
        };
        return Err(Error::new(ErrorKind::Unsupported, message).of(name.clone()).on(ENGINE));
    }
    // Nobody renews a detached claim, so nobody would delete the note of one that is gone with this write.
    if let Some(id) = id.filter(|_| !(how.now && record.detached)) {
        // The holder's client deletes the note. If that client is gone, the note ends with its lease.
        let reason = how.reason.clone().unwrap_or_default();
        let note = keys::eviction(&client.config.prefix, id, kv.create_revision);
        writes.push(Op::Put(PutRequest::leased(note, reason.into_bytes(), kv.lease)).into());
    }
    Ok(writes)
}
