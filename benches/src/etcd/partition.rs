//! Holders whose network goes dark.

use super::start;
use crate::figure::Measured;
use crate::partition::Partition;
use fencepost_testkit::server::Proxy;
use std::time::Duration;

/// The shortest that there is.
const LEASE: Duration = Duration::from_secs(2);

/// Counts holders that believed in their lock when the next was granted.
pub(crate) fn holders() -> Measured {
    let server = start();
    let proxy = Proxy::start(server.address()).expect("a proxy");
    let partition = Partition {
        far: server.url_at(proxy.address()),
        near: server.url(),
        proxy,
        ttl: Some(LEASE),
        well: LEASE / 3 * 2,
        held: format!("with a lease of {} s", LEASE.as_secs()),
    };
    partition.holders()
}
