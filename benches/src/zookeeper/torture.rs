//! Cycles under kill -9 of clients, servers and the leader, SIGSTOP, and bad networks.

use crate::figure::Measured;
use crate::torture::{self, Target};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::history::Recorder;
use fencepost_testkit::sim::Rng;
use fencepost_testkit::zookeeper::{Config, Ensemble, ephemerals};
use std::net::SocketAddr;
use std::time::Duration;

/// All sessions.
const SESSION: Duration = Duration::from_secs(3);
/// The path of nodes.
const PATH: &str = "/torture";

/// Counts what the checker finds over so many cycles, and what is left at the end.
pub(crate) fn cycles(wanted: usize, seed: u64) -> Measured {
    torture::cycles(Ensemble::start(&Config::new().fast()).expect("ZooKeeper"), wanted, seed)
}

impl Target for Ensemble {
    const SEGMENT: usize = 20_000;
    const KEPT: Duration = SESSION;
    const LINGER: Duration = Duration::from_secs(15);
    const FAULTS: u64 = 2;

    fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses()
    }

    fn url(&self, hosts: &str) -> String {
        format!("zookeeper://{hosts}{PATH}?session={}ms", SESSION.as_millis())
    }

    fn strike(&mut self, fault: u64, span: Duration, rng: &mut Rng, _: &Recorder) -> Option<&'static str> {
        if fault == 0 {
            self.kill().expect("a leader that can be killed");
            std::thread::sleep(span);
            self.restart().expect("a server that starts again");
            return Some("kills of the leader");
        }
        let index = rng.below(3) as usize;
        self.node(index).kill().expect("a server that can be killed");
        self.node(index).restart().expect("a server that starts again");
        self.settled().expect("an ensemble that comes back");
        Some("kills of a server")
    }

    fn left(&self) -> Vec<String> {
        let all = ephemerals(self.addresses()[0]).expect("a server that answers");
        all.into_iter().filter(|path| path.starts_with(PATH)).collect()
    }
}
