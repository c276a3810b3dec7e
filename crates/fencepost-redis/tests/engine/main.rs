//! The rules of the line, each on a real server that is troubled just so.

mod away;
mod clock;
mod evicted;
mod failover;
mod fallback;
mod impatient;
mod inbox;
mod kit;
mod large;
mod last_client;
mod lines;
mod memory;
mod replaced;
mod replay;
mod replicas;
mod restart;
mod rotated;
mod runs;
mod slots;
mod strangers;
mod tokens;
mod troubles;

/// The work of the processes that these tests start; nothing without a role.
#[test]
fn role() {
    kit::role();
}
