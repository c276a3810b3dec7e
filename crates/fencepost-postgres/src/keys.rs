//! The keys of advisory locks.

use fencepost_core::Name;
use sha2::{Digest, Sha256};

/// The key of a name: the first 8 bytes of SHA-256 of `fencepost`, a zero byte, the prefix, a zero byte and the name, big-endian and
/// signed. In SQL: `('x' || left(encode(sha256('fencepost\000PREFIX\000NAME'::bytea), 'hex'), 16))::bit(64)::int8`.
pub(crate) fn key(prefix: &str, name: &Name) -> i64 {
    let mut hash = Sha256::new();
    for part in ["fencepost", "\0", prefix, "\0", name.as_str()] {
        hash.update(part.as_bytes());
    }
    let digest: [u8; 32] = hash.finalize().into();
    let (numbers, _) = digest.as_chunks::<8>();
    i64::from_be_bytes(numbers[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operators with `psql` compute the same key.
    #[test]
    fn a_key_never_changes() {
        let name = Name::new("orders/7").unwrap();
        assert_eq!(key("", &name), -7_018_315_272_177_115_244);
        assert_ne!(key("a", &name), key("", &name));
    }
}
