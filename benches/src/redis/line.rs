//! Lines at a Redis server, beside a token in a list; what a handoff costs the server.

use super::monitor::{Monitor, count};
use super::server::{Auditor, start};
use crate::client::{NAME, connect, runtime};
use crate::crowd::wait_until;
use crate::cycle::Counted;
use crate::figure::Measured;
use crate::handoff::{Counts, LINES, Line, drained, worst};
use crate::peers::Peer;
use crate::side::program;
use fencepost::Locks;
use fencepost_testkit::redis::Redis;
use std::cell::RefCell;
use std::process::Command;
use std::time::Duration;
use tokio::runtime::Runtime;

/// A server, and one who looks at its lines without a share in them.
pub(crate) struct Observed {
    server: Redis,
    runtime: Runtime,
    locks: Locks,
    auditor: RefCell<Auditor>,
    /// The addresses of the connections of those who look.
    own: Vec<String>,
}

impl Observed {
    fn waiting(&self) -> usize {
        self.runtime.block_on(self.locks.inspect(NAME)).expect("a server that answers").waiters().count()
    }
}

impl Counted for Observed {
    fn client_url(&self) -> String {
        self.server.url()
    }

    fn sent(&self, work: impl FnOnce()) -> (f64, String) {
        let monitor = Monitor::of(&self.server.url());
        work();
        let mut sent = monitor.end();
        sent.retain(|sent| !self.own.contains(&sent.address));
        count(&sent)
    }
}

impl Line for Observed {
    const ENGINE: &'static str = "redis";
    const FLOOR: &'static str = "BLPOP and LPUSH";
    const DRIVER: &'static str = "redis";
    const BAR: &'static str = "≥ 0.5 ×";
    const COUNTS: Counts = Counts { rounds: 3, handoffs: 1_600, drains: (3, 50), warm: 0 };
    const PEERS: &'static [Peer] = &[
        Peer { name: "rslock", file: "rslock", alone: false, many: false, factor: 1.0 },
        Peer { name: "redsync", file: "redsync", alone: false, many: true, factor: 1.0 },
        Peer { name: "Redisson", file: "redisson", alone: false, many: true, factor: 5.0 },
        Peer { name: "Redisson's fair lock", file: "redisson-fair", alone: false, many: true, factor: 5.0 },
        Peer { name: "distributed-lock", file: "distributed-lock", alone: true, many: true, factor: 1.0 },
        Peer { name: "redlock for Rust", file: "redlock", alone: true, many: true, factor: 1.0 },
        Peer { name: "redis-py", file: "redis-py", alone: true, many: true, factor: 1.0 },
        Peer { name: "python-redis-lock", file: "python-redis-lock", alone: true, many: true, factor: 1.0 },
        Peer { name: "redlock for Node.js", file: "node-redlock", alone: true, many: true, factor: 1.0 },
    ];

    fn start() -> Observed {
        let (server, runtime) = (start(), runtime());
        let locks = runtime.block_on(connect(&server.url()));
        let auditor = RefCell::new(Auditor::of(&server));
        let mut observed = Observed { server, runtime, locks, auditor, own: Vec::new() };
        assert_eq!(observed.waiting(), 0);
        observed.own = observed.auditor.borrow_mut().clients();
        observed
    }

    fn floor(&self) -> Command {
        program(&["redis-side-floor", &self.server.url(), NAME])
    }

    fn peer_url(&self) -> String {
        self.server.url()
    }

    fn wait_for(&self, way: usize, waiting: usize, _: usize) {
        wait_until("all waited in the queue", || match way {
            0 => self.auditor.borrow_mut().blocked() == waiting,
            _ => self.waiting() == waiting,
        });
    }

    /// The lines of most of them cannot be looked at: after a second every waiter has asked.
    fn wait_for_peers(&self, _: usize) {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Server time of a script in µs, at worst over the lengths of the line.
pub(crate) fn script() -> Measured {
    worst(&LINES, |waiters| {
        let line = Observed::start();
        drained(&line, waiters);
        let count = line.auditor.borrow_mut().scripts();
        (count.usec, format!("{waiters} waiters: {:.1} µs over {} calls", count.usec, count.calls))
    })
}
