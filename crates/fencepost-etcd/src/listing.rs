//! What operators see and do.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::queue::Held;
use fencepost_core::{
    ClaimInfo, Error, ErrorKind, Eviction, Info, Listing, Name, Page, Payload, Result, Token,
};
use futures_util::future::join_all;

use crate::error::{ENGINE, Failure};
use crate::keys;
use crate::net::{RANGE, TIME_TO_LIVE};
use crate::proto::{
    Compare, DeleteRequest, KeyValue, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, Op, PutRequest,
    RangeRequest, RangeResponse, TxnRequest,
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
    let wall = shared.aid.clock().wall_micros();
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
        claims.push(Payload::read(&kv.value).into_info(mode, token, wall, wall));
    }
    leases.truncate(LEASES);
    let asked = leases.into_iter().map(|(at, id)| async move { (at, left(shared, id).await) });
    for (at, left) in join_all(asked).await {
        claims[at].expires_in = left;
    }
    let last_token = claims.iter().filter_map(|claim: &ClaimInfo| claim.token).max();
    Ok(Info { name: name.clone(), last_token, claims })
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
    let mut names: Vec<Name> = names(shared, prefix).await?.into_iter().collect();
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

async fn names(shared: &Arc<Shared>, prefix: &str) -> Result<BTreeSet<Name>> {
    let beginning = keys::beginning(&shared.config.prefix, prefix);
    let end = keys::end(&beginning);
    // No key is empty.
    let mut from = if beginning.is_empty() { vec![0] } else { beginning };
    let mut names = BTreeSet::new();
    loop {
        let question = RangeRequest {
            key: from,
            range_end: end.clone(),
            limit: PORTION,
            keys_only: true,
            ..RangeRequest::default()
        };
        let answer: RangeResponse = shared.net.call(RANGE, question, None).await?;
        let claims = answer.kvs.iter().filter(|kv| keys::is_claim(kv));
        names.extend(claims.filter_map(|kv| keys::name_of(&shared.config.prefix, &kv.key)));
        match answer.kvs.last() {
            Some(last) if answer.more => from = [&*last.key, &[0]].concat(),
            _ => return Ok(names),
        }
    }
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
    let txn = TxnRequest {
        compare: vec![Compare::created(&kv.key, kv.create_revision)],
        success: writes(shared, name, kv, how)?,
        failure: Vec::new(),
    };
    // Dropped here, the holder is evicted or not.
    if shared.txn(txn).await?.succeeded { Ok(()) } else { Err(mismatch()) }
}

fn writes(
    shared: &Shared,
    name: &Name,
    kv: &KeyValue,
    how: &Eviction,
) -> Result<Vec<crate::proto::RequestOp>> {
    let mut payload = Payload::read(&kv.value);
    let number = keys::number(&kv.key).filter(|_| payload.id.is_some());
    let mut writes = Vec::new();
    if how.now {
        let delete = DeleteRequest { key: kv.key.clone(), range_end: Vec::new() };
        writes.push(Op::Delete(delete).into());
    } else if number.is_some() {
        payload.evicted = true;
        let put = PutRequest { key: kv.key.clone(), value: payload.to_bytes(), ignore_lease: true, lease: 0 };
        writes.push(Op::Put(put).into());
    } else {
        let message = "its holder is a program of another library, which cannot be told; it can only be evicted at once \
                       (--now), and may go on working";
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
