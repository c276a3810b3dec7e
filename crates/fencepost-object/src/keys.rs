//! The keys of the objects, below the prefix of the URL:
//!
//! | key | object |
//! |---|---|
//! | `locks/NAME` | the lock, held or free |
//! | `waiting/NAME/CLAIM` | a claim that waits, for operators |
//! | `records/KIND/NAME` | a small record |
//! | `conditions` | a note that the store was seen to keep conditions |
//!
//! In a name all bytes but ASCII letters, digits, `-`, `.` and `_` are written as `!` and two hexadecimal digits, because all stores take these
//! characters as they are. So `a` and `a/b` never meet. A name of the most bytes makes a key of 765 bytes, and S3 takes 1,024.

use std::fmt::Write as _;

use fencepost_core::{ClaimId, Name, RecordKind};
use object_store::path::Path;

/// The longest prefix, in bytes: with it the longest key fits into 1,024 bytes.
pub(crate) const LONGEST_PREFIX: usize = 200;

/// Makes the keys below a prefix.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: Path,
}

impl Keys {
    pub(crate) fn new(prefix: Path) -> Keys {
        Keys { prefix }
    }

    fn below(&self, parts: &[&str]) -> Path {
        parts.iter().fold(self.prefix.clone(), |path, part| path.join(*part))
    }

    pub(crate) fn locks(&self) -> Path {
        self.below(&["locks"])
    }

    pub(crate) fn lock(&self, name: &Name) -> Path {
        self.below(&["locks", &escape(name.as_str())])
    }

    pub(crate) fn all_waiting(&self) -> Path {
        self.below(&["waiting"])
    }

    pub(crate) fn waiting(&self, name: &Name) -> Path {
        self.below(&["waiting", &escape(name.as_str())])
    }

    pub(crate) fn waiter(&self, name: &Name, id: ClaimId) -> Path {
        // Whoever lists keys must not learn a secret: these digits tell claims apart, and the id does not follow from them.
        let bits = id.as_u128();
        self.waiting(name).join(format!("{:016x}", (bits ^ (bits >> 64)) as u64))
    }

    pub(crate) fn records(&self) -> Path {
        self.below(&["records"])
    }

    pub(crate) fn record(&self, kind: RecordKind, name: &Name) -> Path {
        self.below(&["records", kind.as_str(), &escape(name.as_str())])
    }

    pub(crate) fn conditions(&self) -> Path {
        self.below(&["conditions"])
    }

    /// Returns a key for an attempt of this client to find out whether the store keeps conditions.
    pub(crate) fn trial(&self, client: u64) -> Path {
        self.below(&["trials", &format!("{client:016x}")])
    }
}

fn escape(name: &str) -> String {
    let mut key = String::with_capacity(name.len());
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            // A part of a path must not be `.` or `..`.
            b'.' if at == 0 => key.push_str("!2e"),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => key.push(byte.into()),
            _ => {
                let _ = write!(key, "!{byte:02x}");
            }
        }
    }
    key
}

/// Returns the name that was escaped to `part`. `None`: it was none of ours.
pub(crate) fn name_of(part: &str) -> Option<Name> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'!' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next()?, rest.next()?];
        bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
    }
    Name::new(std::str::from_utf8(&bytes).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_a_key_of_its_own() {
        let keys = Keys::new(Path::from("team/locks"));
        for (name, key) in [
            ("nightly-report_2", "team/locks/locks/nightly-report_2"),
            ("a/b", "team/locks/locks/a!2fb"),
            ("a!2fb", "team/locks/locks/a!212fb"),
            ("..", "team/locks/locks/!2e."),
            ("ü %", "team/locks/locks/!c3!bc!20!25"),
        ] {
            let name = Name::new(name).unwrap();
            let path = keys.lock(&name);
            assert_eq!(path.as_ref(), key);
            assert_eq!(name_of(path.filename().unwrap()), Some(name));
        }
        assert_eq!(name_of("a!2"), None);
        assert_eq!(name_of("!ff"), None);
    }

    #[test]
    fn the_longest_key_fits() {
        let keys = Keys::new(Path::from("p".repeat(LONGEST_PREFIX)));
        let name = Name::new(&"/".repeat(Name::MAX_BYTES)).unwrap();
        let id = ClaimId::from_u128(u128::MAX);
        assert!(keys.waiter(&name, id).as_ref().len() <= 1_024);
        assert!(!keys.waiter(&name, id).as_ref().contains(&id.to_hex()));
    }
}
