//! What operators see and do.

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

use crate::error::{ENGINE, Failure};
use crate::keys;
use crate::net::{RANGE, TIME_TO_LIVE, TXN};
use crate::proto::{
    Compare, DeleteRequest, KeyValue, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, Op, PutRequest,
    RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse,
};
use crate::shared::Shared;

/// Keys are listed in portions of so many.
const PORTION: i64 = 5_000;
/// So many folders are read at a time.
const BATCH: usize = 32;
/// Of so many holders it is asked how long their leases run.
const LEASES: usize = 16;

/// One resource.
pub(crate) async fn inspect(shared: &Arc<Shared>, name: &Name) -> Result<Info> {
    let folder = keys::folder(&shared.config.prefix, name);
    let (_, line) = shared.line(&folder).await?;
    let wall = shared.runtime.clock().wall_micros();
    let mut held = Held::default();
    let mut free = true;
    let mut claims = Vec::with_capacity(line.len());
    let mut leases = Vec::new();
    for kv in &line {
        let mode = keys::mode(kv);
        free = free && held.fits(mode);
        if free {
            held.add(mode);
            leases.push((claims.len(), kv.lease));
        }
        let token = free.then(|| Token::new(kv.create_revision.unsigned_abs()));
        claims.push(claim(kv, mode, token, wall));
    }
    leases.retain(|(_, lease)| *lease != 0);
    leases.truncate(LEASES);
    let asked = leases.into_iter().map(|(at, id)| async move { (at, left(shared, id).await) });
    for (at, left) in join_all(asked).await {
        claims[at].expires_in = left;
    }
    let last_token = claims.iter().filter_map(|claim: &ClaimInfo| claim.token).max();
    Ok(Info { name: name.clone(), last_token, claims })
}

/// A contender as operators see it.
fn claim(kv: &KeyValue, mode: Mode, token: Option<Token>, wall: u64) -> ClaimInfo {
    let mut payload = ClaimRecord::read(&kv.value);
    let endless = kv.lease == 0;
    if endless && payload.id.is_none() {
        // Put by hand, or by a program that does not know of locks: of it there is only the key.
        let (key, said) = (String::from_utf8_lossy(&kv.key), &payload.holder.label);
        payload.holder.label = HolderInfo::cut(format!("unknown, by the key {key} without a lease: {said}"));
    }
    ClaimInfo { endless, ..payload.into_info(mode, token, wall, 0) }
}

/// How long a lease still runs, as far as the server says.
async fn left(shared: &Arc<Shared>, id: i64) -> Option<Duration> {
    let answer: Result<LeaseTimeToLiveResponse, Failure> =
        shared.net.call(TIME_TO_LIVE, LeaseTimeToLiveRequest { id }, None).await;
    answer.ok().and_then(|answer| u64::try_from(answer.ttl).ok()).map(Duration::from_secs)
}

/// A page of the resources that somebody holds or waits for.
pub(crate) async fn list(shared: &Arc<Shared>, prefix: &str, page: &Page) -> Result<Listing> {
    // The keys' order is not that of the names, because of the escapes.
    let folders = scan(shared, prefix, usize::MAX).await?.into_iter();
    let mut names: Vec<Name> =
        folders.filter(|(_, found)| found.is_listed(shared)).map(|(name, _)| name).collect();
    if let Some(after) = &page.after {
        names.retain(|name| name > after);
    }
    let mut listing = Listing::default();
    for batch in names.chunks(BATCH) {
        for info in join_all(batch.iter().map(|name| inspect(shared, name))).await {
            let info = info?;
            if info.claims.is_empty() {
                continue;
            }
            if listing.resources.len() >= page.limit.max(1) {
                listing.next = listing.resources.last().map(|info| info.name.clone());
                return Ok(listing);
            }
            listing.resources.push(info);
        }
    }
    Ok(listing)
}

/// What a look at the keys alone tells of a folder.
#[derive(Default)]
pub(crate) struct Found {
    /// Somebody claims the lock, as far as one can tell by a key.
    claimed: bool,
    /// The first of its keys that have no lease, and how many there are.
    pub(crate) endless: Option<(String, usize)>,
}

impl Found {
    /// Is it a lock's? Below a prefix that is a folder all are. Elsewhere what is no lock may stand in the store.
    pub(crate) fn is_listed(&self, shared: &Shared) -> bool {
        self.claimed || shared.config.prefix.ends_with('/')
    }
}

