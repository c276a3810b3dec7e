//! Names of resources.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};

/// The name of a resource: 1 to 255 bytes of UTF-8, no control characters, no white space at either end.
///
/// Anything else is allowed, `/`, `{` and spaces included: engines escape what they must, so that `a` and `a/b` never
/// meet. Names are compared byte by byte.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 255;

    /// Checks `name`.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid), with the rule that it broke.
    pub fn new(name: &str) -> Result<Name> {
        let rule = if name.is_empty() {
            "it is empty"
        } else if name.len() > Self::MAX_BYTES {
            "it is longer than 255 bytes"
        } else if name.chars().any(char::is_control) {
            "it contains a control character"
        } else if name.trim() != name {
            "it begins or ends with white space"
        } else {
            return Ok(Name(name.into()));
        };
        let shown: String = name.chars().take(40).collect();
        Err(Error::invalid(format!(
            "{shown:?} is not a valid lock name: {rule}; a name is 1 to 255 bytes of UTF-8 without control characters or \
             white space at its ends"
        )))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as shared text.
    pub fn shared(&self) -> &Arc<str> {
        &self.0
    }
}

impl From<Name> for Arc<str> {
    fn from(name: Name) -> Arc<str> {
        name.0
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_name_is_refused_with_its_rule() {
        for (name, rule) in [
            ("", "empty"),
            (" a", "white space"),
            ("a\u{a0}", "white space"),
            ("a\nb", "control"),
            ("a\0", "control"),
            (&"x".repeat(256), "255"),
        ] {
            let error = Name::new(name).unwrap_err();
            assert!(error.is_invalid() && error.to_string().contains(rule), "{name:?}: {error}");
        }
    }

    #[test]
    fn odd_but_good_names() {
        for name in ["a", "stock/42", "{a}b", "größe", "a b", "🦀", "..", &"x".repeat(255)] {
            assert_eq!(Name::new(name).unwrap().as_str(), name);
        }
    }
}
