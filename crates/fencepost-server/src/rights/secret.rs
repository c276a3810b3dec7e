//! The texts of access tokens. An access token is a secret with 256 random bits, so one round of SHA-256 protects it.

use std::fmt;

use fencepost_core::{Error, Result};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Begins each access token, so that a scanner of secrets can find it.
const PREFIX: &str = "fpt1-";

/// The hash of a token: the part of it that is stored.
#[derive(Clone, Copy)]
pub(crate) struct Hash([u8; 32]);

impl Hash {
    /// Hashes the text of an access token.
    pub(crate) fn of(token: &str) -> Hash {
        Hash(Sha256::digest(token.as_bytes()).into())
    }

    /// Compares two hashes in constant time.
    pub(crate) fn is(&self, other: &Hash) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    pub(crate) fn to_bytes(self) -> [u8; 32] {
        self.0
    }

    pub(crate) fn to_hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads 64 hex digits.
    pub(crate) fn from_hex(text: &str) -> Option<Hash> {
        let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
        let mut hash = [0; 32];
        if text.len() != 2 * hash.len() {
            return None;
        }
        for (byte, pair) in hash.iter_mut().zip(text.as_bytes().chunks(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Hash(hash))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hash")
    }
}

/// Makes the text of a new access token.
///
/// # Errors
/// The operating system has no random bytes.
pub(crate) fn fresh() -> Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::invalid("the operating system gives no random bytes").because(error))?;
    Ok(bytes.iter().fold(PREFIX.to_owned(), |text, byte| format!("{text}{byte:02x}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_reads_back_and_says_nothing() {
        let token = fresh().unwrap();
        let hash = Hash::of(&token);
        assert!(token.len() == 69 && hash.is(&Hash::from_hex(&hash.to_hex()).unwrap()));
        assert!(!hash.is(&Hash::of(&fresh().unwrap())));
        assert!(Hash::from_hex("00").is_none() && Hash::from_hex(&"x".repeat(64)).is_none());
        assert_eq!(format!("{hash:?}"), "Hash");
    }
}
