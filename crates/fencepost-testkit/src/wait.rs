//! Waits for a condition that sends no event, because it is in another process or at another client. Repeats what a busy machine has spoilt.

use fencepost_core::Result;
use std::time::{Duration, Instant};

/// The pause between two checks.
const PAUSE: Duration = Duration::from_millis(2);

/// How often a scene is played whose short lease ends because the machine stalls.
const TRIES: u32 = 8;

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

/// The scenes of one test that were spoilt, because the machine has stalled for longer than their short leases.
#[derive(Debug, Default)]
pub struct Stalls(u32);

impl Stalls {
    /// Returns whether a scene must be played again, because it ended with the loss of its lock: `while stalls.spoilt(scene().await) {}`.
    ///
    /// # Panics
    /// Panics if the scene failed otherwise, or if the lock was lost each time, because no machine stalls so often.
    pub fn spoilt(&mut self, scene: Result<()>) -> bool {
        let Err(error) = scene else { return false };
        self.0 += 1;
        assert!(error.is_lost() && self.0 < TRIES, "in scene {}: {error}", self.0);
        true
    }
}
