//! The parts that the queues of one engine share: tokens, the length of leases, planted bugs.

use std::sync::atomic::{AtomicU64, Ordering};

use super::bug::Planted;
use crate::backend::claim::Claim;
use crate::time::Moment;
use crate::token::Token;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Leases; each claim has an identity.
    Claims,
    /// Leases, and all claims of a client are the same to the engine: for testing the local queue.
    Processes,
    /// No leases: turns in the queue of one process.
    Turns,
}

/// The rules of one engine.
pub(super) struct Rules {
    pub(super) kind: Kind,
    pub(super) planted: Planted,
    /// The last token of any resource: one counter grows for all.
    last: AtomicU64,
}

impl Rules {
    pub(super) fn new(kind: Kind, planted: Planted) -> Rules {
        Rules { kind, planted, last: AtomicU64::new(0) }
    }

    pub(super) fn next_token(&self) -> Token {
        Token::new(self.last.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Gives `token` if it is greater than every token given before.
    pub(super) fn take_token(&self, token: Token) -> Option<Token> {
        let above = |last| (token.get() > last).then_some(token.get());
        self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, above).ok().map(|_| token)
    }

    /// Returns when a lease of `claim` made at `now` ends.
    pub(super) fn lease_end(&self, claim: &Claim, now: Moment) -> Moment {
        if self.kind == Kind::Turns { Moment::NEVER } else { now + claim.ttl() }
    }
}
