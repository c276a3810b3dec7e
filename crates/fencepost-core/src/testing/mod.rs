//! Locks for the tests of programs: an engine in memory with faults on demand, and a clock that the test moves.

mod clock;
mod engine;
mod entry;
mod fault;
mod no_tasks;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::client::Client;
use crate::runtime::spawner::HandleSpawner;
use crate::time::Clock;

pub use clock::TestClock;
pub use engine::TestEngine;
pub use no_tasks::NoTasks;
#[cfg(test)]
pub(crate) use tests::{flag, fork_when_dropped};

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
/// let (locks, clock, engine) = fencepost_core::testing::client();
/// let other = engine.busy("stock/42").await?;
/// assert!(locks.mutex("stock/42")?.try_lock().await?.is_none());
///
/// other.release().await?;
/// let guard = locks.mutex("stock/42")?.lock().await?;
/// clock.advance(Duration::from_secs(3600)).await;
/// guard.ensure_held()?; // the client has renewed it all the time
/// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
/// ```
pub fn client() -> (Client, TestClock, TestEngine) {
    let clock = Clock::manual();
    let engine = TestEngine::new(clock.clone(), Arc::new(HandleSpawner(Handle::current())));
    (engine.client(), TestClock::new(clock), engine)
}
