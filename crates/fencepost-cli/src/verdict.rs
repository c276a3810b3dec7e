//! The result of a check, for people and for monitoring.

use std::time::Duration;

/// The answer of a check, in the order of its exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Ok,
    Warning,
    Critical,
    Unknown,
}

impl Status {
    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Warning => "WARNING",
            Self::Critical => "CRITICAL",
            Self::Unknown => "UNKNOWN",
        }
    }
}

/// The result of a check.
#[derive(Debug, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) status: Status,
    /// A sentence that begins with the lock's name.
    pub(crate) text: String,
    /// How long ago the last good run ended.
    pub(crate) age: Option<Duration>,
    /// How long the lock has been held by the one who has held it longest; zero if it is free.
    pub(crate) held: Option<Duration>,
}

impl Verdict {
    pub(crate) fn unknown(text: String) -> Self {
        Self { status: Status::Unknown, text, age: None, held: None }
    }
}
