//! Waiting for what nobody tells: what happens in another process, or at another client.

use std::time::{Duration, Instant};

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(2);

/// Waits until it is so.
///
/// # Panics
/// That takes longer than `bound`.
pub async fn eventually<F: Future<Output = bool>>(bound: Duration, what: &str, mut is: impl FnMut() -> F) {
    let start = Instant::now();
    while !is().await {
        assert!(start.elapsed() < bound, "not within {bound:?}: {what}");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Lets so much time pass and looks all along.
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
