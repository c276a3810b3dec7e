//! Cycles under kill -9 of clients and of the server, SIGSTOP, sessions ended by their numbers, and bad networks.

use super::{Sql, Stage, Way};
use crate::torture::{self, LEASE, Target};
use fencepost_testkit::history::{Recorder, What};
use fencepost_testkit::sim::Rng;
use std::net::SocketAddr;
use std::time::Duration;

impl<S: Sql> Target for Stage<S> {
    const SEGMENT: usize = 20_000;
    const KEPT: Duration = LEASE;
    const LINGER: Duration = Duration::from_secs(15);
    const FAULTS: u64 = 4;

    fn holds_by_sessions(&self) -> bool {
        // The rows of a lease table outlive them.
        Way::of(self.options) != Way::Lease
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        vec![self.server.address()]
    }

    fn url(&self, hosts: &str) -> String {
        self.url().replace(&self.server.address().to_string(), hosts)
    }

    fn strike(
        &mut self,
        fault: u64,
        span: Duration,
        rng: &mut Rng,
        notes: &Recorder,
    ) -> Option<&'static str> {
        let ends = || {
            if self.holds_by_sessions() {
                notes.note(0, What::SessionsEnded);
            }
        };
        match fault {
            0 => {
                ends();
                self.server.kill().expect("a server that can be killed");
                std::thread::sleep(span);
                self.server.restart().expect("a server that starts again");
                Some("kills of the server")
            }
            1 => {
                self.server.stop().expect("a server that can be stopped");
                // Past the lease, now and then.
                std::thread::sleep(if rng.chance(200) { LEASE + span } else { span });
                self.server.cont().expect("a server that goes on");
                Some("stops of the server")
            }
            _ => {
                ends();
                self.server.end_sessions();
                Some("rounds of sessions ended by their numbers")
            }
        }
    }

    fn left(&self) -> Vec<String> {
        let mut left = torture::claims(&self.url());
        let locks = if self.holds_by_sessions() { self.locks() } else { 0 };
        left.extend((locks > 0).then(|| format!("{locks} locks of sessions")));
        left
    }
}
