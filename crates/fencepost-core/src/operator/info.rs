//! Resources, listings and evictions, as operators use them.

use crate::name::Name;
use crate::operator::holder::{ClaimInfo, HolderInfo};
use crate::token::Token;

/// A resource as an operator sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Info {
    /// Its name.
    pub name: Name,
    /// The last token that was granted, where the engine remembers it.
    pub last_token: Option<Token>,
    /// Its holders, then its waiters in order.
    pub claims: Vec<ClaimInfo>,
}

impl Info {
    /// Those who hold it.
    pub fn holders(&self) -> impl Iterator<Item = &ClaimInfo> {
        self.claims.iter().filter(|claim| claim.holds())
    }

    /// Those who wait, in order.
    pub fn waiters(&self) -> impl Iterator<Item = &ClaimInfo> {
        self.claims.iter().filter(|claim| !claim.holds())
    }
}

/// A part of a listing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Listing {
    /// Resources that are held or waited for, by name.
    pub resources: Vec<Info>,
    /// Where the next page begins: give it as [`Page::after`]. `None`: this was the last one.
    pub next: Option<Name>,
}

/// Which part of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// Names after this one.
    pub after: Option<Name>,
    /// At most so many; at least 1.
    pub limit: usize,
}

impl Default for Page {
    fn default() -> Page {
        Page { after: None, limit: 1_000 }
    }
}

/// How to evict.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Eviction {
    /// Free the resource at once, although the evicted holder may still be at work: this breaks mutual exclusion.
    /// Without it the holder is refused further renewals and told, and the next grant follows its release or the
    /// end of its lease.
    pub now: bool,
    /// Why, for the holder and the log.
    pub reason: Option<String>,
}

impl Eviction {
    /// Returns the same with a reason that names `operator`, too: what engines carry to the holder as a loss's
    /// [detail](crate::Validity::end_with). It has no control characters.
    pub(crate) fn signed(&self, operator: &HolderInfo) -> Eviction {
        let reason = self.reason.as_deref().map_or(["", ""], |reason| [", reason: ", reason]).concat();
        let text = format!("by {operator}{reason}").replace(|c: char| c.is_control(), " ");
        Eviction { now: self.now, reason: Some(text) }
    }
}
