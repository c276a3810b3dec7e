//! Lines at a ZooKeeper server, beside the driver's own lock.

use super::WARM;
use super::server::{start, url};
use crate::crowd::wait_until;
use crate::handoff::{Counts, Line};
use crate::peers::Peer;
use crate::side::program;
use fencepost_testkit::zookeeper::{ZooKeeper, ephemerals};
use std::process::Command;

/// Waits until so many nodes are there of which one holds and the others wait.
fn wait_for_nodes(server: &ZooKeeper, what: &str, part: &str, count: usize) {
    wait_until(what, || {
        let all = ephemerals(server.address()).expect("a server that answers");
        all.iter().filter(|path| path.contains(part)).count() == count
    });
}

impl Line for ZooKeeper {
    const ENGINE: &'static str = "zookeeper";
    const FLOOR: &'static str = "zookeeper-client's lock";
    const DRIVER: &'static str = "zookeeper-client";
    const BAR: &'static str = "≥ 1.3 ×";
    const COUNTS: Counts = Counts { rounds: 9, handoffs: 800, drains: (1, 20), warm: WARM };
    const PEERS: &'static [Peer] = &[
        Peer { name: "Curator", file: "curator", alone: true, many: true, factor: 1.3 },
        Peer { name: "kazoo", file: "kazoo", alone: true, many: true, factor: 1.3 },
        Peer { name: "go-zookeeper", file: "go-zookeeper", alone: true, many: true, factor: 1.3 },
    ];

    fn start() -> ZooKeeper {
        start()
    }

    fn floor(&self) -> Command {
        program(&["zookeeper-side-peer", &url(self)])
    }

    fn peer_url(&self) -> String {
        self.url()
    }

    fn wait_for(&self, _: usize, waiting: usize, _: usize) {
        wait_for_nodes(self, "all waited in the queue", "-lock-", waiting + 1);
    }

    fn wait_for_peers(&self, waiting: usize) {
        wait_for_nodes(self, "all waited in the queue", "lock", waiting + 1);
    }

    fn wait_until_empty(&self) {
        wait_for_nodes(self, "the line is empty", "lock", 0);
    }
}
