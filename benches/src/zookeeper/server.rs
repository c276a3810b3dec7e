//! A ZooKeeper of one's own, and what it counts.

use crate::cycle::Counted;
use fencepost_testkit::zookeeper::{Config, ZooKeeper, word};
use std::time::Duration;

/// The server's tick.
pub(crate) const TICK: Duration = Duration::from_millis(500);

/// Starts a server as it runs in production: every write is on the disk before it is answered.
pub(crate) fn start() -> ZooKeeper {
    let config = Config::new().fast().synced().tick(TICK);
    ZooKeeper::start(&config).expect("ZooKeeper's jars, which `cargo xtask test` installs")
}

impl Counted for ZooKeeper {
    fn client_url(&self) -> String {
        url(self)
    }

    fn sent(&self, work: impl FnOnce()) -> (f64, String) {
        let before = requests(self);
        work();
        let sent = requests(self) - before;
        (sent, format!("{sent} requests, pings, probes and the count itself among them"))
    }
}

/// How many requests clients have sent since the server started, pings included.
pub(crate) fn requests(server: &ZooKeeper) -> f64 {
    let text = word(server.address(), "mntr").expect("a server that answers");
    let line = text.lines().find_map(|line| line.strip_prefix("zk_packets_received"));
    line.and_then(|number| number.trim().parse().ok()).expect("a count")
}

/// The URL of a path of nodes at the server.
pub(crate) fn url(server: &ZooKeeper) -> String {
    format!("{}/bench", server.url())
}
