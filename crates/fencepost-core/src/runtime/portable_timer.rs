//! A timer for systems without Linux's `timerfd`.
//!
//! tokio's timers may stand still while the machine is suspended. So this one fires at least once a second, and the client's clock
//! then tells which timers are due: at most 1 s after the machine wakes up.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use crate::time::{Clock, Moment};

/// The longest time between two looks at the clock.
const LOOK: Duration = Duration::from_secs(1);

pub(crate) struct Timer {
    sleep: Pin<Box<Sleep>>,
    armed: bool,
}

impl Timer {
    /// Creates the timer, within the runtime that drives it.
    pub(crate) fn new() -> io::Result<Timer> {
        Ok(Timer { sleep: Box::pin(sleep(Duration::ZERO)), armed: false })
    }

    /// Sets the time at which it fires.
    pub(crate) fn arm(&mut self, clock: &Clock, at: Option<Moment>) -> Result<(), Infallible> {
        self.armed = at.is_some();
        if let Some(at) = at {
            self.sleep.as_mut().reset(Instant::now() + at.since(clock.now()).min(LOOK));
        }
        Ok(())
    }

    /// Ready after the timer has fired.
    pub(crate) fn poll_fired(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.armed {
            return Poll::Pending;
        }
        std::task::ready!(self.sleep.as_mut().poll(cx));
        self.armed = false;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn it_fires_when_it_is_armed_and_only_then() {
        let clock = Clock::boot();
        let mut timer = Timer::new().unwrap();
        let idle = poll_fn(|cx| Poll::Ready(timer.poll_fired(cx).is_pending()));
        assert!(idle.await, "it is not armed");
        let at = clock.now() + Duration::from_millis(20);
        timer.arm(&clock, Some(at)).unwrap();
        poll_fn(|cx| timer.poll_fired(cx)).await.unwrap();
        assert!(clock.now() >= at);
        timer.arm(&clock, Some(clock.now() + 3600 * LOOK)).unwrap();
        poll_fn(|cx| timer.poll_fired(cx)).await.unwrap();
        assert!(clock.now() < at + 3600 * LOOK, "it looks at the clock once a second");
    }
}
