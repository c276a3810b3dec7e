//! When a claim is to be renewed: what the keeper finds it by.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::sync::Arc;

use crate::backend::{Session, Stake};
use crate::claim::{Claim, ClaimId};
use crate::time::Moment;

/// In the order of the times, then of the claims' ids, which differ.
pub(super) struct Due {
    pub(super) at: Moment,
    pub(super) claim: Arc<Claim>,
}

/// Where it stands among the others: so one is found that is not at hand.
pub(super) trait Order {
    fn at(&self) -> Moment;
    fn id(&self) -> ClaimId;
}

impl Order for (Moment, ClaimId) {
    fn at(&self) -> Moment {
        self.0
    }

    fn id(&self) -> ClaimId {
        self.1
    }
}

impl Order for Due {
    fn at(&self) -> Moment {
        self.at
    }

    fn id(&self) -> ClaimId {
        self.claim.id
    }
}

impl<'a> Borrow<dyn Order + 'a> for Due {
    fn borrow(&self) -> &(dyn Order + 'a) {
        self
    }
}

impl Ord for dyn Order + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        // The claim itself is looked at where the times are the same.
        self.at().cmp(&other.at()).then_with(|| self.id().cmp(&other.id()))
    }
}

impl PartialOrd for dyn Order + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for dyn Order + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for dyn Order + '_ {}

impl Ord for Due {
    fn cmp(&self, other: &Due) -> Ordering {
        (self as &dyn Order).cmp(other)
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Due) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Due) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Due {}

impl From<(Due, Arc<dyn Session>)> for Stake {
    fn from((due, session): (Due, Arc<dyn Session>)) -> Stake {
        Stake { claim: due.claim, session }
    }
}
