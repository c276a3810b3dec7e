//! ZooKeeper: beside the bare driver and the lock that comes with it, and under kills, stops and cut networks.

pub(crate) mod counter;
mod crowd;
pub(crate) mod cycle;
pub(crate) mod deleted;
pub(crate) mod handoff;
pub(crate) mod killed;
pub(crate) mod kinds;
pub(crate) mod partition;
pub(crate) mod peer;
pub(crate) mod peers;
mod server;
pub(crate) mod soak;
pub(crate) mod steady;
pub(crate) mod torture;

use crate::figure::{Figure, Measured};
use crate::impatient;
use fencepost_testkit::zookeeper::{ZooKeeper, word};

/// Cycles and handoffs before one counts: the server compiles what it runs often, which takes the cores from those who are measured.
const WARM: usize = 10_000;

/// Counts nodes, watches and connections that impatient waits leave.
pub(crate) fn impatient(count: usize) -> Measured {
    let server = server::start();
    let look = || {
        let said = word(server.address(), "mntr").expect("a server that answers its operator");
        let value = |name: &str| said.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        ["zk_znode_count", "zk_watch_count", "zk_num_alive_connections"]
            .map(|name| value(name).expect("mntr has it"))
            .to_vec()
    };
    impatient::waits(&server::url(&server), count, &["nodes", "watches", "connections"], look)
}

/// Starts a server. Returns it with the URL for fencepost.
pub(crate) fn start() -> (ZooKeeper, String) {
    let server = server::start();
    let url = server::url(&server);
    (server, url)
}

/// Every row of the table.
pub(crate) fn figures() -> Vec<Figure> {
    let mut figures = vec![cycle::one_task()];
    figures.extend(handoff::LINES.map(handoff::rate));
    figures
}
