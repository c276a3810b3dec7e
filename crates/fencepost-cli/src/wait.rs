//! How long a verb waits, and what signals do meanwhile.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::args::{ReleaseArgs, WaitArgs};
use crate::clock::now;
use crate::connect::{ATTEMPT, CLEANUP, attempt_limit};
use crate::exit::Failure;
use crate::signals::{Signals, ends, ends_wait, suspend};

/// The waiting time for one grant. It begins before the engine is connected to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wait {
    pub(crate) no_wait: bool,
    /// Whether holders that are overdue are evicted meanwhile.
    pub(crate) evict_overdue: bool,
    /// Whether the request may pass those that wait.
    pub(crate) unfair: bool,
    bound: Option<Duration>,
    /// In nanoseconds of [`now`].
    start: u64,
}

impl Wait {
    /// Starts the waiting time that the options name.
    pub(crate) fn start(args: &WaitArgs) -> Self {
        let WaitArgs { no_wait, wait: bound, evict_overdue, unfair, .. } = *args;
        Self { no_wait, evict_overdue, unfair, bound, start: now() }
    }

    /// Returns the waiting time that the user gave.
    pub(crate) fn bound(&self) -> Option<Duration> {
        self.bound
    }

    /// Returns what is left of it. `None`: it has no end.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.bound.map(|bound| self.rest(bound))
    }

    /// Returns how long to try to connect. A command that does not wait makes one attempt, which has a limit.
    pub(crate) fn connecting(&self) -> Option<Duration> {
        if self.no_wait { Some(Duration::ZERO) } else { self.left() }
    }

    /// Returns how long the answer of an attempt may still take.
    pub(crate) fn left_of_attempt(&self) -> Duration {
        self.rest(self.bound.unwrap_or_default().max(attempt_limit()))
    }

    /// Whether one attempt is made, so that its answer is new.
    pub(crate) fn is_one_attempt(&self) -> bool {
        self.no_wait || self.bound.is_some_and(|bound| bound <= ATTEMPT)
    }

    /// Whether nothing more is tried.
    pub(crate) fn is_over(&self) -> bool {
        self.no_wait || self.left().is_some_and(|left| left.is_zero())
    }

    fn rest(&self, bound: Duration) -> Duration {
        bound.saturating_sub(Duration::from_nanos(now().saturating_sub(self.start)))
    }
}

/// The time that the end of a lock may take. It begins with the release, and what is left of it is for the cleanup.
#[derive(Debug)]
pub(crate) struct End {
    limit: Duration,
    start: Option<Instant>,
}

impl End {
    pub(crate) fn new(args: &ReleaseArgs) -> Self {
        Self { limit: args.release_wait, start: None }
    }

    /// Returns what is left of it, and starts it.
    pub(crate) fn left(&mut self) -> Duration {
        let start = *self.start.get_or_insert_with(Instant::now);
        self.limit.saturating_sub(start.elapsed())
    }

    /// Returns how long the cleanup may take.
    pub(crate) fn cleanup(&mut self) -> Duration {
        // Without a release nothing was held.
        if self.start.is_some() { self.left() } else { CLEANUP }
    }
}

/// Waits for `work` while no program runs. Each signal does what it does by default: it ends the wait, with nothing left behind,
/// suspends the job, or changes nothing.
///
/// # Errors
///
/// The exit code of the signal that ended the wait.
pub(crate) async fn unless_ended<T>(
    signals: &mut Signals,
    work: impl Future<Output = T>,
) -> Result<T, Failure> {
    work_or_signal(signals, work).await.map_err(Failure::signal)
}

/// The same for a service, which such a signal asks to stop. Returns `None` if one did.
///
/// # Errors
///
/// The exit code of another signal that ended the wait.
pub(crate) async fn until_stopped<T>(
    signals: &mut Signals,
    work: impl Future<Output = T>,
) -> Result<Option<T>, Failure> {
    match work_or_signal(signals, work).await {
        Ok(answer) => Ok(Some(answer)),
        Err(signal) if ends(signal) => Ok(None),
        Err(signal) => Err(Failure::signal(signal)),
    }
}

async fn work_or_signal<T>(signals: &mut Signals, work: impl Future<Output = T>) -> Result<T, Signal> {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            biased;
            signal = signals.next() => deal_with(signal)?,
            answer = &mut work => return Ok(answer),
        }
    }
}

/// Does what the signal does by default to a process that waits.
///
/// # Errors
///
/// The signal, if it ends the wait.
pub(crate) fn deal_with(signal: Signal) -> Result<(), Signal> {
    if signal == Signal::SIGTSTP {
        suspend();
    }
    if ends_wait(signal) { Err(signal) } else { Ok(()) }
}
