//! The pauses of tasks that watch claims whose leases are not renewed.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::time::Clock;

/// After this time a task looks whether its claim is still there: tasks of claims that were released must not pile up until a third of a long
/// lease has passed.
const LOOK: Duration = Duration::from_secs(10);

/// Waits for a third of the lease of a claim that is not renewed, and returns what watches the claim. Returns `None` soon after nobody else has
/// that, and once the clock is stopped.
///
/// # Cancel safety
/// A future that is dropped leaves nothing.
pub async fn third_of_lease<T>(clock: &Clock, lease: Duration, watched: &Weak<T>) -> Option<Arc<T>> {
    let end = clock.now() + lease / 3;
    loop {
        clock.sleep_until(end.min(clock.now() + LOOK)).await;
        if watched.strong_count() == 0 || clock.is_stopped() {
            return None;
        }
        if clock.now() >= end {
            return watched.upgrade();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn a_wait_ends_after_a_third_or_soon_after_nobody_has_what_is_watched() {
        let clock = Clock::manual();
        let watched = Arc::new(());
        let weak = Arc::downgrade(&watched);
        let cx = &mut Context::from_waker(Waker::noop());
        let mut third = pin!(third_of_lease(&clock, Duration::from_secs(90), &weak));
        for _ in 0..3 {
            assert!(third.as_mut().poll(cx).is_pending());
            clock.advance_to(clock.now() + LOOK);
        }
        assert!(matches!(third.poll(cx), Poll::Ready(Some(_))));
        let mut none = pin!(third_of_lease(&clock, Duration::from_secs(9_000), &weak));
        assert!(none.as_mut().poll(cx).is_pending());
        drop(watched);
        clock.advance_to(clock.now() + LOOK);
        assert!(matches!(none.poll(cx), Poll::Ready(None)));
    }
}