/// The folders of names that begin with `prefix`, from so many portions of keys.
pub(crate) async fn scan(
    shared: &Arc<Shared>,
    prefix: &str,
    portions: usize,
) -> Result<BTreeMap<Name, Found>> {
    let beginning = keys::beginning(&shared.config.prefix, prefix);
    let end = keys::end(&beginning);
    // No key is empty.
    let mut from = if beginning.is_empty() { vec![0] } else { beginning };
    let mut folders = BTreeMap::<Name, Found>::new();
    for _ in 0..portions {
        let question = RangeRequest {
            key: from,
            range_end: end.clone(),
            limit: PORTION,
            keys_only: true,
            ..RangeRequest::default()
        };
        let answer: RangeResponse = shared.net.call(RANGE, question, None).await?;
        for kv in &answer.kvs {
            let Some(name) = keys::name_of(&shared.config.prefix, &kv.key) else { continue };
            let found = folders.entry(name).or_default();
            found.claimed |= keys::is_claim(kv);
            if kv.lease == 0 {
                let first = || (String::from_utf8_lossy(&kv.key).into_owned(), 0);
                found.endless.get_or_insert_with(first).1 += 1;
            }
        }
        match answer.kvs.last() {
            Some(last) if answer.more => from = [&*last.key, &[0]].concat(),
            _ => break,
        }
    }
    Ok(folders)
}

/// Evicts the holder whose key has this create revision.
pub(crate) async fn evict(shared: &Arc<Shared>, name: &Name, token: Token, how: &Eviction) -> Result<()> {
    let mismatch = || {
        let message = format!("no grant has token {token} any more; look again who holds it");
        Error::new(ErrorKind::Mismatch, message).of(name.clone()).on(ENGINE)
    };
    let folder = keys::folder(&shared.config.prefix, name);
    let (_, line) = shared.line(&folder).await?;
    let mut held = Held::default();
    let holders = line.iter().take_while(|kv| {
        let mode = keys::mode(kv);
        let fits = held.fits(mode);
        held.add(mode);
        fits
    });
    let found = holders.into_iter().find(|kv| kv.create_revision.unsigned_abs() == token.get());
    let Some(kv) = found else { return Err(mismatch()) };
    let ask = |success| TxnRequest {
        compare: vec![Compare::created(&kv.key, kv.create_revision)],
        success,
        failure: Vec::new(),
    };
    // Dropped here, the holder is evicted or not.
    let doubt = AtomicBool::new(false);
    let answer = shared.net.call(TXN, ask(writes(shared, name, kv, how)?), Some(&doubt)).await;
    let answer: TxnResponse = match answer {
        // There is no space for the mark. Its holder is told of the deletion, but not by whom.
        Err(failure) if failure.is_full() && how.now => {
            shared.net.call(TXN, ask(vec![delete(kv)]), Some(&doubt)).await?
        }
        Err(failure) if failure.is_full() => {
            return Err(failure.advising("or evict at once (--now), which only deletes").error());
        }
        answer => answer?,
    };
    // The key was there and is gone. An earlier request did it, perhaps, and its answer was lost.
    let done = answer.succeeded || how.now && doubt.into_inner();
    if done { Ok(()) } else { Err(mismatch()) }
}

fn delete(kv: &KeyValue) -> RequestOp {
    Op::Delete(DeleteRequest { key: kv.key.clone(), range_end: Vec::new() }).into()
}

fn writes(shared: &Shared, name: &Name, kv: &KeyValue, how: &Eviction) -> Result<Vec<RequestOp>> {
    let mut payload = ClaimRecord::read(&kv.value);
    // What has no lease was put there by hand, even if it looks like ours: nobody would take its mark away.
    let number = keys::number(&kv.key).filter(|_| payload.id.is_some() && kv.lease != 0);
    let mut writes = Vec::new();
    if how.now {
        writes.push(delete(kv));
    } else if number.is_some() {
        payload.evicted = true;
        let put = PutRequest { key: kv.key.clone(), value: payload.to_bytes(), ignore_lease: true, lease: 0 };
        writes.push(Op::Put(put).into());
    } else {
        let message = if kv.lease == 0 {
            "nobody keeps its key alive, so nobody can be told; evicting it at once (--now) deletes the key"
        } else {
            "its holder is a program of another library, which cannot be told; it can only be evicted at once (--now), and \
             may go on working"
        };
        return Err(Error::new(ErrorKind::Unsupported, message).of(name.clone()).on(ENGINE));
    }
    if let Some(number) = number {
        // Nobody but its holder's client reads it. Should that be gone, it ends with the holder's lease.
        let reason = how.reason.clone().unwrap_or_default();
        let key = keys::mark(&shared.config.prefix, number, kv.create_revision);
        let put = PutRequest { key, value: reason.into_bytes(), lease: kv.lease, ignore_lease: false };
        writes.push(Op::Put(put).into());
    }
    Ok(writes)
}
