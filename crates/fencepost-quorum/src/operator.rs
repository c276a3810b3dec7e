//! One answer to an operator, from the answers of several nodes.

use fencepost_core::{ClaimInfo, Info, Listing, Name, Page, Token};
use std::collections::BTreeMap;
use std::time::Duration;

use crate::Shared;

/// A node's part of a claim, behind the node's number among those that answered.
type Part<'a> = (usize, &'a ClaimInfo);

/// Returns the holders and the waiters. A claim whose votes are too few is shown as a holder if nodes did not answer that may have voted for
/// it, but it is [unconfirmed](ClaimInfo::unconfirmed). A waiter needs one node, because it waits where it asked last.
pub(crate) fn info(shared: &Shared, name: Name, answers: &[&Info]) -> Info {
    let last_token = answers.iter().filter_map(|info| info.last_token).max();
    let nodes = answers.iter().enumerate();
    let mut parts: Vec<Part<'_>> =
        nodes.flat_map(|(node, info)| info.claims.iter().map(move |part| (node, part))).collect();
    // The sort is stable, so that the parts of a claim stay in the order of the nodes.
    parts.sort_by_key(|(_, part)| claim_of(part));
    let claims = parts.chunk_by(|(_, one), (_, other)| claim_of(one) == claim_of(other));
    let missing = shared.nodes.len() - answers.len();
    let mut claims: Vec<_> = claims.filter_map(|parts| joined(shared, parts, missing)).collect();
    claims.sort_by_key(|claim| (!claim.holds(), claim.since_micros));
    Info::new(name, last_token, claims)
}

/// Returns what the parts of one claim have in common. In a record of a later format the number of the claim cannot be read.
pub(crate) fn claim_of(part: &ClaimInfo) -> (Option<u64>, Option<Token>) {
    (part.whole, part.token.filter(|_| part.whole.is_none()))
}

/// Returns the claim whose parts these are. `None`: too few nodes can have granted it for it to hold, and it waits nowhere.
fn joined(shared: &Shared, parts: &[Part<'_>], missing: usize) -> Option<ClaimInfo> {
    // A node may list what it refused beside what it granted later. Its vote is one.
    let mut granted: Vec<Part<'_>> = parts.iter().copied().filter(|(_, part)| part.holds()).collect();
    granted.dedup_by_key(|(node, _)| *node);
    let may_be_majority = |votes: usize| votes + missing >= shared.need;
    if !may_be_majority(granted.len()) {
        let (_, waits) = parts.iter().find(|(_, part)| !part.holds())?;
        return Some((*waits).clone());
    }
    // While it is being detached, some nodes have a lease of it, and the others the grant of its client.
    let detached = may_be_majority(granted.iter().filter(|(_, part)| part.detached).count());
    granted.retain(|(_, part)| part.detached || !detached);
    let votes_of = |token: Option<Token>| granted.iter().filter(|(_, part)| part.token == token).count();
    // A node may have given it another token than the others.
    let (_, part) = granted.iter().max_by_key(|(_, part)| (votes_of(part.token), part.token))?;
    let mut claim = (*part).clone();
    claim.detached = detached;
    claim.unconfirmed = granted.len() < shared.need_of(claim.mode) || votes_of(claim.token) < shared.need;
    claim.evicted = granted.iter().filter(|(_, part)| part.evicted).count() >= shared.need;
    let mut ends: Vec<_> = granted.iter().map(|(_, part)| part.expires_in.unwrap_or(Duration::MAX)).collect();
    ends.sort_unstable_by(|one, other| other.cmp(one));
    // The grant lasts while a majority may have it.
    let last = ends.get(shared.need.saturating_sub(missing + 1));
    claim.expires_in = last.copied().filter(|end| *end < Duration::MAX);
    Some(claim)
}

pub(crate) fn listing(shared: &Shared, answers: Vec<Listing>, page: &Page) -> Listing {
    let answered = answers.len();
    // Beyond the end of the shortest page one node has not said what it has.
    let end = answers.iter().filter_map(|listing| listing.next.clone()).min();
    let mut by_name: BTreeMap<Name, Vec<Info>> = BTreeMap::new();
    for info in answers.into_iter().flat_map(|listing| listing.resources) {
        if end.as_ref().is_none_or(|end| info.name <= *end) {
            by_name.entry(info.name.clone()).or_default().push(info);
        }
    }
    let mut listing = Listing::default();
    for (name, mut infos) in by_name {
        // A node that lists nothing of it has said so.
        infos.resize_with(answered, || Info::new(name.clone(), None, Vec::new()));
        let infos: Vec<&Info> = infos.iter().collect();
        if !listing.add(info(shared, name, &infos), page) {
            return listing;
        }
    }
    listing.next = end;
    listing
}

#[cfg(test)]
mod tests;
