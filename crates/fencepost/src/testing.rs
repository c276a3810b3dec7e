//! Locks for the tests of a program: no server, no real time, and faults on demand.
//!
//! The page [testing your code](https://github.com/fencepost/fencepost/blob/main/docs/testing-your-code.md) has examples.

pub use fencepost_core::testing::{TestClock, TestEngine};

use crate::Locks;

/// Makes a client for a test, the clock that the test moves, and the engine that fails on demand.
///
/// The engine is in memory, and each call makes a new one. Leases, waiting times and delays count on the clock alone, so a
/// test needs no real time. The tasks of the client run on the tokio runtime that this is called in.
///
/// # Panics
/// Outside of a tokio runtime.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use std::time::Duration;
///
/// let (locks, clock, engine) = fencepost::testing::locks();
/// let guard = locks.mutex("stock/42")?.lock().await?;
/// clock.advance(Duration::from_secs(3600)).await;
/// guard.ensure_held()?; // the client has renewed it all the time
///
/// engine.lose("stock/42");
/// assert!(guard.ensure_held().is_err_and(|error| error.is_lost()));
/// # Ok::<(), fencepost::Error>(()) }).unwrap();
/// ```
pub fn locks() -> (Locks, TestClock, TestEngine) {
    let (client, clock, engine) = fencepost_core::testing::client();
    (Locks::from(client), clock, engine)
}
