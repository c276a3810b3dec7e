//! Clients on the memory engine and a manual clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_core::{Client, Clock, Memory};

use crate::manual_time;
pub(crate) use crate::manual_time::settle;

pub(crate) const TTL: Duration = Duration::from_secs(9);

pub(crate) struct Stage {
    pub(crate) memory: Arc<Memory>,
    pub(crate) clock: Clock,
    clients: u64,
}

impl Stage {
    pub(crate) fn new() -> Stage {
        Stage { memory: Memory::new(), clock: Clock::manual(), clients: 0 }
    }

    pub(crate) fn client(&mut self) -> Client {
        self.clients += 1;
        let runtime = manual_time::runtime(self.clients, &self.clock);
        let memory = Arc::clone(&self.memory);
        Client::builder().ttl(TTL).runtime(runtime).open(|_| Ok(memory)).unwrap()
    }

    /// Lets time pass with the client's renewals in it.
    pub(crate) async fn pass(&self, time: Duration) {
        manual_time::pass(&self.clock, time).await;
    }
}

/// Set when it is dropped.
pub(crate) struct Ends(pub(crate) Arc<AtomicBool>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
