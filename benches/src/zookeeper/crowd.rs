//! A line over several processes that drains: see the one of Redis, whose sides take any URL.

use super::server::{url, wait_until};
use super::{NAME, connect};
use fencepost::Locks;
use fencepost_testkit::zookeeper::{ZooKeeper, ephemerals};
use std::process::Command;
use tokio::runtime::Runtime;

/// This program as a side with fencepost's lock.
pub(super) fn ours(server: &ZooKeeper) -> Command {
    side("redis-side-ours", &[&url(server), NAME])
}

/// This program as a side with the driver's own lock.
pub(super) fn peer(server: &ZooKeeper) -> Command {
    side("zookeeper-side-peer", &[&url(server)])
}

fn side(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
    command.arg(program).args(arguments);
    command
}

/// Waits until so many stand in either's line behind one who holds.
pub(super) fn in_line(server: &ZooKeeper, count: usize) {
    wait_until("all stood in line", || {
        let all = ephemerals(server.address()).expect("a server that answers");
        all.iter().filter(|path| path.contains("-lock-")).count() == count + 1
    });
}

/// A client that looks.
pub(super) fn observer(server: &ZooKeeper) -> (Runtime, Locks) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let locks = runtime.block_on(connect(&url(server)));
    (runtime, locks)
}
