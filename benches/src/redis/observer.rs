//! An observer of a queue: it takes no part in it.

use super::server::Auditor;
use crate::client::{NAME, connect, runtime};
use crate::crowd::wait_until;
use fencepost::Locks;
use fencepost_testkit::redis::Redis;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Looks at a line without a share in it.
pub(crate) struct Observer {
    runtime: Runtime,
    locks: Locks,
    auditor: Auditor,
}

impl Observer {
    /// One beside the server.
    pub(crate) fn of(server: &Redis) -> Observer {
        let runtime = runtime();
        let locks = runtime.block_on(connect(&server.url()));
        Observer { runtime, locks, auditor: Auditor::of(server) }
    }

    /// Waits until so many stand in fencepost's line.
    pub(crate) fn in_line(&self, count: usize) {
        wait_until("all waited in the queue", || self.waiting() == count);
    }

    /// How many stand in fencepost's line.
    pub(crate) fn waiting(&self) -> usize {
        self.runtime.block_on(self.locks.inspect(NAME)).expect("a server that answers").waiters().count()
    }

    /// Waits until so many stand in a blocking command.
    pub(crate) fn blocked(&mut self, count: usize) {
        wait_until("all waited in the queue", || self.auditor.blocked() == count);
    }
}

/// For one whose line cannot be looked at: by then every waiter has asked.
pub(crate) fn a_second(_: usize) {
    std::thread::sleep(Duration::from_secs(1));
}
