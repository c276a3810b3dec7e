//! Connecting to an engine that may be away.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::Backend;
use crate::client::registry::Registry;
use crate::degrade::{Degrade, DegradeLayer, Policy, Stand};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Memory;
use crate::runtime::Runtime;
use crate::time::Backoff;

/// The first pause between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Opens the engine that `url` names. Tries again for `wait` while the engine is unreachable; without it one attempt is made. The first
/// attempt may take as long as `attempt`, however short `wait` is.
pub(crate) async fn open(
    registry: &Registry,
    url: &str,
    runtime: &Runtime,
    (wait, attempt): (Option<Duration>, Duration),
) -> Result<Arc<dyn Backend>> {
    let Some(wait) = wait else { return registry.open(url, runtime.clone()).await };
    let clock = runtime.clock();
    let start = clock.now();
    let deadline = start + wait;
    let mut until = deadline.max(start + attempt);
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    // The rest of a longer wait is no round number.
    let shown = Duration::from_millis(wait.max(attempt).as_micros().div_ceil(1_000) as u64);
    let mut last = Error::new(
        ErrorKind::Unreachable,
        format!("the engine has not answered within {shown:?}; see that it runs and can be reached"),
    )
    .on(registry.scheme(url)?);
    loop {
        match clock.within(until, registry.open(url, runtime.clone())).await {
            Some(Err(error)) if error.is_unreachable() => last = error,
            Some(answer) => return answer,
            None => return Err(last),
        }
        let now = clock.now();
        if now >= deadline {
            return Err(last);
        }
        tracing::debug!(error = %last, "the engine is away, connecting again");
        clock.sleep_until((now + backoff.pause()).min(deadline)).await;
        until = deadline;
    }
}

/// Puts the layer of `degrade` before the engine that `url` names. That engine may be away: it is opened later then.
pub(crate) async fn open_degraded(
    registry: &Registry,
    url: &str,
    runtime: &Runtime,
    bounds: (Option<Duration>, Duration),
    degrade: &Degrade,
) -> Result<Arc<dyn Backend>> {
    let clock = runtime.clock();
    let scheme = registry.scheme(url)?;
    let opened = clock.within(clock.now() + bounds.1, registry.open(url, runtime.clone())).await;
    let primary = match opened {
        Some(Ok(engine)) => Ok(engine),
        Some(Err(error)) if !error.is_unreachable() => return Err(error),
        Some(Err(_)) | None => {
            let (registry, url, runtime) = (registry.clone(), url.to_owned(), runtime.clone());
            let opener = move || -> crate::degrade::Opening {
                let (registry, url, runtime) = (registry.clone(), url.clone(), runtime.clone());
                Box::pin(async move { registry.open(&url, runtime).await })
            };
            Err((scheme, Box::new(opener) as crate::degrade::Opener))
        }
    };
    let stand = match &degrade.policy {
        Policy::Fallback(url) => {
            let fallback = open(registry, url, runtime, bounds).await;
            Stand::Fallback(fallback.map_err(|error| {
                let message = "the fallback engine cannot be opened; a client needs it at its start";
                Error::new(error.kind(), message).because_of(error)
            })?)
        }
        policy => stand(policy)?,
    };
    Ok(Arc::new(DegradeLayer::new(primary, stand, degrade, runtime)?))
}

/// Puts the layer of `degrade` before `engine`.
pub(crate) fn degraded(
    engine: Arc<dyn Backend>,
    degrade: &Degrade,
    runtime: &Runtime,
) -> Result<Arc<dyn Backend>> {
    let layer = DegradeLayer::new(Ok(engine), stand(&degrade.policy)?, degrade, runtime)?;
    Ok(Arc::new(layer))
}

/// Returns the part that grants while the engine is away, where no other engine does.
fn stand(policy: &Policy) -> Result<Stand> {
    match policy {
        Policy::Local => Ok(Stand::Local(Memory::new())),
        Policy::Open => Ok(Stand::Open),
        Policy::Closed | Policy::Fallback(_) => Err(Error::invalid(
            "a fallback is opened by its URL; connect the client, or make a `DegradeLayer` of two engines",
        )),
    }
}
