//! Names, ids and checks that follow from a caller's idempotency key.
//!
//! A repeated request must find its grant at each copy of the service, so the engine keeps a small record for each key. The copy that works
//! on the request writes the record, with a number of its own for this attempt. That number, together with the key, gives the id of the
//! claim. So each copy that knows the key finds the grant, and no two attempts share an id: a copy that was paused and has lost the record
//! cannot withdraw the grant of its successor. A program that does not know the key learns neither the lease nor the request from the
//! record.
//!
//! The reason of an eviction is a record, too: the holder extends its lease at any copy of the service, and is told why it cannot.

use fencepost_core::{ClaimId, Name, Token};
use sha2::{Digest, Sha256};

use crate::problem::{Answer, Problem};

/// Between the name of the lock and the digits of its record.
const MARK: &str = "#";
const DIGITS: usize = 32;
/// The shortest and the longest key. A key is a secret: who knows it gets the lease.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 16..=255;

/// The meaning of a caller's key for one lock. There is no `Debug`: it is a secret.
#[derive(Clone)]
pub(crate) struct Key {
    secret: [u8; 32],
    /// The name of the record.
    pub(crate) record: Name,
    /// Tells a repeated request from another one with the same key.
    pub(crate) request: String,
}

impl Key {
    /// Reads a key. `caller` keeps the keys of different callers apart. `request` is the request without its waiting time.
    pub(crate) fn new(key: &str, caller: &str, name: &Name, request: &[u8]) -> Answer<Key> {
        if !KEY_BYTES.contains(&key.len()) || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Problem::invalid(
                "the header Idempotency-Key has 16 to 255 visible characters of ASCII; use a random UUID",
            ));
        }
        let secret = hash("key", &[caller.as_bytes(), key.as_bytes(), name.as_str().as_bytes()]);
        let record = record_of(name, &hash("record", &[&secret]))?;
        let request = hex(&hash("request", &[&secret, request]))[..DIGITS].to_owned();
        Ok(Key { secret, record, request })
    }

    /// Returns the id of the claim of an attempt.
    pub(crate) fn claim(&self, attempt: u64) -> ClaimId {
        let hash = hash("claim", &[&self.secret, &attempt.to_be_bytes()]);
        let (id, _) = hash.split_first_chunk().unwrap_or((&[0; 16], &[]));
        ClaimId::from_u128(u128::from_be_bytes(*id))
    }
}

/// Returns the name of the record of an eviction: of the grant with this token.
pub(crate) fn of_eviction(name: &Name, token: Token) -> Answer<Name> {
    record_of(name, &hash("evicted", &[name.as_str().as_bytes(), &token.get().to_be_bytes()]))
}

/// A long name is cut off: the hash tells it from others.
fn record_of(name: &Name, hash: &[u8; 32]) -> Answer<Name> {
    let name = name.as_str();
    let begin = &name[..name.floor_char_boundary(Name::MAX_BYTES - MARK.len() - DIGITS)];
    Ok(Name::new(&format!("{begin}{MARK}{}", &hex(hash)[..DIGITS]))?)
}

/// Hashes parts, each with its length, so that no two lists of parts are the same bytes.
fn hash(purpose: &str, parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [b"fencepost".as_slice(), purpose.as_bytes()].iter().chain(parts) {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_key_counts() {
        let name = |text| Name::new(text).unwrap();
        let key = |key, caller, lock, request: &str| {
            Key::new(key, caller, &name(lock), request.as_bytes()).map_err(|_| ()).unwrap()
        };
        let first = key("0123456789abcdef", "ci", "a", "x");
        assert!(first.record.as_str().starts_with("a#") && first.record.as_str().len() == 2 + DIGITS);
        for (other, same_record) in [
            (key("0123456789abcdef", "ci", "a", "y"), true),
            (key("0123456789abcdeg", "ci", "a", "x"), false),
            (key("0123456789abcdef", "cj", "a", "x"), false),
            (key("0123456789abcdef", "ci", "b", "x"), false),
        ] {
            assert_eq!(other.record == first.record, same_record);
            assert_ne!(other.request, first.request);
        }
        assert_ne!(first.claim(1), first.claim(2));
        for bad in ["", "short", "with a space in it", &"x".repeat(256)] {
            assert!(Key::new(bad, "ci", &name("a"), b"x").is_err(), "{bad}");
        }
    }
}
