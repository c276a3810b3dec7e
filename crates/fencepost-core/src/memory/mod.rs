//! The engine in the memory of one process, and the reference for the meaning of every engine.
//!
//! `memory:` is an engine of the client's own. `memory:NAME` is shared by all clients of the process that use the same name.
//! Guaranteed: mutual exclusion, first come first served, tokens that grow as long as the process lives, leases on the client's
//! clock. Not guaranteed: anything beyond the process.

mod backend;
mod engine;
mod place;
mod queue;
mod records;
mod rules;

pub(crate) use backend::open;
pub use engine::Memory;
