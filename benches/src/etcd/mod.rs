//! etcd: beside put and delete by hand, and under kills and partitions.

pub(crate) mod burst;
mod byhand;
pub(crate) mod cycle;
pub(crate) mod deleted;
pub(crate) mod handoff;
pub(crate) mod held;
pub(crate) mod killed;
pub(crate) mod peer;
pub(crate) mod torture;
pub(crate) mod users;

use crate::cycle::Counted;
use crate::figure::{Figure, Measured};
use crate::{cancelled, impatient};
use fencepost_testkit::etcd::{Config, Etcd};

/// A server whose data are in memory, so that it is its work that is measured, and not a disk.
pub(crate) fn start() -> Etcd {
    server(Config::new().heartbeat(100).in_memory())
}

/// A server as it runs in production: a write is on the disk before it is answered.
pub(crate) fn on_a_disk() -> Etcd {
    server(Config::new().heartbeat(100))
}

fn server(config: Config) -> Etcd {
    Etcd::start(&config).expect("etcd, which `cargo xtask test` installs")
}

impl Counted for Etcd {
    fn client_url(&self) -> String {
        self.url()
    }

    fn sent(&self, work: impl FnOnce()) -> (f64, String) {
        let count = || self.requests().expect("a server that counts").values().sum::<u64>();
        let before = count();
        work();
        let sent = count() - before;
        (sent as f64, format!("{sent} requests"))
    }
}

/// Counts keys that are left of requests that are given up.
pub(crate) fn cancelled() -> Measured {
    let server = start();
    cancelled::requests(&server.url(), || server.look().keys("").len())
}

/// Counts keys, leases and watches that impatient waits leave.
pub(crate) fn impatient(count: usize) -> Measured {
    let server = start();
    let look = || {
        let watches = server.watches().expect("a server with metrics");
        vec![
            server.look().keys("").len(),
            server.look().leases().len(),
            usize::try_from(watches).unwrap_or(usize::MAX),
        ]
    };
    impatient::waits(&server.url(), count, &["keys", "leases", "watches"], look)
}

/// The rows with a peer that is to be beaten.
pub(crate) fn with_peers() -> Vec<Figure> {
    vec![cycle::one_task(), handoff::beside_peer(16), handoff::beside_peer(128)]
}

/// Every row of the table.
pub(crate) fn figures() -> Vec<Figure> {
    let mut figures = vec![cycle::one_task(), cycle::one_task_on_a_disk()];
    figures.extend(handoff::CROWDS.map(handoff::rate));
    figures
}
