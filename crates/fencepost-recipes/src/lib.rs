//! What is built of locks by the public API of `fencepost_core` alone: a resource in segments, an election, a latch and a barrier.
//!
//! Programs use the crate `fencepost`, whose `Locks` makes them: `locks.latch("loaded", 3)?`.

mod barrier;
mod election;
mod latch;
mod striped;

use std::time::Duration;

pub use barrier::{Barrier, Inside};
pub use election::{Election, Leader, Leaders};
pub use latch::Latch;
pub use striped::{FreeFirst, StripedLock, Usage};

/// The pause between two looks, unless the user gives another one.
const INTERVAL: Duration = Duration::from_millis(100);

/// How long the engine keeps the counts of a latch, and that a barrier has opened, unless the user says otherwise.
const KEEP: Duration = Duration::from_secs(24 * 3600);
