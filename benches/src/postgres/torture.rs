//! Cycles under kill -9 of clients and of the server, SIGSTOP, and bad networks.

use super::start;
use crate::figure::Measured;
use crate::torture::{self, LEASE, Target};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::sim::Rng;
use fencepost_testkit::sql::Postgres;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Counts what the checker finds over so many cycles, and what is left at the end.
pub(crate) fn cycles(wanted: usize, seed: u64) -> Measured {
    torture::cycles(start(), wanted, seed)
}

impl Target for Postgres {
    const SEGMENT: usize = 20_000;
    const KEPT: Duration = LEASE;
    const LINGER: Duration = Duration::from_secs(15);
    const FAULTS: u64 = 2;

    fn addresses(&self) -> Vec<SocketAddr> {
        vec![self.address()]
    }

    fn url(&self, hosts: &str) -> String {
        self.url().replace(&self.address().to_string(), hosts)
    }

    fn strike(&mut self, fault: u64, span: Duration, _: &mut Rng) -> Option<&'static str> {
        if fault == 0 {
            self.kill().expect("a server that can be killed");
            std::thread::sleep(span);
            self.restart().expect("a server that starts again");
            return Some("kills of the server");
        }
        self.stop().expect("a server that can be stopped");
        std::thread::sleep(span);
        self.cont().expect("a server that goes on");
        Some("stops of the server")
    }

    fn left(&self) -> Vec<String> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let left = super::locks(self);
            if left == 0 {
                return Vec::new();
            }
            if Instant::now() > deadline {
                return vec![format!("left: {left} advisory locks")];
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}
