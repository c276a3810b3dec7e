//! Runs all of core over an engine in one thread, on a manual clock, in an order that a seed determines.
//!
//! [`simulate`] runs a seed. Several clients with several tasks each lock, try, wait, extend, lose, release,
//! drop and evict. A [`chaos`](crate::chaos) layer makes faults in their requests. Clients are stopped and
//! killed, and the wall clock is stepped. The [`checker`](crate::checker) checks the history of each run. The
//! same seed gives the same run.

mod cancel;
mod detached;
mod executor;
mod pair;
mod primitives;
mod rng;
mod setup;
mod troubles;
mod worker;

pub use cancel::{GiveUp, unless};
pub use executor::{Executor, Ran};
pub use primitives::{Primitive, Rehearsal, simulate_primitive};
pub use rng::Rng;
pub use setup::{Engine, LONGEST_LEASE, Layer, Report, Setup, simulate, simulate_layered};
