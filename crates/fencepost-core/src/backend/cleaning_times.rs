//! When a client removes rows that nobody needs any more.

use std::time::Duration;

use crate::runtime::Runtime;
use crate::time::jitter;

/// A client cleans for the first time between half of this time and all of it after it was opened. So a short run of the command scans no
/// table, and clients that were started together do not clean together.
const FIRST: Duration = Duration::from_secs(600);

/// One client of so many cleans when it is opened, so that old rows are removed also where every client is a short run of the command.
const AT_ONCE: u64 = 64;

/// How often a client cleans from then on.
const INTERVAL: Duration = Duration::from_secs(6 * 3600);

/// The times at which a client removes old rows, for an engine whose rows do not expire by themselves: one client of 64 when it is opened,
/// the others 5 to 10 minutes later, and each of them every 6 h from then on.
#[derive(Debug)]
pub struct CleaningTimes {
    runtime: Runtime,
    pause: Duration,
}

impl CleaningTimes {
    /// Begins to count now, when the client is opened.
    pub fn of(runtime: &Runtime) -> CleaningTimes {
        let number = runtime.client();
        let pause = if number.is_multiple_of(AT_ONCE) { Duration::ZERO } else { jitter(FIRST, number) };
        CleaningTimes { runtime: runtime.clone(), pause }
    }

    /// Waits until it is time to clean. Returns `false` if the client has stopped.
    ///
    /// # Cancel safety
    /// Safe. The time begins again with the next call.
    pub async fn next(&mut self) -> bool {
        let clock = self.runtime.clock();
        clock.sleep_until(clock.now() + self.pause).await;
        self.pause = INTERVAL;
        !clock.is_stopped()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::testing::NoTasks;
    use crate::time::Clock;

    /// Returns how long a client waits until it cleans for the first time, and then for the second time.
    fn times_of(client: u64) -> [Duration; 2] {
        let clock = Clock::manual();
        let runtime = Runtime::for_client(client, clock.clone(), Arc::new(NoTasks));
        let mut times = CleaningTimes::of(&runtime);
        [(); 2].map(|()| {
            let began = clock.now();
            let mut next = pin!(times.next());
            let mut poll = || next.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            while poll().is_pending() {
                clock.advance_to(clock.next_timer().expect("it waits for a time"));
            }
            clock.now().since(began)
        })
    }

    #[test]
    fn clients_that_start_together_do_not_clean_together() {
        let mut first: Vec<Duration> = Vec::new();
        for client in 0..1_000 {
            let [time, second] = times_of(client);
            assert_eq!(second, INTERVAL);
            first.push(time);
        }
        first.sort_unstable();
        let at_once = first.iter().filter(|time| time.is_zero()).count();
        assert_eq!(at_once, 1_000_usize.div_ceil(64));
        let later = &first[at_once..];
        assert!(
            later[0] >= FIRST / 2 && later[later.len() - 1] <= FIRST,
            "{:?} to {:?}",
            later[0],
            later.last()
        );
        // In no second more than a hundredth of them.
        let most =
            later.iter().map(|time| later.iter().filter(|other| other.as_secs() == time.as_secs()).count());
        assert!(most.max() < Some(20), "they are not spread");
    }

    #[test]
    fn a_client_that_has_stopped_does_not_clean() {
        let clock = Clock::manual();
        let runtime = Runtime::for_client(64, clock.clone(), Arc::new(NoTasks));
        let mut times = CleaningTimes::of(&runtime);
        clock.stop();
        let next = pin!(times.next());
        assert!(matches!(next.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(false)));
    }
}
