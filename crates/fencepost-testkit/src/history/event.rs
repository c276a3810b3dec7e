//! One thing that happened to one claim, process or resource.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Names a claim in a history: the process (or simulated client) that made it, and its number there.
///
/// It is not the claim's id at the engine: an engine that mixes up ids must not be able to mix up the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "(u32, u32)", into = "(u32, u32)")]
pub struct Key {
    /// The process or simulated client.
    pub process: u32,
    /// The claim's number in it, from 1; 0 where an event is about the process itself.
    pub number: u32,
}

impl From<(u32, u32)> for Key {
    fn from((process, number): (u32, u32)) -> Key {
        Key { process, number }
    }
}

impl From<Key> for (u32, u32) {
    fn from(key: Key) -> (u32, u32) {
        (key.process, key.number)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.process, self.number)
    }
}

/// What a claim wants of its resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// Beside other readers.
    Shared,
    /// `n` of `of` permits.
    Permits {
        /// How many it wants.
        n: u32,
        /// How many it believes there are.
        of: u32,
    },
}

impl Mode {
    /// Whether both can be held at once.
    pub fn fits(self, other: Mode) -> bool {
        match (self, other) {
            (Mode::Shared, Mode::Shared) => true,
            (Mode::Permits { n, of }, Mode::Permits { n: m, of: most }) => n + m <= of.max(most),
            _ => false,
        }
    }
}

impl From<fencepost_core::Mode> for Mode {
    fn from(mode: fencepost_core::Mode) -> Mode {
        match mode {
            fencepost_core::Mode::Exclusive => Mode::Exclusive,
            fencepost_core::Mode::Shared => Mode::Shared,
            fencepost_core::Mode::Permits { n, of } => Mode::Permits { n, of },
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Exclusive => f.write_str("exclusive"),
            Mode::Shared => f.write_str("shared"),
            Mode::Permits { n, of } => write!(f, "{n} of {of} permits"),
        }
    }
}

/// How long a claim is ready to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Patience {
    /// Not at all: it is granted now or told "busy".
    Try,
    /// Until the moment, in nanoseconds of the history's clock.
    Until(u64),
    /// For ever.
    Ever,
}

/// An event: when, whose, what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Nanoseconds of the clock that all recorders of the history share.
    pub at: u64,
    /// The claim, or the process with number 0.
    pub by: Key,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// What happened.
///
/// The order of recording is what makes a history sound: `Asked` and `ReleaseBegan` are recorded *before* the call,
/// answers *after* it returned. Then whatever lies between `Granted` and `ReleaseBegan` was certainly held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// The claim is about to be made.
    Asked {
        /// What it is for.
        resource: Arc<str>,
        /// How it wants it.
        mode: Mode,
        /// How long it waits.
        patience: Patience,
        /// Its lease in nanoseconds: how long the engine may keep what a dead or withdrawn claim has left.
        ttl: u64,
    },
    /// The engine confirmed its place in line until the moment.
    Waiting {
        /// When the request was sent that was answered so.
        sent: u64,
        /// Until when the engine keeps the place unasked.
        until: u64,
    },
    /// The engine had lost its place; it stands behind the others again.
    Unseated,
    /// The grant has come back to the caller.
    Granted {
        /// Its fencing token.
        token: u64,
        /// Until when it is known to be valid.
        until: u64,
    },
    /// "Busy" has come back to the caller.
    Busy,
    /// The caller's waiting time is over.
    TimedOut,
    /// An error has come back; the claim may linger for its lease.
    Failed,
    /// The caller has dropped the future of its request; the claim may linger for its lease.
    Dropped,
    /// The guard said that it is held, at this very position: see [`Recorder::ensured`](super::Recorder::ensured).
    Ensured {
        /// Until when the grant is known to be valid.
        until: u64,
    },
    /// The holder has seen its loss.
    Lost,
    /// The release, or the drop of the guard, is about to be called.
    ReleaseBegan,
    /// The release has come back.
    Released {
        /// Whether the engine has confirmed it.
        sure: bool,
    },
    /// An operator is about to evict a holder.
    Evicted {
        /// Of what.
        resource: Arc<str>,
        /// The holder's token.
        token: u64,
        /// Without waiting for its release: this one breaks in.
        now: bool,
    },
    /// The process stands still from here.
    Paused,
    /// The process runs again.
    Resumed,
    /// The process is about to be killed.
    Died,
    /// The engine was asked at one instant who holds the resource.
    Listed {
        /// What.
        resource: Arc<str>,
        /// How each of its holders holds it.
        holders: Vec<Mode>,
    },
    /// Something was still at the engine when all was over.
    Removed {
        /// Of which resource.
        resource: Arc<str>,
        /// What: a key, a row, a node, a holder, a waiter.
        what: String,
    },
}
