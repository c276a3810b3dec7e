//! The clock of a client for tests.

use std::time::Duration;

use crate::time::{Clock, Moment};

/// How often the runtime's other tasks get their turn before the clock goes on.
const TURNS: usize = 8;

/// The clock of a client for tests. It stands still until the test moves it.
///
/// It is not tokio's clock. `tokio::time::advance` does not move it, and it does not move tokio's.
#[derive(Clone, Debug)]
pub struct TestClock(Clock);

impl TestClock {
    pub(super) fn new(clock: Clock) -> TestClock {
        TestClock(clock)
    }

    /// Returns the moment now.
    pub fn now(&self) -> Moment {
        self.0.now()
    }

    /// Moves the clock forward by `by`, from timer to timer.
    ///
    /// Timers fire in their order, and the tasks that a timer wakes run before the next one fires. So leases are renewed and
    /// waiting times end as they do in a program that runs. That order is certain on a current-thread runtime, which is the
    /// default of `#[tokio::test]`. On a multi-thread runtime, tasks run beside this call: await what they do before you
    /// check it.
    ///
    /// # Cancel safety
    /// Dropped midway, the clock stays where it is.
    pub async fn advance(&self, by: Duration) {
        let end = self.0.now() + by;
        turns().await;
        while let Some(next) = self.0.next_timer().filter(|next| *next <= end) {
            self.0.advance_to(next);
            turns().await;
        }
        self.0.advance_to(end);
        turns().await;
    }

    /// Moves the clock forward by `by` in one step, as time passes for a process that is paused.
    ///
    /// No task runs meanwhile, so a lease that is shorter than `by` ends without a renewal.
    pub fn jump(&self, by: Duration) {
        self.0.advance_to(self.0.now() + by);
    }
}

/// Lets the other tasks of the runtime run.
async fn turns() {
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
    }
}
