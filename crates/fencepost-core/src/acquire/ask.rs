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
}
