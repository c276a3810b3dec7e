//! A timer that also runs while the machine is suspended.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::task::{Context, Poll};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::io::unix::AsyncFd;

use crate::time::{Clock, Moment};

/// A timer on `CLOCK_BOOTTIME`: tokio's own stop while the machine is suspended.
pub(crate) struct Timer(AsyncFd<Fd>);

/// nix gives the descriptor out by one trait, tokio wants another.
struct Fd(TimerFd);

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Timer {
    /// Creates the timer, within the runtime that drives it.
    pub(crate) fn new() -> io::Result<Timer> {
        let fd = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        // The successor of `new` is unsafe, for types that may swap their descriptor; ours owns one and keeps it.
        #[expect(deprecated, reason = "its successor is unsafe")]
        AsyncFd::new(Fd(fd)).map(Timer)
    }

    /// Sets the time at which it fires.
    pub(crate) fn arm(&mut self, _clock: &Clock, at: Option<Moment>) -> nix::Result<()> {
        match at {
            Some(at) => {
                // Zero would disarm it.
                let at = TimeSpec::from_duration(Duration::from_nanos(at.as_nanos().max(1)));
                let set = TimerSetTimeFlags::TFD_TIMER_ABSTIME;
                self.0.get_ref().0.set(Expiration::OneShot(at), set)
            }
            None => self.0.get_ref().0.unset(),
        }
    }

    /// Ready after the timer has fired.
    pub(crate) fn poll_fired(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut ready = std::task::ready!(self.0.poll_read_ready(cx))?;
        // EAGAIN means that it was re-armed meanwhile: the next look at the timers is due all the same.
        let _ = self.0.get_ref().0.wait();
        ready.clear_ready();
        Poll::Ready(Ok(()))
    }
}
