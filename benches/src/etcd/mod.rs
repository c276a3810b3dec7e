//! etcd: beside put and delete by hand, and under kills and partitions.

pub(crate) mod burst;
mod byhand;
pub(crate) mod cycle;
pub(crate) mod deleted;
pub(crate) mod floor;
pub(crate) mod held;
mod line;
pub(crate) mod torture;
pub(crate) mod users;

pub(crate) use line::Observed;

use crate::cycle::Counted;
use crate::figure::{Figure, Measured};
use crate::{cancelled, handoff, impatient, killed, peers};
use fencepost_testkit::etcd::{Cluster, Config, Etcd};

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

/// Counts the lines on which etcd's own lock is ahead of fencepost.
pub(crate) fn ahead() -> Measured {
    let beside = handoff::beside_peers::<Observed>;
    peers::ahead::<Observed>(&[cycle::one_task(), beside(16), beside(128)])
}

/// The longest time, in seconds, that nothing could be locked after the leader was killed.
pub(crate) fn leaders() -> Measured {
    // etcd's own timers: elections after a second.
    let cluster = Cluster::start(&Config::new().heartbeat(100).in_memory()).expect("a cluster");
    let url = cluster.direct_url();
    killed::leaders(cluster, &url, "three members, elections after 1 s,")
}

/// Every row of the table.
pub(crate) fn figures() -> Vec<Figure> {
    let mut figures = vec![cycle::one_task(), cycle::one_task_on_a_disk()];
    figures.extend(handoff::figures::<Observed>());
    figures.extend([16, 64].map(|processes| handoff::rate::<Observed>(128, processes)));
    figures
}
