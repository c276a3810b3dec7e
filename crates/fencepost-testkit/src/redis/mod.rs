//! Redis in every way people run it, started from the `redis-server` of the system.
//!
//! - [`Redis`]: one server. [`Proxied`]: one whose network can be cut, silenced and slowed down.
//! - [`Sentinel`]: a master, its replica, and the sentinels that watch them.
//! - [`Cluster`]: three masters with a replica each.
//! - [`Masters`]: independent masters, for a quorum.
//! - [`Look`]: an operator's connection, to see what is in a server and to disturb it.
//!
//! Everything listens on the loopback interface, keeps its files in a temporary folder and is gone with the test process,
//! however that ends: a deployment may stand in a static and serve all cases of a file.

mod clock;
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

/// How long a deployment may take to reach a state that it reaches by itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until it is so.
fn eventually(what: &str, mut is: impl FnMut() -> bool) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is() {
        if Instant::now() >= deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("not within {PATIENCE:?}: {what}")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The server's own error as one of the system.
fn refused(error: ::redis::RedisError) -> io::Error {
    io::Error::other(error)
}
