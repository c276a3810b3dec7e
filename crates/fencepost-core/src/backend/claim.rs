//! One request for a resource.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::backend::admission::Mode;
use crate::name::Name;
use crate::operator::holder::HolderInfo;
use crate::random;
use crate::runtime::Runtime;
use crate::time::{Moment, nanos};
use crate::validity::Validity;

/// Names one acquisition, never two: every step at an engine is idempotent for it.
///
/// It is a capability: a program that knows the id of a grant can release, extend and take over that grant. An id has 128 random bits,
/// made with a key from the operating system, so neither an id nor the text of a [`DetachedLease`](crate::DetachedLease) tells anything of another
/// claim. An id is never shown to operators, and `Debug` hides most of it. Two ids are compared in constant time.
///
/// No capabilities: the resource's name, the fencing [`Token`](crate::Token), the [`HolderInfo`], the client's
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

    /// An id for a layer's claim number `part`, made from this one: the same every time, and different for every part. It is no
    /// secret for those who know this id.
    #[must_use]
    pub const fn derive(self, part: u32) -> ClaimId {
        // An odd multiplier permutes 128-bit numbers (SplitMix's golden ratio, widened).
        let mixed = self.0 ^ ((part as u128 + 1) << 64);
        ClaimId(mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
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

/// A resource and how it is wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Want {
    /// Which resource.
    pub name: Name,
    /// How.
    pub mode: Mode,
}

/// One request for one resource, with a fresh id.
pub struct Claim {
    /// Names it at the engine.
    pub id: ClaimId,
    /// The resource and how it is wanted.
    pub want: Want,
    /// Join the line when blocked? If not, a blocked attempt leaves nothing at the engine.
    pub join: bool,
    /// Is the lease renewed by the renewer? If not, it ends on its own `ttl` after the grant.
    pub renewed: bool,
    /// The lock is one for readers and writers, also if this claim is exclusive: some engines keep those under other names than
    /// mutexes.
    pub paired: bool,
    /// So many replicas of the engine must have the grant, and each renewal of it, before it counts. More than zero only where
    /// [`Capabilities::replicas`](crate::Capabilities::replicas) says so.
    pub replicas: u32,
    /// Who, as shown to operators.
    pub holder: Arc<HolderInfo>,
    /// What for, as shown to operators.
    pub reason: Option<Arc<str>>,
    /// Until when it is valid.
    pub validity: Arc<Validity>,
    /// What core lends.
    pub runtime: Runtime,
    /// It is one node's share of a claim that a [`Quorum`](fencepost_quorum) makes, see there. `None`: it is for itself.
    pub vote: Option<Box<Vote>>,
    /// A number that the engine may note on the claim: a slot, a row. Core does not look at it.
    pub note: AtomicU64,
    ttl: AtomicU64,
    /// Under which moment the renewer has it; see there.
    pub(crate) kept: AtomicU64,
}

impl Claim {
    /// A claim for one resource that joins the line, with a validity of its own.
    pub fn new(id: ClaimId, want: Want, ttl: Duration, holder: Arc<HolderInfo>, runtime: Runtime) -> Claim {
        Claim {
            id,
            want,
            join: true,
            renewed: true,
            paired: false,
            replicas: 0,
            holder,
            reason: None,
            validity: Arc::new(Validity::new()),
            runtime,
            vote: None,
            note: AtomicU64::new(0),
            ttl: AtomicU64::new(nanos(ttl)),
            kept: AtomicU64::new(0),
        }
    }

    /// The first (mostly: the only) resource it wants.
    pub fn want(&self) -> &Want {
        &self.want
    }

    /// How long its lease is.
    pub fn ttl(&self) -> Duration {
        Duration::from_nanos(self.ttl.load(Ordering::Relaxed))
    }

    /// Changes the length of its lease, from the next renewal on.
    pub fn set_ttl(&self, ttl: Duration) {
        self.ttl.store(nanos(ttl), Ordering::Relaxed);
    }

    /// The engine confirmed the grant for `ttl` by a request sent at `sent`. Returns whether the claim lives. Take both
    /// *before* sending: the user may change the lease's length while the request is under way.
    pub fn confirm(&self, sent: Moment, ttl: Duration) -> bool {
        self.validity.confirm(self.runtime.clock(), sent, ttl)
    }
}

/// What a node of a quorum may know of the whole claim.
///
/// An engine that heeds it never hands the resource to such a claim: it grants on being asked, remembers who was refused
/// (if the claim [joins](Claim::join)) and wakes the oldest of those when it is worth asking again. Lines on every node,
/// with contenders in different order, would lock each other out.
#[derive(Debug, Default)]
pub struct Vote {
    /// Its place in the one order of all claims: the older, the smaller. It decides who yields when a vote is split, and
    /// nothing else: clocks that differ cost time, not safety.
    pub order: u64,
    /// The token that the quorum would like to give, so that all nodes give the same; zero: none. A node takes it if it is
    /// above all that it has given for the resource (and near its own clock, if that makes its tokens).
    pub proposal: AtomicU64,
    /// Answered by the engine when it blocks the claim: the order of the oldest claim that stands in the way. Zero: unknown.
    pub rival: AtomicU64,
    /// The claim holds already, and this node, which had lost its vote or never gave it, is asked for one: with the claim's token
    /// as the proposal, which is mostly an old one. See [`Entry::raise`](crate::Entry::raise).
    pub again: bool,
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("id", &self.id)
            .field("want", &self.want)
            .field("ttl", &self.ttl())
            .field("validity", &self.validity)
            .finish_non_exhaustive()
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
