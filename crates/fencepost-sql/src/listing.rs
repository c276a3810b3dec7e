//! Listing and inspection of locks.

use std::collections::BTreeMap;

use fencepost_core::{ClaimInfo, Error, Info, Listing, Name, Page};

/// Returns a lock with its claims in order: holders first, then waiters as they came.
#[must_use]
pub fn in_order(name: Name, mut claims: Vec<ClaimInfo>) -> Info {
    claims.sort_by_key(|claim| (!claim.holds(), claim.since_micros));
    Info::new(name, None, claims)
}

/// Returns a page of the locks that were found, by name. `more`: others follow.
///
/// # Errors
/// [`is_invalid`](Error::is_invalid) for a text that is no name.
pub fn page_of(found: BTreeMap<String, Vec<ClaimInfo>>, page: &Page, more: bool) -> Result<Listing, Error> {
    let found = found.into_iter().take(page.limit);
    let resources = found.map(|(name, claims)| Ok(in_order(Name::new(&name)?, claims)));
    let resources = resources.collect::<Result<Vec<_>, Error>>()?;
    let next = more.then(|| resources.last().map(|info| info.name.clone())).flatten();
    Ok(Listing::new(resources, next))
}
