//! Fencing tokens.

use std::fmt;
use std::num::TryFromIntError;

/// A number that grows with every grant of a resource.
///
/// Give it to whatever the lock protects and let that refuse a smaller one than it has seen: then a holder that
/// was paused past its lease cannot write over its successor's work. (M. Kleppmann, "How to do distributed
/// locking", 2016.) Below 2^53 on every engine that draws it from a clock, so that JSON and doubles keep it whole.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[doc(alias("fencing", "RFencedLock", "lockAndGetToken"))]
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

    /// Its number as a signed one, for a database's `BIGINT`. No engine gives a token above `i64::MAX`; of one that was made
    /// from such a number this is `i64::MAX`.
    ///
    /// ```
    /// # use fencepost_core::Token;
    /// assert_eq!(Token::new(7).as_i64(), 7);
    /// assert_eq!(Token::new(u64::MAX).as_i64(), i64::MAX);
    /// ```
    pub const fn as_i64(self) -> i64 {
        if self.0 > i64::MAX as u64 { i64::MAX } else { self.0 as i64 }
    }
}

impl From<u64> for Token {
    fn from(number: u64) -> Token {
        Token(number)
    }
}

impl From<Token> for u64 {
    fn from(token: Token) -> u64 {
        token.0
    }
}

/// Fails for a negative number.
impl TryFrom<i64> for Token {
    type Error = TryFromIntError;

    fn try_from(number: i64) -> Result<Token, TryFromIntError> {
        number.try_into().map(Token)
    }
}

/// Fails above `i64::MAX`; [`as_i64`](Token::as_i64) does not.
impl TryFrom<Token> for i64 {
    type Error = TryFromIntError;

    fn try_from(token: Token) -> Result<i64, TryFromIntError> {
        token.0.try_into()
    }
}

/// Writes its number.
#[cfg(feature = "serde")]
impl serde::Serialize for Token {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(self.0)
    }
}

/// Reads a number.
#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Token {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Token, D::Error> {
        u64::deserialize(from).map(Token)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_a_number_of_either_kind() {
        assert_eq!(u64::from(Token::from(7)), 7);
        assert_eq!(Token::try_from(7_i64), Ok(Token::new(7)));
        assert!(Token::try_from(-1_i64).is_err());
        assert_eq!(i64::try_from(Token::new(7)), Ok(7));
        assert!(i64::try_from(Token::new(1 << 63)).is_err());
        assert_eq!(Token::new(1 << 63).as_i64(), i64::MAX);
        assert_eq!("7".parse::<Token>().unwrap().to_string(), "7");
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_token_is_written_as_a_number() {
        let text = serde_json::to_string(&Token::new(7)).unwrap();
        assert_eq!(text, "7");
        assert_eq!(serde_json::from_str::<Token>(&text).unwrap(), Token::new(7));
        assert!(serde_json::from_str::<Token>("-7").is_err());
    }
}
