//! How a request ended.

use crate::error::Error;
use crate::guard::Guard;

/// What became of a request.
pub enum Outcome<G = Guard> {
    Granted(G),
    Busy,
    Timeout(Error),
}

impl<G> Outcome<G> {
    pub(crate) fn map<T>(self, change: impl FnOnce(G) -> T) -> Outcome<T> {
        match self {
            Outcome::Granted(guard) => Outcome::Granted(change(guard)),
            Outcome::Busy => Outcome::Busy,
            Outcome::Timeout(error) => Outcome::Timeout(error),
        }
    }

    /// The outcome of a larger request for which this one was not granted.
    pub(crate) fn without_guard<T>(self) -> Outcome<T> {
        match self {
            Outcome::Timeout(error) => Outcome::Timeout(error),
            Outcome::Granted(_) | Outcome::Busy => Outcome::Busy,
        }
    }
}
