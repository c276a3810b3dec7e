//! The request that a claim repeats.

use crate::backend::{Attempt, Reply};
use crate::entry::Entry;
use crate::error::Result;
use crate::token::Token;

/// The request that a claim repeats while it waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    Grant,
    /// Its shared grant, which has this token, is to become exclusive.
    Upgrade {
        from: Token,
    },
}

impl Ask {
    pub(super) fn send(self, entry: &mut Entry, join: bool) -> Reply<'_, Result<Attempt>> {
        match self {
            Ask::Grant => entry.attempt(),
            Ask::Upgrade { .. } => entry.upgrade(join),
        }
    }

    /// Returns the token of a grant that the engine has made, if only a note on its run is missing and its work does not rest on that.
    pub(super) fn granted_without_note(self, entry: &mut Entry) -> Option<Token> {
        match self {
            Ask::Grant => entry.grant_without_note(),
            Ask::Upgrade { from } => entry.upgrade_without_note(from),
        }
    }
}
