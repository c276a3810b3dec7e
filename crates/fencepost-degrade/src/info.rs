//! Two engines as operators see them.

use fencepost_core::{ClaimInfo, Info, Listing, Page, Token};

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

/// Returns the tokens that one claim has at the primary and at the fallback. It has `token` at one of them, and the same where it is at
/// one only. The fallback grants first, so its token is the greatest one of that holder below the primary's.
pub(super) fn tokens_of_one_claim(primary: &Info, fallback: &Info, token: Token) -> (Token, Token) {
    let with = |info: &Info| info.holders().find(|claim| claim.token == Some(token)).cloned();
    let tokens = |info: &Info, claim: &ClaimInfo| -> Vec<Token> {
        let same = info.holders().filter(|other| other.holder == claim.holder && other.mode == claim.mode);
        same.filter_map(|other| other.token).collect()
    };
    match (with(primary), with(fallback)) {
        (Some(claim), None) => {
            let before = tokens(fallback, &claim).into_iter().filter(|other| *other < token).max();
            (token, before.unwrap_or(token))
        }
        (None, Some(claim)) => {
            let after = tokens(primary, &claim).into_iter().filter(|other| *other > token).min();
            (after.unwrap_or(token), token)
        }
        _ => (token, token),
    }
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
