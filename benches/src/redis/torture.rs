//! Cycles under kill -9, SIGSTOP, bad networks and restarts of the server.

use crate::figure::Measured;
use crate::torture::{self, LEASE, Target};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::history::Recorder;
use fencepost_testkit::redis::{Config, Redis};
use fencepost_testkit::sim::Rng;
use std::net::SocketAddr;
use std::time::Duration;

/// Counts what the checker finds over so many cycles, and what is left at the end.
pub(crate) fn cycles(wanted: usize, seed: u64) -> Measured {
    // Its log is kept short: a restart reads all of it.
    let config = Config::new().durable().line("auto-aof-rewrite-min-size 16mb");
    torture::cycles(Redis::start(&config).expect("redis-server"), wanted, seed)
}

impl Target for Redis {
    const SEGMENT: usize = 50_000;
    const KEPT: Duration = LEASE;
    const LINGER: Duration = Duration::from_secs(10);
    const FAULTS: u64 = 1;

    fn addresses(&self) -> Vec<SocketAddr> {
        vec![self.address()]
    }

    fn url(&self, hosts: &str) -> String {
        format!("redis://{hosts}")
    }

    fn strike(&mut self, _: u64, _: Duration, rng: &mut Rng, _: &Recorder) -> Option<&'static str> {
        rng.chance(500).then(|| {
            self.kill().expect("a server that can be killed");
            self.restart().expect("a server that starts again");
            "restarts of the server"
        })
    }

    fn left(&self) -> Vec<String> {
        left_at(self)
    }
}

/// The claims of the locks, and the keys that never expire.
pub(crate) fn left_at(server: &Redis) -> Vec<String> {
    let (mut left, mut look) = (torture::claims(&server.url()), server.look());
    for key in look.keys("*") {
        if look.ask::<i64>(&["PTTL", &key]) == -1 {
            left.push(format!("the key {key}, which never expires"));
        }
    }
    left
}
