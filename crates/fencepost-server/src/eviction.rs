//! Tells the holder of a lease that it was evicted, and why.

use std::time::Duration;

use fencepost_core::{ClaimInfo, DetachedLease, Error, HolderInfo, Name, Token};

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
        Some(ClaimInfo { reason: Some(why), .. }) => problem.with("loss", "evicted").with("why", why),
        Some(_) => problem.with("loss", "evicted"),
        None if is_marked(service, lease).await => problem.with("loss", "evicted"),
        None => problem,
    }
}

/// Returns the note about the eviction of the grant with this token.
async fn noted(service: &Service, lease: &DetachedLease) -> Option<ClaimInfo> {
    let record = record::of_eviction(lease.name(), lease.token()).ok()?;
    let info = service.locks.inspect(record.as_str()).await.ok()?;
    info.holders().next().cloned()
}

/// Returns whether the engine shows that the holder with this token is evicted.
async fn is_marked(service: &Service, lease: &DetachedLease) -> bool {
    let info = service.locks.inspect(lease.name().as_str()).await.ok();
    let mine = |claim: &ClaimInfo| claim.token == Some(lease.token()) && claim.evicted;
    info.is_some_and(|info| info.holders().any(mine))
}
