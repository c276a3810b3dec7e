//! All of core over an engine in one thread, on a clock that stands still, in an order that a seed picks.
//!
//! [`simulate`] runs a seed: several clients with several tasks each try, lock, wait, extend, lose, release, drop and
//! evict; a [`chaos`](crate::chaos) layer troubles their requests; clients are stopped and killed and the wall clock is
//! stepped. The history of each run is judged by the [`checker`](crate::checker). The same seed gives the same run.

mod cancel;
mod detached;
mod executor;
mod pair;
mod rng;
mod setup;
mod troubles;
mod worker;

pub use cancel::{GiveUp, unless};
pub use executor::{Executor, Ran};
pub use rng::Rng;
pub use setup::{Engine, LONGEST_LEASE, Report, Setup, simulate};
