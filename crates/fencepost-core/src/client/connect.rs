//! Connecting to an engine that may be away.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::Backend;
use crate::client::registry::Registry;
use crate::error::{Error, ErrorKind, Result};
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
    );
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
