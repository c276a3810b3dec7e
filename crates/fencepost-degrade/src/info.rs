//! Two engines as operators see them.

use std::collections::HashSet;

use fencepost_core::{ClaimInfo, Info, Listing, Page, Token};

/// Joins what both engines know of a resource: a claim at both is shown once, as the first one knows it.
pub(super) fn joined(mut first: Info, second: Info) -> Info {
    let known: HashSet<u64> = first.claims.iter().filter_map(|claim| claim.whole).collect();
    let is_known = |claim: &ClaimInfo| claim.whole.is_some_and(|whole| known.contains(&whole));
    first.claims.extend(second.claims.into_iter().filter(|claim| !is_known(claim)));
    first.claims.sort_by_key(|claim| !claim.holds());
    first.last_token = first.last_token.max(second.last_token);
    first
}

/// Returns the tokens that one claim has at the primary and at the fallback. It has `token` at one of them, and the same where it is at
/// one only.
pub(super) fn tokens_of_one_claim(primary: &Info, fallback: &Info, token: Token) -> (Token, Token) {
    let whole = |info: &Info| info.holders().find(|claim| claim.token == Some(token))?.whole;
    let Some(whole) = whole(primary).or_else(|| whole(fallback)) else { return (token, token) };
    let at = |info: &Info| {
        info.holders().find(|claim| claim.whole == Some(whole)).and_then(|claim| claim.token).unwrap_or(token)
    };
    (at(primary), at(fallback))
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
