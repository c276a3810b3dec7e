//! Clients on the memory engine and a manual clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_core::{Client, Clock, Memory, Runtime, Spawner, Task};

pub(crate) const TTL: Duration = Duration::from_secs(9);

/// Runs a client's tasks beside the test's own.
struct Beside(tokio::runtime::Handle);

impl Spawner for Beside {
    fn spawn(&self, task: Task) {
        self.0.spawn(task);
    }
}

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
        let host = Arc::new(Beside(tokio::runtime::Handle::current()));
        let runtime = Runtime::for_client(self.clients, self.clock.clone(), host);
        let memory = Arc::clone(&self.memory);
        Client::builder().ttl(TTL).runtime(runtime).open(|_| Ok(memory)).unwrap()
    }

    /// Lets time pass with the client's renewals in it.
    pub(crate) async fn pass(&self, time: Duration) {
        let end = self.clock.now() + time;
        settle().await;
        while let Some(next) = self.clock.next_timer().filter(|next| *next <= end) {
            self.clock.advance_to(next);
            settle().await;
        }
        self.clock.advance_to(end);
        settle().await;
    }
}

/// Every task does what it can.
pub(crate) async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Set when it is dropped.
pub(crate) struct Ends(pub(crate) Arc<AtomicBool>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
