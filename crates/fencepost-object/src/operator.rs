//! The requests of operators: show, list and evict.

use std::collections::{BTreeMap, BTreeSet};

use fencepost_core::{
    ClaimInfo, ClaimRecord, Error, Eviction, Info, Listing, Mode, Name, Page, Record, Result, Token,
};
use futures_util::future::join_all;
use object_store::path::Path;

use crate::client::{ObjectClient, Seen, TRIES};
use crate::error::{ENGINE, contended};
use crate::keys::name_of;
use crate::lock_object::{Evicted, LockObject, SMALLEST_HELD};

/// At most so many objects are read at the same time.
const BATCH: usize = 32;
/// At most so many of the claims that wait for a lock are read.
const MAX_WAITERS: usize = 256;

/// Shows one lock.
pub(crate) async fn inspect(client: &ObjectClient, name: &Name) -> Result<Info> {
    let seen = client.look(name).await?;
    let lock = seen.lock()?;
    let found = client.store.list(&client.keys.waiting(name)).await?;
    let keys = found.into_iter().map(|object| object.location).collect();
    describe(client, name, &seen, lock, keys).await
}

/// Describes a lock, and the claims with these keys that wait for it.
async fn describe(
    client: &ObjectClient,
    name: &Name,
    seen: &Seen,
    lock: LockObject,
    keys: Vec<Path>,
) -> Result<Info> {
    let last_token = lock.last_token();
    let holding = lock.holder.as_ref().and_then(|holder| holder.record.id);
    let own = holding.map(|id| client.keys.waiter(name, id));
    let mut claims: Vec<ClaimInfo> = holder_of(client, name, seen, lock).into_iter().collect();
    // What the holder showed while it waited is removed with its grant.
    let keys: Vec<_> = keys.into_iter().filter(|key| Some(key) != own.as_ref()).take(MAX_WAITERS).collect();
    let mut waiters = Vec::new();
    for keys in keys.chunks(BATCH) {
        for waiter in join_all(keys.iter().map(|key| waiter(client, key))).await {
            waiters.extend(waiter?);
        }
    }
    waiters.sort_by_key(|claim| claim.since_micros);
    claims.extend(waiters);
    Ok(Info::new(name.clone(), last_token, claims))
}

fn holder_of(client: &ObjectClient, name: &Name, seen: &Seen, lock: LockObject) -> Option<ClaimInfo> {
    let holder = lock.holder?;
    if client.has_ended(name, lock.token, &holder, seen) {
        return None;
    }
    let wall = client.store.clock().wall_micros();
    let mode = holder.record.mode.unwrap_or(Mode::Exclusive);
    let mut info = holder.record.into_info(mode, Some(Token::new(lock.token)), wall, 0);
    // The record was made for the grant.
    info.from_arrival = false;
    info.expires_in = Some(std::time::Duration::from_micros(holder.until.saturating_sub(wall)));
    Some(info)
}

/// Reads a claim that waits. One whose client was ended has expired, and is removed.
async fn waiter(client: &ObjectClient, key: &Path) -> Result<Option<ClaimInfo>> {
    let Some(object) = client.store.get(key).await? else { return Ok(None) };
    let wall = client.store.clock().wall_micros();
    let Some(record) = Record::from_dated(&object.bytes, wall) else {
        client.store.delete(key).await.map_err(Error::without_effect)?;
        return Ok(None);
    };
    Ok(Some(ClaimRecord::shown(record.text.as_bytes()).into_info(Mode::Exclusive, None, wall, 0)))
}

/// Lists a page of the locks that are held or waited for. All keys are listed, because their order is not that of the names.
pub(crate) async fn list(client: &ObjectClient, prefix: &str, page: &Page) -> Result<Listing> {
    let wanted = |name: &Name| name.as_str().starts_with(prefix) && page.begins_before(name);
    let locks = client.store.list(&client.keys.locks()).await?;
    let held = locks.into_iter().filter(|object| object.size >= SMALLEST_HELD);
    let held = held.filter_map(|object| name_of(object.location.filename()?)).filter(wanted);
    let mut names: BTreeSet<Name> = held.collect();
    let mut waiting = BTreeMap::<Name, Vec<Path>>::new();
    for object in client.store.list(&client.keys.all_waiting()).await? {
        let name = object.location.parts().rev().nth(1).and_then(|part| name_of(part.as_ref()));
        if let Some(name) = name.filter(wanted) {
            names.insert(name.clone());
            waiting.entry(name).or_default().push(object.location);
        }
    }
    let mut listing = Listing::default();
    let names: Vec<Name> = names.into_iter().collect();
    for names in names.chunks(BATCH) {
        let shown = names.iter().map(|name| {
            let keys = waiting.get(name).cloned().unwrap_or_default();
            async move {
                let seen = client.look(name).await?;
                // One of a later format is shown as such, and hides no other.
                let lock = seen.object.as_ref().map(|object| LockObject::read_any(&object.bytes).0);
                describe(client, name, &seen, lock.unwrap_or_default(), keys).await
            }
        });
        for info in join_all(shown).await {
            if !listing.add(info?, page) {
                return Ok(listing);
            }
        }
    }
    Ok(listing)
}

/// Evicts the holder whose grant has this token.
pub(crate) async fn evict(client: &ObjectClient, name: &Name, token: Token, how: &Eviction) -> Result<()> {
    for _ in 0..TRIES {
        let seen = client.look(name).await?;
        let mut lock = seen.lock()?;
        let reason = how.reason.clone().unwrap_or_default();
        let Some(holder) = lock.holder.as_mut().filter(|_| lock.token == token.get()) else {
            return Err(Error::no_grant(name.clone(), token).on(ENGINE));
        };
        // The holder's lease goes on to its end, because this is no renewal: `beat` stays.
        holder.record.evicted = true;
        let next = if how.now { lock.freed() } else { lock.next() };
        let evicted = Evicted { token: token.get(), reason };
        let next = LockObject { evicted: Some(evicted), ..next };
        if client.store.put(&client.keys.lock(name), seen.version(), next.to_bytes()).await?.is_some() {
            return Ok(());
        }
    }
    Err(contended(client.store.shown()))
}
