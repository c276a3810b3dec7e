//! The memory engine: its rate beside tokio's own Mutex, and crowds of a hundred thousand.

pub(crate) mod crowd;
pub(crate) mod rate;

use fencepost::Locks;

/// A client of an engine in memory that nobody else has.
async fn connect() -> Locks {
    Locks::connect("memory:").await.expect("memory is always there")
}
