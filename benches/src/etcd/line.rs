//! Lines at an etcd server, beside keys and watches by hand.

use super::floor::KEYS;
use super::start;
use crate::client::{NAME, connect, runtime};
use crate::crowd::wait_until;
use crate::cycle::Counted;
use crate::handoff::{Counts, Line};
use crate::peers::Peer;
use crate::side::program;
use fencepost::Locks;
use fencepost_testkit::etcd::Etcd;
use std::cell::Cell;
use std::process::Command;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Claims of one process that wait at the server. The others wait in their process.
const WAITING: usize = 64;

/// The time after which the server sends events to a thousand watches at once.
const SYNCED: Duration = Duration::from_millis(300);

/// A server, and one who looks at its lines without a share in them.
pub(crate) struct Observed {
    server: Etcd,
    runtime: Runtime,
    locks: Locks,
    /// The requests of a look at a line with a holder.
    look: u64,
    /// The requests that all looks were.
    looks: Cell<u64>,
}

impl Observed {
    fn wait_for(&self, there: usize) {
        wait_until("all waited in the queue", || {
            self.looks.set(self.looks.get() + self.look);
            let info = self.runtime.block_on(self.locks.inspect(NAME)).expect("a server that answers");
            info.waiters().count() == there
        });
    }
}

impl Counted for Observed {
    fn client_url(&self) -> String {
        self.server.url()
    }

    fn sent(&self, work: impl FnOnce()) -> (f64, String) {
        let before = self.looks.get();
        let (all, _) = self.server.sent(work);
        let sent = all - (self.looks.get() - before) as f64;
        (sent, format!("{sent} requests"))
    }
}

impl Line for Observed {
    const ENGINE: &'static str = "etcd";
    const FLOOR: &'static str = "keys and watches by hand";
    const DRIVER: &'static str = "tonic";
    const BAR: &'static str = "≥ 1,400 1/s";
    const COUNTS: Counts = Counts { rounds: 3, handoffs: 1_000, drains: (1, 20), warm: 0 };
    const PEERS: &'static [Peer] =
        &[Peer { name: "etcd's own lock in Go", file: "etcd", alone: true, many: true, factor: 1.0 }];

    fn start() -> Observed {
        let (server, runtime) = (start(), runtime());
        let locks = runtime.block_on(connect(&server.url()));
        let lock = locks.mutex(NAME).expect("a good name");
        let guard = runtime.block_on(lock.lock().into_future()).expect("nobody else wants it");
        let look = || _ = runtime.block_on(locks.inspect(NAME)).expect("a server that answers");
        let (look, _) = server.sent(look);
        runtime.block_on(guard.release()).expect("it is held");
        Observed { server, runtime, locks, look: look as u64, looks: Cell::new(0) }
    }

    fn floor(&self) -> Command {
        program(&["etcd-side-floor", &self.server.address().to_string()])
    }

    fn peer_url(&self) -> String {
        self.server.url()
    }

    fn wait_for(&self, way: usize, waiting: usize, processes: usize) {
        if way == 0 {
            wait_until("all waited in the queue", || self.server.look().keys(KEYS).len() == waiting + 1);
            // A watch from a revision that is past gets its events only after a while, and 512 of them at a time.
            std::thread::sleep(SYNCED);
        } else {
            self.wait_for(waiting.min(processes * WAITING));
        }
    }

    /// Its keys are those of ours, so we see them wait in the queue.
    fn wait_for_peers(&self, waiting: usize) {
        self.wait_for(waiting);
    }
}
