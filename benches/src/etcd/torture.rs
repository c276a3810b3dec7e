//! Cycles under kill -9 of clients, members and the leader, SIGSTOP, and bad networks.

use crate::figure::Measured;
use crate::torture::{self, LEASE, Target};
use fencepost_testkit::etcd::{Cluster, Config};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::history::Recorder;
use fencepost_testkit::sim::Rng;
use std::net::SocketAddr;
use std::time::Duration;

/// With this in the environment, leaders are stopped as well.
const STOPS: &str = "FENCEPOST_ETCD_LEADER_STOPS";

/// Counts what the checker finds over so many cycles, and what is left at the end.
pub(crate) fn cycles(wanted: usize, seed: u64) -> Measured {
    // As clusters in earnest do, it forgets old revisions; without that each member keeps every key that ever was, and slows down.
    let config = Config::new().heartbeat(50).in_memory();
    let config =
        config.argument("--auto-compaction-mode=periodic").argument("--auto-compaction-retention=10s");
    let cluster = Cluster::start(&config).expect("etcd");
    torture::cycles(cluster, wanted, seed)
}

impl Target for Cluster {
    const SEGMENT: usize = 20_000;
    const KEPT: Duration = LEASE;
    const LINGER: Duration = Duration::from_secs(15);
    const FAULTS: u64 = 2;

    fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses()
    }

    fn url(&self, hosts: &str) -> String {
        format!("etcd://{hosts}")
    }

    // A leader that is stopped for longer than a lease revokes what is alive when it wakes (etcd before 3.4.25 and 3.5.8), so leaders
    // are stopped only where it is said that the etcd of this machine is newer.
    fn strike(&mut self, fault: u64, span: Duration, rng: &mut Rng, _: &Recorder) -> Option<&'static str> {
        if fault == 0 && std::env::var_os(STOPS).is_some() && rng.chance(500) {
            self.stop().expect("a leader that can be stopped");
            std::thread::sleep(if rng.chance(500) { LEASE + span } else { span });
            self.cont().expect("a leader that can go on");
            return Some("stops of the leader");
        }
        if fault == 0 {
            self.kill().expect("a leader that can be killed");
            std::thread::sleep(span);
            self.restart().expect("a member that starts again");
            return Some("kills of the leader");
        }
        let member = rng.below(3) as usize;
        self.trouble(member, |server, _| server.restart()).expect("a member that starts again");
        self.settle().expect("a cluster that comes back");
        Some("kills of a member")
    }

    fn left(&self) -> Vec<String> {
        let look = self.look();
        let keys = look.keys("").into_iter().map(|key| format!("the key {key}"));
        keys.chain(look.leases().into_iter().map(|lease| format!("the lease {lease}"))).collect()
    }
}
