//! The worth of a grant that was made while the engine was away.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

/// Tells the worth of a grant that was made while the client's engine was away, by a layer that goes on without
/// it: the crate `fencepost-degrade` has one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Degraded {
    /// The fallback alone granted it. A client that still reaches the primary may hold the lock there.
    Fallback,
    /// It excludes the tasks of this client alone.
    LocalOnly,
    /// It excludes nobody.
    Unprotected,
}

impl Degraded {
    /// Returns its name, for programs: `fallback`, `local_only` or `unprotected`.
    pub fn as_str(self) -> &'static str {
        match self {
            Degraded::Fallback => "fallback",
            Degraded::LocalOnly => "local_only",
            Degraded::Unprotected => "unprotected",
        }
    }
}

impl fmt::Display for Degraded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Degraded::Fallback => {
                "was granted by the fallback engine alone, because the primary engine is away"
            }
            Degraded::LocalOnly => "excludes this process alone, because the engine is away",
            Degraded::Unprotected => "protects nothing, because the engine is away",
        })
    }
}

/// The mark of a claim: a layer sets it, and the guard shows it.
#[derive(Debug, Default)]
pub(crate) struct Mark(AtomicU8);

impl Mark {
    pub(crate) fn set(&self, degraded: Option<Degraded>) {
        let value = match degraded {
            None => 0,
            Some(Degraded::Fallback) => 1,
            Some(Degraded::LocalOnly) => 2,
            Some(Degraded::Unprotected) => 3,
        };
        self.0.store(value, Ordering::Release);
    }

    pub(crate) fn get(&self) -> Option<Degraded> {
        match self.0.load(Ordering::Acquire) {
            1 => Some(Degraded::Fallback),
            2 => Some(Degraded::LocalOnly),
            3 => Some(Degraded::Unprotected),
            _ => None,
        }
    }
}
