//! The outcomes of what an entry asks.

use crate::time::Moment;
use crate::token::Token;

/// The outcome of an attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Attempt {
    /// The claim holds its resource, with this fencing token.
    Granted(Token),
    /// The claim waits.
    Blocked {
        /// The time of the next attempt, unless the claim is woken sooner. `None`: the next attempt is made only when the claim is woken.
        next_attempt: Option<Moment>,
    },
    /// The claim is no longer at the engine: expired, deleted, evicted. Core starts again with a fresh id.
    Gone,
}

/// The outcome of [`Entry::withdraw`](crate::Entry::withdraw) or [`Entry::release`](crate::Entry::release).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Removed {
    /// A grant, now or by an earlier call for the same claim.
    Released,
    /// A position in the queue.
    Withdrawn,
    /// Nothing.
    Nothing,
}
