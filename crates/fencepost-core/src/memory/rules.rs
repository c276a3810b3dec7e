//! The parts that the queues of one engine share: the numbers that grow.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::claim::Claim;
use crate::token::Token;

/// The rules of one engine.
pub(super) struct Rules {
    /// The last token of any resource: one counter grows for all.
    last: AtomicU64,
    /// How many claims have waited.
    arrivals: AtomicU64,
    /// Tokens are at least the time of the claim's wall clock plus so many microseconds. `None`: they count from 1.
    pub(super) clock_offset: Option<i64>,
}

impl Rules {
    pub(super) fn new(clock_offset: Option<i64>) -> Rules {
        Rules { last: AtomicU64::new(0), arrivals: AtomicU64::new(0), clock_offset }
    }

    /// Returns the number of a claim that begins to wait: greater than all before.
    pub(super) fn next_arrival(&self) -> u64 {
        self.arrivals.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn next_token(&self) -> Token {
        Token::new(self.last.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Makes the token of a grant of `claim`.
    pub(super) fn draw(&self, claim: &Claim) -> Token {
        let proposal = claim.vote.as_ref().map(|vote| Token::new(vote.proposal.load(Ordering::Relaxed)));
        proposal.and_then(|token| self.take_token(token)).unwrap_or_else(|| self.token_for(claim))
    }

    fn token_for(&self, claim: &Claim) -> Token {
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
