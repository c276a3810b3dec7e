//! A clock that only the test moves, and clients whose tasks run beside the test's own.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Clock, Runtime, Spawner, Task};

/// Runs a client's tasks beside the test's own.
struct Beside(tokio::runtime::Handle);

impl Spawner for Beside {
    fn spawn(&self, task: Task) {
        self.0.spawn(task);
    }
}

/// Returns the runtime of a client. Each client has another number.
pub(crate) fn runtime(number: u64, clock: &Clock) -> Runtime {
    let host = Arc::new(Beside(tokio::runtime::Handle::current()));
    Runtime::for_client(number, clock.clone(), host)
}

/// Lets time pass, with everything in it that waits for a moment of it.
pub(crate) async fn pass(clock: &Clock, time: Duration) {
    let end = clock.now() + time;
    settle().await;
    while let Some(next) = clock.next_timer().filter(|next| *next <= end) {
        clock.advance_to(next);
        settle().await;
    }
    clock.advance_to(end);
    settle().await;
}

/// Lets every task do what it can.
pub(crate) async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}
