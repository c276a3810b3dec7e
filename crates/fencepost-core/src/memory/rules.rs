//! The parts that the queues of one engine share: tokens, the length of leases, planted bugs.

use std::sync::atomic::{AtomicU64, Ordering};

use super::bug::Planted;
use crate::backend::claim::Claim;
use crate::token::Token;

/// The rules of one engine.
pub(super) struct Rules {
    pub(super) planted: Planted,
    /// The last token of any resource: one counter grows for all.
    last: AtomicU64,
    /// Tokens are at least the time of the claim's wall clock plus so many microseconds. `None`: they count from 1.
    pub(super) clock_offset: Option<i64>,
}

impl Rules {
    pub(super) fn new(planted: Planted) -> Rules {
        Rules { planted, last: AtomicU64::new(0), clock_offset: None }
    }

    pub(super) fn next_token(&self) -> Token {
        Token::new(self.last.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Makes the token of a grant of `claim`.
    pub(super) fn token_for(&self, claim: &Claim) -> Token {
        let Some(offset) = self.clock_offset else { return self.next_token() };
        let now = claim.runtime.clock().wall_micros().saturating_add_signed(offset);
        let next = |last: u64| now.max(last + 1);
        let last = self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
        Token::new(next(last.unwrap_or_default()))
    }

    /// Gives `token` if it is greater than every token given before.
    pub(super) fn take_token(&self, token: Token) -> Option<Token> {
        let above = |last| (token.get() > last).then_some(token.get());
        self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, above).ok().map(|_| token)
    }
}
