//! The id of a claim.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::random;

/// Names one acquisition, never two: every step at an engine is idempotent for it.
///
/// It is a capability: a program that knows the id of a grant can release, extend and take over that grant. An id has 128 random bits,
/// made with a key from the operating system, so neither an id nor the text of a [`DetachedLease`](crate::DetachedLease) tells anything of another
/// claim. An id is never shown to operators, and `Debug` hides most of it. Two ids are compared in constant time.
///
/// No capabilities: the resource's name, the fencing [`Token`](crate::Token), the [`HolderInfo`](crate::HolderInfo), the client's
/// [number](crate::Runtime::client). They may be shown and logged.
#[derive(Clone, Copy, Eq, PartialOrd, Ord)]
pub struct ClaimId(u128);

impl ClaimId {
    /// The id with these bits.
    pub const fn from_u128(bits: u128) -> ClaimId {
        ClaimId(bits)
    }

    /// Its bits.
    pub const fn as_u128(self) -> u128 {
        self.0
    }

    /// Makes the id of a layer's claim number `part` from this one: the same every time, and another one for every part.
    ///
    /// A program that knows this id can compute the derived ones. The other way is closed: a derived id, which the engine of the part
    /// stores, tells nothing of this id or of the ids of other parts. So whoever reads one node of a quorum learns neither the text of a
    /// lease nor the ids at other nodes.
    #[must_use]
    pub fn derive(self, part: u32) -> ClaimId {
        ClaimId(random::derived(self.0, part))
    }

    /// All 32 hex digits: for engines and leases, never for logs.
    pub fn to_hex(self) -> String {
        format!("{:032x}", self.0)
    }
}

impl PartialEq for ClaimId {
    fn eq(&self, other: &ClaimId) -> bool {
        // All bits are looked at, whichever differ: the time tells nothing of an id that was guessed.
        black_box(self.0 ^ other.0) == 0
    }
}

impl Hash for ClaimId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}…", self.0 >> 112)
    }
}

/// Makes claim ids.
#[derive(Debug)]
pub(crate) enum ClaimIds {
    /// From the operating system.
    Random,
    /// For simulations, where nothing may be random.
    Counted { client: u64, count: AtomicU64 },
}

impl ClaimIds {
    pub(crate) fn counted(client: u64) -> ClaimIds {
        ClaimIds::Counted { client, count: AtomicU64::new(0) }
    }

    pub(crate) fn fresh(&self) -> ClaimId {
        match self {
            ClaimIds::Random => ClaimId(random::bits()),
            ClaimIds::Counted { client, count } => {
                let count = count.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                ClaimId(u128::from(client ^ count.rotate_left(32)) << 64 | u128::from(count))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_fresh_and_derived_ones_too() {
        for ids in [ClaimIds::Random, ClaimIds::counted(42)] {
            let mut seen = std::collections::HashSet::new();
            for _ in 0..1_000 {
                let id = ids.fresh();
                assert!(seen.insert(id));
                assert!((0..3).all(|part| seen.insert(id.derive(part))));
                assert_eq!(id.derive(1), id.derive(1));
            }
        }
    }

    /// A lease that was made at a quorum is taken up by other programs, so the rule does not change. The numbers are those of the first
    /// test vector of RFC 8439, appendix A.1.
    #[test]
    fn a_derived_id_is_the_key_stream_of_chacha20() {
        assert_eq!(ClaimId(0).derive(0).0, 0x76b8_e0ad_a0f1_3d90_405d_6ae5_5386_bd28);
    }

    #[test]
    fn ids_that_differ_in_one_bit_differ() {
        let id = ClaimIds::Random.fresh();
        assert!((0..128).all(|bit| id != ClaimId(id.0 ^ 1 << bit)));
        assert_eq!(id, ClaimId(id.0));
    }

    #[test]
    fn debug_hides_the_id() {
        let id = ClaimIds::Random.fresh();
        assert!(format!("{id:?}").len() < 10 && id.to_hex().len() == 32);
    }
}
