//! How a request ended.

use crate::error::{Error, Result};
use crate::guard::Guard;

pub(crate) enum Outcome<G = Guard> {
    Granted(G),
    Busy,
    Timeout(Error),
}

impl<G> Outcome<G> {
    /// Returns what a request was granted that waits.
    pub(crate) fn waited(self) -> Result<G> {
        match self {
            Outcome::Granted(guard) => Ok(guard),
            Outcome::Busy => unreachable!("a claim in the queue is not answered busy"),
            Outcome::Timeout(error) => Err(error),
        }
    }

    /// Returns what a request was granted that does not wait.
    pub(crate) fn tried(self) -> Result<Option<G>> {
        match self {
            Outcome::Granted(guard) => Ok(Some(guard)),
            // The time is over because the lock is busy, or because the engine did not answer.
            Outcome::Timeout(error) if !error.is_timeout() => Err(error),
            Outcome::Busy | Outcome::Timeout(_) => Ok(None),
        }
    }

    pub(crate) fn map<T>(self, change: impl FnOnce(G) -> T) -> Outcome<T> {
        match self {
            Outcome::Granted(guard) => Outcome::Granted(change(guard)),
            Outcome::Busy => Outcome::Busy,
            Outcome::Timeout(error) => Outcome::Timeout(error),
        }
    }
}
