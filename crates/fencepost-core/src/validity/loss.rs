//! The state of a grant, and how it ended.

use std::fmt;
use std::sync::Arc;

/// Why a grant ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Loss {
    /// No renewal was confirmed in time.
    Expired,
    /// An operator evicted it.
    Evicted,
    /// The engine no longer knows it: deleted, flushed, failed over.
    Deleted,
    /// The session or connection it lived on ended.
    SessionEnded,
    /// It was held for its longest time: see [`max_hold`](crate::Acquire::max_hold).
    MaxHold,
    /// Its own holder released it.
    Released,
    /// Its client was [closed](crate::Client::close).
    Closed,
    /// This process was forked off its holder's, which may still hold it.
    Forked,
}

impl Loss {
    /// Returns the word for it, as in metrics and in the API of the lock service: `session_ended` for example.
    pub fn as_str(self) -> &'static str {
        match self {
            Loss::Expired => "expired",
            Loss::Evicted => "evicted",
            Loss::Deleted => "deleted",
            Loss::SessionEnded => "session_ended",
            Loss::MaxHold => "max_hold",
            Loss::Released => "released",
            Loss::Closed => "closed",
            Loss::Forked => "forked",
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::Expired => "its lease ended before a renewal was confirmed",
            Loss::Evicted => "it was evicted by an operator",
            Loss::Deleted => "the engine no longer knows it",
            Loss::SessionEnded => "the session it lived on ended",
            Loss::MaxHold => "it was held for as long as max_hold allows",
            Loss::Released => "it was released",
            Loss::Closed => "its client was closed",
            Loss::Forked => "this process was forked off its holder's",
        })
    }
}

/// How a grant stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum State {
    /// Confirmed.
    Held,
    /// Still valid, but renewals are not being confirmed.
    Suspect,
    /// Over. Somebody else may hold the resource now.
    Lost(Loss),
}

/// Is told what happens to a grant.
pub(crate) trait GrantObserver: Send + Sync {
    /// The validity ended.
    fn lost(&self, why: Loss, detail: Option<Arc<str>>);
    /// A renewal was not confirmed. `repeatedly`: nor was the one before it.
    fn renewal_failed(&self, why: &str, repeatedly: bool);
}
