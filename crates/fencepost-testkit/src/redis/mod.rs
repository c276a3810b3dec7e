//! Redis servers for tests in each usual deployment, started from the system's `redis-server`.
//!
//! - [`Redis`]: one server. [`Proxied`]: one behind a proxy that can cut, silence and delay its network.
//! - [`Sentinel`]: a master, its replica, and the sentinels that watch them.
//! - [`Cluster`]: three masters with a replica each.
//! - [`Masters`]: independent masters, for a quorum.
//! - [`Look`]: an operator's connection, to inspect a server and to change its state.
//!
//! Every server listens on the loopback interface, keeps its files in a temporary folder, and ends with the
//! test process in every case. A deployment may be in a static and serve all cases of a file.

mod cluster;
mod config;
mod look;
mod masters;
mod network;
mod proxied;
mod sentinel;
mod server;

pub use cluster::Cluster;
pub use config::Config;
pub use look::Look;
pub use masters::Masters;
pub use proxied::Proxied;
pub use sentinel::Sentinel;
pub use server::Redis;

use std::io;
use std::time::{Duration, Instant};

/// The time in which a deployment must reach a state that it reaches by itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until the condition is true.
fn eventually(what: &str, is: impl FnMut() -> bool) -> io::Result<()> {
    if within(PATIENCE, is) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, format!("not within {PATIENCE:?}: {what}")))
}

/// Waits for the condition for at most `time`, and returns whether it is true.
fn within(time: Duration, mut is: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + time;
    while !is() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Turns the server's own error into an I/O error.
fn refused(error: ::redis::RedisError) -> io::Error {
    io::Error::other(error)
}
