//! Tells the holder of a lease that it was evicted, and why.

use std::time::Duration;

use fencepost_core::{DetachedLease, Error, HolderInfo, Name, Token};

use crate::problem::{Answer, Problem};
use crate::record;
use crate::rights::caller::Caller;
use crate::service::Service;

/// For how long a reason is kept after the evicted lease would have ended.
const AFTER: Duration = Duration::from_secs(30);

/// Keeps the reason of an eviction for the holder. A grant that is not there needs none. Returns what keeps it.
pub(crate) async fn note(
    service: &Service,
    caller: &Caller,
    name: &Name,
    token: Token,
    reason: Option<&str>,
) -> Answer<Option<DetachedLease>> {
    let by =
        Some(&*caller.name).filter(|name| !name.is_empty()).map(|name| format!("by the token of {name}"));
    let why = [reason.map(str::to_owned), by].into_iter().flatten().collect::<Vec<_>>().join(", ");
    let info = service.locks.inspect(name.as_str()).await?;
    let Some(holder) = info.holders().find(|claim| claim.token == Some(token) && claim.detached) else {
        return Ok(None);
    };
    let can = service.locks.capabilities();
    let ttl = (holder.expires_in.unwrap_or_default() + AFTER).clamp(can.min_ttl, can.max_ttl);
    let record = service.locks.mutex(record::of_eviction(name, token)?.as_str())?;
    // Another eviction of the same grant has noted its reason.
    match record.try_lock().ttl(ttl).no_renewal().reason(&HolderInfo::cut(why)).await? {
        Some(kept) => Ok(Some(kept.detach().await?)),
        None => Ok(None),
    }
}

/// Explains why a lease cannot be extended. The reason of an eviction is for the holder, and for callers that may read the lock.
pub(crate) async fn explain(
    service: &Service,
    lease: &DetachedLease,
    error: Error,
    may_know: bool,
) -> Problem {
    let problem = Problem::from(error);
    let Ok(record) = record::of_eviction(lease.name(), lease.token()) else { return problem };
    let noted = service.locks.inspect(record.as_str()).await.ok();
    if let Some(note) = noted.as_ref().and_then(|info| info.holders().next()) {
        let problem = problem.with("loss", "evicted");
        return match &note.reason {
            Some(why) if may_know => problem.with("why", why.as_str()),
            _ => problem,
        };
    }
    let info = service.locks.inspect(lease.name().as_str()).await.ok();
    let mine = |claim: &&fencepost_core::ClaimInfo| claim.token == Some(lease.token()) && claim.evicted;
    match info.as_ref().and_then(|info| info.holders().find(mine)) {
        Some(_) => problem.with("loss", "evicted"),
        None => problem,
    }
}
