//! Three copies before one Redis: clients, copies and networks fail at random.

use super::Copy;
use crate::figure::Measured;
use crate::redis;
use crate::torture::{self, LEASE, Target};
use fencepost_testkit::history::Recorder;
use fencepost_testkit::redis::Redis;
use fencepost_testkit::sim::Rng;
use nix::sys::signal::{Signal, kill};
use std::cell::Cell;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

const COPIES: usize = 3;

/// Counts what the checker finds over so many cycles, and what is left at the end.
pub(crate) fn cycles(wanted: usize, seed: u64) -> Measured {
    let server = redis::start();
    let copies = std::array::from_fn(|_| Copy::start(&server.url()));
    torture::cycles(Copies { server, copies, next: Cell::new(0) }, wanted, seed)
}

struct Copies {
    server: Redis,
    copies: [Copy; COPIES],
    /// The copy of the next client.
    next: Cell<usize>,
}

impl Target for Copies {
    const SEGMENT: usize = 10_000;
    const KEPT: Duration = LEASE;
    /// A killed client's place stays for 5 s. A killed copy's record of a key stays for 10 s.
    const LINGER: Duration = Duration::from_secs(20);
    const FAULTS: u64 = 3;

    fn addresses(&self) -> Vec<SocketAddr> {
        self.copies.iter().map(|copy| copy.address).collect()
    }

    /// Clients take turns at the copies.
    fn url(&self, hosts: &str) -> String {
        let hosts: Vec<&str> = hosts.split(',').collect();
        let next = self.next.replace(self.next.get() + 1);
        format!("http://{}", hosts[next % hosts.len()])
    }

    fn strike(&mut self, fault: u64, span: Duration, rng: &mut Rng, _: &Recorder) -> Option<&'static str> {
        let copy = &mut self.copies[rng.below(COPIES as u64) as usize];
        if fault == 0 {
            let _ = kill(copy.pid(), Signal::SIGSTOP);
            std::thread::sleep(if rng.chance(300) { LEASE + span } else { span });
            let _ = kill(copy.pid(), Signal::SIGCONT);
            return Some("stops of copies");
        }
        copy.process.kill();
        // A copy that stays away costs its clients their leases.
        std::thread::sleep(if rng.chance(200) { LEASE + span } else { span });
        *copy = Copy::listen(&self.server.url(), copy.address, Stdio::null());
        Some("kills of copies")
    }

    fn left(&self) -> Vec<String> {
        redis::torture::left_at(&self.server)
    }
}
