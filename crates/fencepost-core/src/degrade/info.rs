//! Two engines as operators see them.

use crate::operator::holder::ClaimInfo;
use crate::operator::info::{Info, Listing, Page};

/// Joins what both engines know of a resource: a claim at both is shown once, as the first one knows it.
pub(super) fn joined(mut first: Info, second: Info) -> Info {
    let mut known: Vec<ClaimInfo> = first.claims.clone();
    let more = second.claims.into_iter().filter(|claim| {
        let same = known.iter().position(|other| other.holder == claim.holder && other.mode == claim.mode);
        same.map(|at| known.swap_remove(at)).is_none()
    });
    first.claims.extend(more);
    first.claims.sort_by_key(|claim| !claim.holds());
    first.last_token = first.last_token.max(second.last_token);
    first
}

/// Joins the pages of both engines into one.
pub(super) fn joined_pages(first: Listing, second: Listing, page: &Page) -> Listing {
    // Beyond the end of a page that goes on, nothing is known.
    let end = [&first.next, &second.next].into_iter().flatten().min().cloned();
    let mut second = second.resources.into_iter().peekable();
    let mut all = Vec::new();
    for info in first.resources {
        while let Some(earlier) = second.next_if(|other| other.name < info.name) {
            all.push(earlier);
        }
        all.push(match second.next_if(|other| other.name == info.name) {
            Some(other) => joined(info, other),
            None => info,
        });
    }
    all.extend(second);
    all.retain(|info| end.as_ref().is_none_or(|end| info.name <= *end));
    let mut listing = Listing::default();
    if all.into_iter().all(|info| listing.add(info, page)) {
        listing.next = end;
    }
    listing
}
