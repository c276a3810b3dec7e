//! Exit codes, and failures that end the command with one.

use std::fmt;

use fencepost_core::{Error, ErrorKind};

use crate::log;

/// The answer was no: the token to evict, say, is not there.
pub(crate) const NO: u8 = 1;
/// The command line breaks a rule (EX_USAGE).
pub(crate) const USAGE: u8 = 64;
/// The engine cannot be reached (EX_UNAVAILABLE).
pub(crate) const UNREACHABLE: u8 = 69;
/// A defect of fencepost (EX_SOFTWARE).
pub(crate) const DEFECT: u8 = 70;
/// The lock is busy (EX_TEMPFAIL); `-E` changes it.
pub(crate) const BUSY: u8 = 75;
/// The lock was lost.
pub(crate) const LOST: u8 = 76;
/// `--max-hold` stopped the program, as `timeout` has it.
pub(crate) const TIMED_OUT: u8 = 124;
/// The engine refuses us (EX_NOPERM).
pub(crate) const DENIED: u8 = 77;
/// The engine, or our use of it, is set up wrongly (EX_CONFIG).
pub(crate) const CONFIG: u8 = 78;
/// The command could not do its own part, as with `env`.
pub(crate) const OWN: u8 = 125;

/// The early end of a verb: an exit code, and a message that says what to do next.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// Empty: everything is said already.
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The command line breaks a rule.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }

    /// The same, once its message has been shown.
    pub(crate) fn said(mut self) -> Self {
        if !self.message.is_empty() {
            let fields = [("exit_code", self.code.into())];
            log::line(log::Level::Error, &self.message, &fields);
            self.message.clear();
        }
        self
    }

    /// A signal ended the command before it had started anything.
    pub(crate) fn signal(signal: nix::sys::signal::Signal) -> Self {
        Self::new(u8::try_from(128 + signal as i32).unwrap_or(u8::MAX), "")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The exit code that tells what kind of error it was.
fn code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Invalid | ErrorKind::Unsupported | ErrorKind::WouldDeadlock => USAGE,
        ErrorKind::Timeout => BUSY,
        ErrorKind::Lost => LOST,
        ErrorKind::Unreachable => UNREACHABLE,
        ErrorKind::Denied => DENIED,
        ErrorKind::Configuration => CONFIG,
        ErrorKind::Mismatch => NO,
        _ => DEFECT,
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(code(error.kind()), error.to_string())
    }
}

/// Something of the operating system failed in the command's own part.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(OWN, error.to_string())
    }
}
