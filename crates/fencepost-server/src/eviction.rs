//! Tells the holder of a lease that it was evicted, and why.

use std::time::Duration;

use fencepost_core::{ClaimInfo, DetachedLease, Error, HolderInfo, Name, Record, RecordKind, Token};
use serde_json::json;

use crate::problem::{Answer, Problem};
use crate::record;
use crate::rights::caller::Caller;
use crate::service::Service;

/// For how long a reason is kept after the evicted lease would have ended. A quorum keeps no record for longer.
const AFTER: Duration = Duration::from_secs(10);

/// The record of an eviction, by its name and version.
pub(crate) struct Noted(Name, u64);

/// Keeps the reason of an eviction for the holder. A grant that is not there needs none. Returns what keeps it.
pub(crate) async fn note(
    service: &Service,
    caller: &Caller,
    name: &Name,
    token: Token,
    reason: Option<&str>,
) -> Answer<Option<Noted>> {
    let by =
        Some(&*caller.name).filter(|name| !name.is_empty()).map(|name| format!("by the token of {name}"));
    let why = [reason.map(str::to_owned), by].into_iter().flatten().collect::<Vec<_>>().join(", ");
    let info = service.locks.inspect(name.as_str()).await?;
    let Some(holder) = info.holders().find(|claim| claim.token == Some(token)) else {
        return Ok(None);
    };
    let keep = holder.expires_in.unwrap_or_default() + AFTER;
    let (record, name) =
        (Record::new(json!({ "why": HolderInfo::cut(why) }), keep), record::of_eviction(name, token)?);
    let stored = service.records.read(RecordKind::Eviction, &name).await?;
    if stored.record.is_some() {
        // Another eviction of the same grant has noted its reason.
        return Ok(None);
    }
    let noted = service.records.write(RecordKind::Eviction, &name, Some(&record), stored.version).await?;
    Ok(noted.map(|version| Noted(name, version)))
}

/// Removes the note about an eviction that failed. A note that stays expires.
pub(crate) async fn remove(service: &Service, note: Noted) {
    let Noted(name, version) = note;
    let _ = service.records.write(RecordKind::Eviction, &name, None, version).await;
}

/// Explains why a lease cannot be extended. `may_know`: the caller may read the lock, or holds the very grant that the lease names. The token
/// in the text of a lease is no proof of that, because its bearer can change it: such a caller would learn which grants were evicted.
pub(crate) async fn explain(
    service: &Service,
    lease: &DetachedLease,
    error: Error,
    may_know: bool,
) -> Problem {
    let problem = Problem::from(error);
    if !may_know {
        return problem;
    }
    match noted(service, lease).await {
        Some(why) if why.is_empty() => problem.with("loss", "evicted"),
        Some(why) => problem.with("loss", "evicted").with("why", why),
        None if is_marked(service, lease).await => problem.with("loss", "evicted"),
        None => problem,
    }
}

/// Returns why the grant with this token was evicted; empty: nobody gave a reason. `None`: it was not evicted here.
pub(crate) async fn noted(service: &Service, lease: &DetachedLease) -> Option<String> {
    let name = record::of_eviction(lease.name(), lease.token()).ok()?;
    let stored = service.records.read(RecordKind::Eviction, &name).await.ok()?;
    let object = stored.record?.object().ok()?;
    Some(object.get("why").and_then(|why| why.as_str()).unwrap_or_default().to_owned())
}

/// Returns whether the engine shows that the holder with this token is evicted.
async fn is_marked(service: &Service, lease: &DetachedLease) -> bool {
    let info = service.locks.inspect(lease.name().as_str()).await.ok();
    let mine = |claim: &ClaimInfo| claim.token == Some(lease.token()) && claim.evicted;
    info.is_some_and(|info| info.holders().any(mine))
}
