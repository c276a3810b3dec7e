//! An event of one claim, process or resource.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Names a claim in a history: the process (or simulated client) that made it, and its number there.
///
/// It is not the claim's id at the engine. An engine that confuses ids must not be able to confuse the
/// history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "(u32, u32)", into = "(u32, u32)")]
pub struct Key {
    /// The process or simulated client.
    pub process: u32,
    /// The claim's number in the process, from 1. An event of the process itself has the number 0.
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

/// The mode in which a claim requests its resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Excludes all others.
    Exclusive,
    /// Held beside other readers.
    Shared,
    /// `n` of `of` permits.
    Permits {
        /// The number of permits that it wants.
        n: u32,
        /// The number of permits that it assumes there are.
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

/// The timeout of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Patience {
    /// It does not wait: it is granted now or told "busy".
    Try,
    /// It waits until this time, in nanoseconds of the history's clock.
    Until(u64),
    /// It waits without a limit.
    Ever,
}

/// An event: its time, its claim, and what happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The time, in nanoseconds of the clock that all recorders of the history share.
    pub at: u64,
    /// The claim, or the process with number 0.
    pub by: Key,
    /// What happened?
    #[serde(flatten)]
    pub what: What,
}

/// The kinds of events.
///
/// A history is sound because of the order of recording: `Asked` and `ReleaseBegan` are recorded *before* the
/// call, and answers *after* it returned. A grant was certainly held between `Granted` and `ReleaseBegan`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// The claim is about to be made.
    Asked {
        /// The resource.
        resource: Arc<str>,
        /// The mode.
        mode: Mode,
        /// The timeout.
        patience: Patience,
        /// Its `ttl` in nanoseconds: how long the engine may keep the entry of a dead or withdrawn claim.
        ttl: u64,
    },
    /// The request is unfair: at its arrival it may pass the claims that wait.
    Unfair,
    /// The engine confirmed its position in the queue.
    Waiting {
        /// The time at which the request of this reply was sent.
        sent: u64,
        /// The time until which the engine keeps the position without another request.
        until: u64,
    },
    /// The engine had lost its position. It is queued again, behind the others.
    Unseated,
    /// The grant was returned to the caller.
    Granted {
        /// Its fencing token.
        token: u64,
        /// The end of its known validity.
        until: u64,
    },
    /// "Busy" was returned to the caller.
    Busy,
    /// The caller's timeout has passed.
    TimedOut,
    /// An error was returned. An entry of the claim may remain until the end of its lease.
    Failed,
    /// The caller dropped the future of its request. An entry of the claim may remain until the end of its
    /// lease.
    Dropped,
    /// The guard reported at this very position that it is held: see
    /// [`Recorder::ensured`](super::Recorder::ensured).
    Ensured {
        /// The end of its known validity.
        until: u64,
    },
    /// The holder has detected its loss.
    Lost,
    /// The release will be called next, or the guard dropped.
    ReleaseBegan,
    /// The release has returned.
    Released {
        /// Whether the engine has confirmed it.
        sure: bool,
    },
    /// A reader is about to upgrade.
    UpgradeAsked {
        /// Whether it waits for the other readers.
        waits: bool,
    },
    /// The engine confirmed the mark of an upgrade that waits.
    Marked,
    /// The upgrade was returned to the caller: from now on the reader is a writer.
    Upgraded {
        /// Its new fencing token.
        token: u64,
        /// The end of its known validity.
        until: u64,
    },
    /// The upgrade ended otherwise, and the reader stays one. A mark of it may remain until the end of its lease.
    NotUpgraded {
        /// Whether others read. No mark remains then.
        busy: bool,
    },
    /// A writer is about to become a reader, without giving the lock up.
    DowngradeBegan,
    /// The downgrade has returned. The holder is a reader in any case.
    Downgraded {
        /// Whether the engine has confirmed it. If not, the engine may still take the holder for a writer.
        sure: bool,
    },
    /// An operator will evict a holder next.
    Evicted {
        /// The resource.
        resource: Arc<str>,
        /// The holder's token.
        token: u64,
        /// Whether the eviction frees the lock at once, without waiting for the release of the holder.
        now: bool,
    },
    /// Sessions of the engine end next: its server is killed, or an operator ends some. A lock of a session ends with
    /// it, and its holder is told later.
    SessionsEnded,
    /// The process pauses here.
    Paused,
    /// The process runs again.
    Resumed,
    /// The process will be killed next.
    Died,
    /// A listing of the holders of a resource at one instant.
    Listed {
        /// The resource.
        resource: Arc<str>,
        /// The mode of each holder.
        holders: Vec<Mode>,
    },
    /// The claim is about to count a latch down, or its member to enter or to leave a barrier.
    Arrived {
        /// The gate: the latch of a generation, or one side of the barrier of a generation.
        gate: Arc<str>,
    },
    /// The member was never inside a barrier as far as it knows, or has lost its permit before it left. For the others it counts as one
    /// that has left, from a moment that it cannot know.
    Absent {
        /// The side of the barrier that it does not pass.
        gate: Arc<str>,
    },
    /// The gate was found open.
    Passed {
        /// The gate.
        gate: Arc<str>,
        /// How many have to arrive before it opens.
        of: u32,
    },
    /// A leader was seen: by itself, or by somebody who asked.
    Led {
        /// The resource.
        resource: Arc<str>,
        /// The term.
        term: u64,
        /// The leader, as it names itself.
        leader: String,
    },
    /// A piece was sold under the lock of its segment.
    Sold {
        /// The segment.
        segment: Arc<str>,
        /// The number of the piece in its segment.
        piece: u32,
    },
    /// A run of a firing begins.
    RunBegan {
        /// The job.
        job: Arc<str>,
        /// The number of the firing.
        firing: u32,
    },
    /// A run of a firing is about to report its end.
    RunEnded {
        /// The job.
        job: Arc<str>,
        /// The number of the firing.
        firing: u32,
        /// Whether it ended well.
        good: bool,
    },
    /// An entry was still at the engine at the end of the run.
    Removed {
        /// The resource.
        resource: Arc<str>,
        /// The kind of entry: a key, a row, a node, a holder, a waiter.
        what: String,
    },
}
