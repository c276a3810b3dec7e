//! Renewals that fail.

use std::sync::Arc;
use std::task::Waker;

use crate::error::{Error, ErrorKind};
use crate::time::Moment;

/// Why a renewal failed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RenewalFailure {
    /// In words.
    pub why: Arc<str>,
    /// The kind of the engine's error.
    pub kind: ErrorKind,
    /// It may pass by itself.
    pub transient: bool,
}

impl RenewalFailure {
    /// Makes the record of a renewal that failed with `error`.
    pub fn of(error: Error) -> RenewalFailure {
        let error = error.without_effect();
        RenewalFailure { why: error.to_string().into(), kind: error.kind(), transient: error.is_transient() }
    }
}

/// The watchers of a validity, and what is wrong with its renewals.
#[derive(Default)]
pub(super) struct Status {
    /// Whom to wake when `end` is set, or it is given back.
    pub(super) watchers: Vec<(u64, Waker)>,
    /// Why renewals fail. Of no meaning unless it is in doubt, or stranded.
    pub(super) trouble: Option<RenewalFailure>,
    /// A position in the queue that is not renewed: since when.
    pub(super) stranded: Option<Moment>,
}

impl Status {
    /// Shortly before the end of a lease there is no time left for an answer: what does not pass by itself says more, and stays.
    pub(super) fn trouble(&mut self, trouble: RenewalFailure) {
        if !trouble.transient || self.trouble.as_ref().is_none_or(|known| known.transient) {
            self.trouble = Some(trouble);
        }
    }

    pub(super) fn why(&self) -> Option<Arc<str>> {
        self.trouble.as_ref().map(|trouble| Arc::clone(&trouble.why))
    }
}
