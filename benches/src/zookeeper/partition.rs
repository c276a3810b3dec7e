//! Holders whose network goes dark.

use crate::figure::Measured;
use crate::partition::Partition;
use fencepost_testkit::server::Proxy;
use fencepost_testkit::zookeeper::{Config, ZooKeeper};
use std::time::Duration;

/// The server's: sessions are as short as it allows, two of them.
const TICK: Duration = Duration::from_millis(500);

/// Counts holders that believed in their lock when the next was granted.
pub(crate) fn holders() -> Measured {
    let server = ZooKeeper::start(&Config::new().tick(TICK)).expect("ZooKeeper");
    let proxy = Proxy::start(server.address()).expect("a proxy");
    let partition = Partition {
        far: format!("zookeeper://{}/p?session=100ms", proxy.address()),
        near: format!("{}/p?session=20s", server.url()),
        proxy,
        ttl: None,
        well: 2 * TICK,
        held: format!("in sessions of {} s", 2.0 * TICK.as_secs_f64()),
    };
    partition.holders()
}
