//! The keys of advisory locks.

use fencepost_core::Name;
use sha2::{Digest, Sha256};

/// The most permits that a name can have: each attempt may try so many keys.
pub(crate) const MAX_PERMITS: u32 = 4096;

/// The keys of a name: the four numbers of SHA-256 of `fencepost`, a zero byte, the prefix, a zero byte and the name, each of 8 bytes,
/// big-endian and signed. In SQL, the first one:
/// `('x' || left(encode(sha256('fencepost\000PREFIX\000NAME'::bytea), 'hex'), 16))::bit(64)::int8`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Keys {
    /// An exclusive holder has it exclusively. Readers and holders of permits share it.
    pub(crate) name: i64,
    /// Holders of permits share it, so that readers see them.
    pub(crate) permits: i64,
    /// Clients share it while a claim of theirs waits for a message about a release.
    pub(crate) waiting: i64,
    /// Each permit has a key: this one and those after it.
    first_permit: i64,
}

impl Keys {
    pub(crate) fn of(prefix: &str, name: &Name) -> Keys {
        let mut hash = Sha256::new();
        for part in ["fencepost", "\0", prefix, "\0", name.as_str()] {
            hash.update(part.as_bytes());
        }
        let digest: [u8; 32] = hash.finalize().into();
        let (numbers, _) = digest.as_chunks::<8>();
        let number = |at: usize| i64::from_be_bytes(numbers[at]);
        Keys { name: number(0), permits: number(1), waiting: number(2), first_permit: number(3) }
    }

    /// Returns the key of a permit.
    pub(crate) fn permit(&self, number: u32) -> i64 {
        self.first_permit.wrapping_add(number.into())
    }

    /// Returns the number of the permit with this key.
    pub(crate) fn number(&self, key: i64) -> u32 {
        u32::try_from(key.wrapping_sub(self.first_permit)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operators with `psql` compute the same key.
    #[test]
    fn a_key_never_changes() {
        let name = Name::new("orders/7").unwrap();
        assert_eq!(Keys::of("", &name).name, -7_018_315_272_177_115_244);
        assert_ne!(Keys::of("a", &name), Keys::of("", &name));
    }
}
