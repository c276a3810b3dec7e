//! Waits for a condition that sends no event, because it is in another process or at another client.

use std::time::{Duration, Instant};

/// The pause between two checks.
const PAUSE: Duration = Duration::from_millis(2);

/// Waits until the condition is true.
///
/// # Panics
/// Panics if that takes longer than `bound`.
pub async fn eventually<F: Future<Output = bool>>(bound: Duration, what: &str, mut is: impl FnMut() -> F) {
    let start = Instant::now();
    while !is().await {
        assert!(start.elapsed() < bound, "not within {bound:?}: {what}");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Calls `look` repeatedly for `span`.
pub async fn all_along(span: Duration, mut look: impl AsyncFnMut()) {
    let end = Instant::now() + span;
    loop {
        look().await;
        if Instant::now() >= end {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
