//! The guardian's timer on CLOCK_BOOTTIME, and the times that a lease allows.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// The grace a lease allows: the user's, but never more than a third of the lease.
pub(crate) fn grace(wish: Duration, ttl: Duration) -> Duration {
    wish.min(ttl / 3)
}

/// Returns the time of a lease that must be left when SIGKILL is sent: 250 ms or a tenth of the lease, the greater of both.
pub(crate) fn floor(ttl: Duration) -> Duration {
    (ttl / 10).max(Duration::from_millis(250))
}

/// A timer that a poll loop can wait for.
#[derive(Debug)]
pub(crate) struct Timer {
    timer: TimerFd,
    set: Option<u64>,
}

impl Timer {
    pub(crate) fn new() -> nix::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        Ok(Self { timer: TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?, set: None })
    }

    /// Lets the timer fire at `moment`, or never.
    pub(crate) fn set(&mut self, moment: Option<u64>) -> nix::Result<()> {
        if moment == self.set {
            return Ok(());
        }
        self.set = moment;
        match moment {
            // A time of zero would disarm it.
            Some(moment) => self.timer.set(
                Expiration::OneShot(TimeSpec::from_duration(Duration::from_nanos(moment.max(1)))),
                TimerSetTimeFlags::TFD_TIMER_ABSTIME,
            ),
            None => self.timer.unset(),
        }
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::now;

    const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn grace_and_floor_leave_room() {
        assert_eq!(grace(secs(5), secs(30)), secs(5));
        assert_eq!(grace(secs(5), secs(3)), secs(1));
        assert_eq!(floor(secs(30)), secs(3));
        assert_eq!(floor(secs(1)), Duration::from_millis(250));
    }

    #[test]
    fn a_moment_in_the_past_fires_at_once() {
        let mut timer = Timer::new().unwrap();
        timer.set(Some(now().saturating_sub(1))).unwrap();
        let mut at = [nix::poll::PollFd::new(timer.as_fd(), nix::poll::PollFlags::POLLIN)];
        assert_eq!(nix::poll::poll(&mut at, 5000u16), Ok(1));
    }
}
