//! Fencing tokens.

use std::fmt;

/// A number that grows with every grant of a resource.
///
/// Give it to whatever the lock protects and let that refuse a smaller one than it has seen: then a holder that
/// was paused past its lease cannot write over its successor's work. (M. Kleppmann, "How to do distributed
/// locking", 2016.) Below 2^53 on every engine that draws it from a clock, so that JSON and doubles keep it whole.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Token(u64);

impl Token {
    /// The token with this number.
    pub const fn new(number: u64) -> Token {
        Token(number)
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::str::FromStr for Token {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Token, Self::Err> {
        text.parse().map(Token)
    }
}
