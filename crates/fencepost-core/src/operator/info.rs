//! Resources, listings and evictions, as operators use them.

use crate::name::Name;
use crate::operator::holder::{ClaimInfo, HolderInfo};
use crate::operator::run::Runs;
use crate::token::Token;

/// A resource as an operator sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Info {
    /// Its name.
    pub name: Name,
    /// The last token that was granted, where the engine remembers it.
    pub last_token: Option<Token>,
    /// Its holders, then its waiters in order.
    pub claims: Vec<ClaimInfo>,
    /// The runs that the engine keeps. `None`: it keeps none, knows none, or this is part of a listing.
    pub runs: Option<Runs>,
}

impl Info {
    /// From how many waiters on a view of all locks shows a queue before the others.
    pub const LONG_QUEUE: usize = 5;

    /// Describes a resource. `claims`: its holders, then its waiters in order.
    pub fn new(name: Name, last_token: Option<Token>, claims: Vec<ClaimInfo>) -> Info {
        Info { name, last_token, claims, runs: None }
    }

    /// Adds the runs that the engine keeps, as it stores them. `now_micros` is its clock; zero: that is the client's own.
    #[must_use]
    pub fn with_runs(mut self, runs: Option<Runs>, now_micros: u64) -> Info {
        let holds = |token| self.holders().any(|claim| claim.token == Some(token));
        self.runs = runs.map(|runs| runs.seen(now_micros, holds));
        self
    }

    /// Those who hold it, also the [unconfirmed](ClaimInfo::unconfirmed) ones, which may hold it.
    pub fn holders(&self) -> impl Iterator<Item = &ClaimInfo> {
        self.claims.iter().filter(|claim| claim.holds())
    }

    /// Those who surely hold it.
    pub fn confirmed_holders(&self) -> impl Iterator<Item = &ClaimInfo> {
        self.holders().filter(|claim| !claim.unconfirmed)
    }

    /// Those who wait, in order.
    pub fn waiters(&self) -> impl Iterator<Item = &ClaimInfo> {
        self.claims.iter().filter(|claim| !claim.holds())
    }

    /// Returns whether an operator who searches for `text` means this resource: its name, or the label, the host or the reason of a claim
    /// contains the text in any case.
    pub fn mentions(&self, text: &str) -> bool {
        let sought = text.to_lowercase();
        let has = |text: &str| text.to_lowercase().contains(&sought);
        sought.is_empty()
            || has(self.name.as_str())
            || self.claims.iter().any(|claim| {
                has(&claim.holder.label)
                    || has(&claim.holder.host)
                    || claim.reason.as_deref().is_some_and(has)
            })
    }
}

/// A part of a listing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Listing {
    /// Resources that are held or waited for, by name.
    pub resources: Vec<Info>,
    /// Where the next page begins: give it as [`Page::after`]. `None`: this was the last one.
    pub next: Option<Name>,
    /// The prefixes of the names that the listing covers, if the engine shows this client no others: a lock service with rights. `None`: it
    /// covers all names.
    pub covers: Option<Vec<String>>,
}

impl Listing {
    /// Makes a page. `next`: the name after which the next page begins, if there is one.
    pub fn new(resources: Vec<Info>, next: Option<Name>) -> Listing {
        Listing { resources, next, covers: None }
    }

    /// Adds the resource that comes next by name, unless nobody claims it. Returns `false` if `page` is full: the listing is complete, and
    /// names the next page.
    #[must_use]
    pub fn add(&mut self, info: Info, page: &Page) -> bool {
        if info.claims.is_empty() {
            return true;
        }
        let full = self.resources.len() >= page.limit.max(1);
        if full {
            self.next = self.resources.last().map(|info| info.name.clone());
        } else {
            self.resources.push(info);
        }
        !full
    }
}

/// The part of a listing to read: `Page::of(100)`, or all names up to a default limit.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Page {
    /// Names after this one.
    pub after: Option<Name>,
    /// The most names on the page; at least 1.
    pub limit: usize,
}

impl Page {
    /// Returns the first page, of at most `limit` names.
    pub const fn of(limit: usize) -> Page {
        Page { after: None, limit }
    }

    /// Returns whether the page begins before this name.
    pub fn begins_before(&self, name: &Name) -> bool {
        self.after.as_ref().is_none_or(|after| name > after)
    }

    /// Begins the page after this name.
    #[must_use]
    pub fn after(mut self, name: Name) -> Page {
        self.after = Some(name);
        self
    }
}

impl Default for Page {
    fn default() -> Page {
        Page::of(1_000)
    }
}

/// The way to evict: the holder is told and stops (the default), or the resource is free at once ([`Eviction::now`]).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Eviction {
    /// Free the resource at once, although the evicted holder may still be at work: this breaks mutual exclusion.
    /// Without it the holder is refused further renewals and told, and the next grant follows its release or the
    /// end of its lease.
    pub now: bool,
    /// The reason, for the holder and the log.
    pub reason: Option<String>,
}

impl Eviction {
    /// Returns the way to evict. `now`: see [the field](Eviction::now).
    pub const fn new(now: bool) -> Eviction {
        Eviction { now, reason: None }
    }

    /// Adds the reason, for the holder and the log.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Eviction {
        self.reason = Some(reason.into());
        self
    }

    /// Returns the same with a reason that names `operator`, too: what engines carry to the holder as a loss's
    /// [detail](crate::Validity::end_with). It has no control characters.
    pub(crate) fn signed(&self, operator: &HolderInfo) -> Eviction {
        let reason = self.reason.as_deref().map_or(["", ""], |reason| [", reason: ", reason]).concat();
        let text = format!("by {operator}{reason}").replace(|c: char| c.is_control(), " ");
        Eviction { now: self.now, reason: Some(text) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::admission::Mode;

    #[test]
    fn a_search_finds_names_holders_hosts_and_reasons() {
        let mut claim = ClaimInfo::new(HolderInfo::new("Ann@web1/report", "db-7", 7), Mode::Exclusive);
        claim.reason = Some("Sales of November".to_owned());
        let info = Info::new(Name::new("stock/Eu").unwrap(), None, vec![claim]);
        for found in ["", "eu", "STOCK/", "ann@", "DB-7", "november"] {
            assert!(info.mentions(found), "{found}");
        }
        assert!(!info.mentions("october"));
    }
}
