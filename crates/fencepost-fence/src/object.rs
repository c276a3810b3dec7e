//! The rule for object stores that have conditional writes: S3, Google Cloud Storage, Azure, R2.
//!
//! 1. Read the object's `ETag` and its metadata [`KEY`].
//! 2. [`condition`] refuses the token, or says under which condition to write. Write with the token in the metadata.
//! 3. If the store answers 412 (or 409), somebody has written in between: start again at 1.

use crate::Error;
use std::convert::Infallible;

/// The key of the metadata that keeps the token, in decimal.
pub const KEY: &str = "fencepost-token";

/// An object as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The object's `ETag`, as the store has it.
    pub etag: String,
    /// The metadata [`KEY`]; `None` if the object has none.
    pub token: Option<String>,
}

/// The condition of a write, which is one header of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// `If-Match`: the object is still the one that was read.
    IfMatch(String),
    /// `If-None-Match: *`: there is still no object.
    IfNoneMatch,
}

impl Condition {
    /// Returns the header's name and value.
    pub fn header(&self) -> (&'static str, &str) {
        match self {
            Condition::IfMatch(etag) => ("If-Match", etag),
            Condition::IfNoneMatch => ("If-None-Match", "*"),
        }
    }
}

/// Returns the condition under which a holder with `token` may write. `seen`: what it has read; `None` if there is no object.
///
/// Metadata that is no number counts as the greatest token: somebody else uses that key, and the write is refused.
///
/// # Errors
/// [`Error::Refused`] if a later holder was here.
pub fn condition(seen: Option<&Seen>, token: impl Into<u64>) -> Result<Condition, Error<Infallible>> {
    let token = token.into();
    let Some(seen) = seen else { return Ok(Condition::IfNoneMatch) };
    let greatest = seen.token.as_ref().map_or(0, |seen| seen.parse().unwrap_or(u64::MAX));
    if greatest > token {
        return Err(Error::Refused { token });
    }
    Ok(Condition::IfMatch(seen.etag.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_conditional_on_what_was_read() {
        let seen = |token: Option<&str>| Seen { etag: "\"7\"".into(), token: token.map(Into::into) };
        assert_eq!(condition(None, 41_u64).unwrap().header(), ("If-None-Match", "*"));
        for token in [None, Some("41"), Some("42")] {
            assert_eq!(condition(Some(&seen(token)), 42_u64).unwrap().header(), ("If-Match", "\"7\""));
        }
        for token in ["43", "not a number", "-1"] {
            assert!(condition(Some(&seen(Some(token))), 42_u64).unwrap_err().is_refused());
        }
    }
}
