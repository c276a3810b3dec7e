//! One answer to an operator, from the answers of several nodes.

use fencepost_core::{ClaimInfo, Info, Listing, Name, Page};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

/// Claims that look alike, by node.
type Group = Vec<Vec<ClaimInfo>>;

/// Returns the holders at a majority of the nodes. A node that did not answer counts as one that has the holder. A waiter needs one
/// node: it waits where it asked last.
pub(crate) fn info(name: Name, answers: Vec<Info>, nodes: usize, need: usize) -> Info {
    let missing = nodes - answers.len();
    let last_token = answers.iter().filter_map(|info| info.last_token).max();
    // The same claim looks the same everywhere but for its times; claims that look the same are counted.
    let mut groups: Vec<Group> = Vec::new();
    for (node, info) in answers.into_iter().enumerate() {
        for claim in info.claims {
            let alike = groups
                .iter_mut()
                .find(|group| group.iter().flatten().next().is_some_and(|one| same(one, &claim)));
            let group = match alike {
                Some(group) => group,
                None => {
                    groups.push(Vec::new());
                    groups.last_mut().expect("it was just pushed")
                }
            };
            group.resize_with(group.len().max(node + 1), Vec::new);
            group[node].push(claim);
        }
    }
    if missing > 0 {
        join_tokens(&mut groups, need);
    }
    drop_votes(&mut groups, enough(need, missing));
    let mut claims = Vec::new();
    for mut group in groups {
        let evicted = group.iter().flatten().filter(|claim| claim.evicted).count() >= need;
        group.sort_by_key(|alike| std::cmp::Reverse(alike.len()));
        let waits = group.iter().flatten().next().is_some_and(|claim| !claim.holds());
        let enough = if waits { 0 } else { enough(need, missing) };
        let times = group.get(enough).map_or(0, Vec::len);
        let shown: Vec<ClaimInfo> = group[0].iter().take(times).cloned().collect();
        for alike in &mut group {
            alike.sort_by_key(|claim| std::cmp::Reverse(end(claim)));
        }
        claims.extend(shown.into_iter().enumerate().map(|(number, mut claim)| {
            claim.evicted = evicted;
            let mut ends: Vec<_> = group.iter().filter_map(|alike| alike.get(number)).map(end).collect();
            ends.sort_by_key(|end| std::cmp::Reverse(*end));
            // The grant lasts while a majority may have it.
            claim.expires_in = ends.get(enough).copied().filter(|end| *end < Duration::MAX);
            claim
        }));
    }
    claims.sort_by_key(|claim| (!claim.holds(), claim.since_micros));
    Info::new(name, last_token, claims)
}

/// Returns how many nodes beside one must have a claim, if `missing` nodes did not answer.
fn enough(need: usize, missing: usize) -> usize {
    (need - 1).saturating_sub(missing)
}

/// Joins the holders that differ in their tokens alone, each at nodes that lack the other. A node may have granted a claim with another token
/// than the majority. While a node is missing, such a claim would be shown once for each token, and a latch would open early.
fn join_tokens(groups: &mut Vec<Group>, need: usize) {
    // The greatest token is the one that a majority has.
    groups.sort_by_key(|group| Reverse(first(group).and_then(|one| one.token)));
    let mut joined: Vec<Group> = Vec::new();
    for mut group in groups.drain(..) {
        let Some(one) = joined.iter_mut().find(|one| may_be_one(one, &group, need)) else {
            joined.push(group);
            continue;
        };
        let token = first(one).and_then(|one| one.token);
        group.iter_mut().flatten().for_each(|claim| claim.token = token);
        one.resize_with(one.len().max(group.len()), Vec::new);
        one.iter_mut().zip(group).for_each(|(one, claims)| one.extend(claims));
    }
    *groups = joined;
}

/// Returns whether no node has both, and neither is known to be at a majority.
fn may_be_one(one: &Group, other: &Group, need: usize) -> bool {
    let alike = first(one)
        .zip(first(other))
        .is_some_and(|(one, other)| one.holds() && other.holds() && same_but_token(one, other));
    let count = |group: &Group| group.iter().filter(|claims| !claims.is_empty()).count();
    let apart = one.iter().zip(other).all(|(one, other)| one.is_empty() || other.is_empty());
    alike && apart && count(one) < need && count(other) < need
}

fn first(group: &Group) -> Option<&ClaimInfo> {
    group.iter().flatten().next()
}

/// Drops the votes of claims that hold. A node that has not granted such a claim lists its vote as a waiter.
fn drop_votes(groups: &mut [Group], enough: usize) {
    // The holders that a majority has, and how many there are.
    let held = groups.iter().filter_map(|group| {
        let mut counts: Vec<usize> = group.iter().map(Vec::len).collect();
        counts.sort_by_key(|count| std::cmp::Reverse(*count));
        let times = counts.get(enough).copied().filter(|times| *times > 0)?;
        let holder = group.iter().flatten().filter(|one| one.holds()).max_by_key(|one| one.since_micros)?;
        Some((holder.clone(), times))
    });
    for (holder, times) in held.collect::<Vec<_>>() {
        let alike = |one: &ClaimInfo| {
            one.mode == holder.mode && one.holder == holder.holder && one.reason == holder.reason
        };
        // A node may have granted it with another token.
        let granted = |node: usize| {
            groups
                .iter()
                .filter_map(move |group| group.get(node))
                .flatten()
                .filter(|one| one.holds() && alike(one))
        };
        let nodes = groups.iter().map(Vec::len).max().unwrap_or(0);
        let lacks: Vec<usize> = (0..nodes).map(|node| times.saturating_sub(granted(node).count())).collect();
        for (votes, lacks) in groups.iter_mut().flat_map(|group| group.iter_mut().zip(&lacks)) {
            let mut rest = *lacks;
            votes.retain(|one| {
                let vote = !one.holds() && alike(one) && one.since_micros <= holder.since_micros && rest > 0;
                rest -= usize::from(vote);
                !vote
            });
        }
    }
}

/// Returns when a node's grant ends; [`Duration::MAX`] if the node knows no end.
fn end(claim: &ClaimInfo) -> Duration {
    claim.expires_in.unwrap_or(Duration::MAX)
}

/// Returns whether both are parts of one claim, whatever their tokens.
pub(crate) fn is_of_one_claim(one: &ClaimInfo, other: &ClaimInfo) -> bool {
    one.order.is_some() && one.order == other.order && one.holder == other.holder
}

fn same(one: &ClaimInfo, other: &ClaimInfo) -> bool {
    one.token == other.token && same_but_token(one, other)
}

fn same_but_token(one: &ClaimInfo, other: &ClaimInfo) -> bool {
    let key = |claim: &ClaimInfo| (claim.mode, claim.detached);
    key(one) == key(other) && one.holder == other.holder && one.reason == other.reason
}

pub(crate) fn listing(answers: Vec<Listing>, page: &Page, nodes: usize, need: usize) -> Listing {
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
        if !listing.add(info(name, infos, nodes, need), page) {
            return listing;
        }
    }
    listing.next = end;
    listing
}

#[cfg(test)]
mod tests;
