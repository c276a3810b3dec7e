//! A line over several processes.

use super::server::url;
use crate::crowd::wait_until;
use crate::{crowd, side};
use fencepost_testkit::zookeeper::{ZooKeeper, ephemerals};
use std::process::Command;

/// This program as a side with fencepost's lock.
pub(super) fn ours(server: &ZooKeeper) -> Command {
    crowd::ours(&url(server))
}

/// This program as a side with the driver's own lock.
pub(super) fn peer(server: &ZooKeeper) -> Command {
    side::program(&["zookeeper-side-peer", &url(server)])
}

/// Waits until so many stand in either's line behind one who holds.
pub(super) fn in_line(server: &ZooKeeper, count: usize) {
    wait_until("all waited in the queue", || {
        let all = ephemerals(server.address()).expect("a server that answers");
        all.iter().filter(|path| path.contains("-lock-")).count() == count + 1
    });
}
