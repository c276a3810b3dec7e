use fencepost_core::{Backend, Clock, HolderInfo, Memory, Mode, Token};
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::Quorum;

const NODES: usize = 3;

fn shared() -> Arc<Shared> {
    let nodes = (0..NODES).map(|_| Memory::new() as Arc<dyn Backend>).collect();
    Quorum::new("quorum", nodes, Clock::manual()).unwrap().0
}

fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

/// A node's part of the claim with this label: a grant if it has a token. Claims with other labels have other numbers.
fn part(label: &str, token: Option<u64>) -> ClaimInfo {
    let mut part = ClaimInfo::new(HolderInfo::new("me", "", 1), Mode::Shared);
    part.token = token.map(Token::new);
    part.reason = Some(label.to_owned());
    part.whole = Some(label.bytes().fold(0, |number, byte| number * 256 + u64::from(byte)));
    part
}

fn of_mode(mode: Mode, mut part: ClaimInfo) -> ClaimInfo {
    part.mode = mode;
    part
}

fn node(name_of: &str, claims: Vec<ClaimInfo>) -> Info {
    Info::new(name(name_of), None, claims)
}

fn info_of(answers: &[&[ClaimInfo]]) -> Info {
    let answers: Vec<Info> = answers.iter().map(|claims| node("a", claims.to_vec())).collect();
    info(&shared(), name("a"), &answers.iter().collect::<Vec<_>>())
}

/// What is shown of these answers: the label and the token of each claim, and whether it is unconfirmed.
fn shown(answers: &[&[ClaimInfo]]) -> Vec<String> {
    let claims = info_of(answers).claims.into_iter().map(|claim| {
        let token = claim.token.map_or_else(String::new, |token| format!(" {token}"));
        format!("{}{token}{}", claim.reason.unwrap(), if claim.unconfirmed { " ?" } else { "" })
    });
    claims.collect()
}

#[test]
fn a_holder_is_confirmed_by_a_majority_of_all_nodes() {
    let (one, other, waits) = (part("one", Some(1)), part("other", Some(1)), part("waits", None));
    let [one, other, waits] = [&[one][..], &[other], &[waits]];
    assert_eq!(shown(&[one, one, one]), ["one 1"]);
    assert_eq!(shown(&[one, one, &[]]), ["one 1"]);
    assert_eq!(shown(&[one, one]), ["one 1"]);
    assert!(shown(&[one, &[], &[]]).is_empty(), "two nodes have said no");
    assert_eq!(shown(&[one, &[]]), ["one 1 ?"], "the third node may have it");
    assert!(shown(&[one, other, &[]]).is_empty(), "these are two claims");
    assert_eq!(shown(&[one, other]), ["one 1 ?", "other 1 ?"], "one of them may hold");
    assert_eq!(shown(&[waits, &[], &[]]), ["waits"]);
    assert_eq!(shown(&[waits, &[]]), ["waits"]);
}

/// With two permits a claim needs all three nodes.
#[test]
fn a_permit_is_confirmed_by_as_many_nodes_as_must_grant_it() {
    let permit = &[of_mode(Mode::Permits { n: 1, of: 2 }, part("one", Some(1)))][..];
    let waits = &[of_mode(Mode::Permits { n: 1, of: 2 }, part("one", None))][..];
    assert_eq!(shown(&[permit, permit, permit]), ["one 1"]);
    assert_eq!(shown(&[permit, permit]), ["one 1 ?"]);
    assert_eq!(shown(&[permit, permit, &[]]), ["one 1 ?"], "the third node may have lost it");
    assert_eq!(shown(&[permit, permit, waits]), ["one 1 ?"]);
    assert_eq!(shown(&[permit, waits, waits]), ["one"]);
}

#[test]
fn a_vote_of_the_holder_at_a_node_that_has_not_granted_it_is_no_waiter() {
    let (holds, vote, other) = (part("one", Some(1)), part("one", None), part("other", None));
    let both = [vote.clone(), other];
    let [holds, vote] = [&[holds][..], &[vote]];
    assert_eq!(shown(&[holds, holds, vote]), ["one 1"]);
    assert_eq!(shown(&[vote, holds, holds]), ["one 1"]);
    assert_eq!(shown(&[holds, holds, &both]), ["one 1", "other"]);
    assert_eq!(shown(&[holds, vote]), ["one 1 ?"], "the third node may have granted it");
    assert_eq!(shown(&[holds, vote, vote]), ["one"], "one node has granted it: it still waits");
    let late = [vote, &[part("one", Some(2))]].concat();
    assert_eq!(shown(&[holds, holds, &late]), ["one 1"], "it asked there again under another id");
    assert_eq!(shown(&[holds, &[], &[late, holds.to_vec()].concat()]), ["one 2 ?"], "a node has one vote");
}

#[test]
fn holders_come_before_waiters_and_the_oldest_first() {
    let at = |label, token, since_micros| {
        let mut part = part(label, token);
        part.since_micros = since_micros;
        part
    };
    let all = [at("waits", None, 1), at("late", Some(2), 3), at("early", Some(1), 2)];
    assert_eq!(shown(&[&all, &all, &all]), ["early 1", "late 2", "waits"]);
}

/// A node may have given the claim another token than the majority, and shows that.
#[test]
fn the_parts_of_a_claim_may_have_other_tokens() {
    let [low, high] = [6, 7].map(|token| [part("one", Some(token))]);
    assert_eq!(shown(&[&low, &high, &low]), ["one 6"]);
    assert_eq!(shown(&[&low, &high, &high]), ["one 7"]);
    assert_eq!(
        shown(&[&low, &high]),
        ["one 7 ?"],
        "the third node has one of them, and the greater one more likely"
    );
    assert_eq!(shown(&[&high, &low]), ["one 7 ?"]);
    assert_eq!(shown(&[&low, &high, &[]]), ["one 7 ?"], "its grant has no token yet");
}

/// A grant that was detached at too few nodes is undone.
#[test]
fn a_lease_is_detached_when_as_many_nodes_have_detached_it_as_must_grant_it() {
    let [held, detached] = [false, true].map(|detached| {
        let mut part = part("one", Some(1));
        part.detached = detached;
        [part]
    });
    let shown = |answers: &[&[ClaimInfo]]| {
        let claims = info_of(answers).claims;
        assert_eq!(claims.len(), 1);
        (claims[0].detached, claims[0].unconfirmed)
    };
    assert_eq!(shown(&[&held, &held, &detached]), (false, false));
    assert_eq!(shown(&[&held, &detached, &detached]), (true, false));
    assert_eq!(shown(&[&held, &detached]), (true, true));
    assert_eq!(shown(&[&held, &held]), (false, false));
    assert_eq!(shown(&[&detached, &detached]), (true, false));
}

/// The number of the claim cannot be read.
#[test]
fn records_of_a_later_format_are_one_claim_if_they_have_one_token() {
    let later = |token| {
        let mut part = part("later", token);
        part.whole = None;
        [part]
    };
    let [one, other] = [1, 2].map(|token| later(Some(token)));
    assert_eq!(shown(&[&one, &one, &one]), ["later 1"]);
    assert_eq!(shown(&[&one, &one, &other]), ["later 1"]);
    assert_eq!(shown(&[&later(None), &later(None), &[]]), ["later"]);
}

#[test]
fn a_holder_is_evicted_when_a_majority_has_evicted_it() {
    let evicted = |count: usize| {
        let parts: Vec<_> = (0..NODES)
            .map(|number| {
                let mut part = part("one", Some(1));
                part.evicted = number >= NODES - count;
                [part]
            })
            .collect();
        info_of(&parts.iter().map(|part| &part[..]).collect::<Vec<_>>()).claims[0].evicted
    };
    assert_eq!([0, 1, 2, 3].map(evicted), [false, false, true, true]);
}

#[test]
fn a_page_ends_where_the_shortest_of_the_nodes_ends() {
    let page_of = |names: &[&str], next: Option<&str>| {
        let resources = names.iter().map(|name| node(name, vec![part("one", Some(1))])).collect();
        Listing::new(resources, next.map(name))
    };
    let names = |limit, parts: Vec<Listing>| {
        let page = Page::of(limit);
        let listing = listing(&shared(), parts, &page);
        let names: Vec<_> = listing.resources.iter().map(|info| info.name.as_str().to_owned()).collect();
        (names.join(" "), listing.next.map(|next| next.as_str().to_owned()))
    };
    let all = || page_of(&["a", "b", "c"], None);
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(names(9, vec![all(), all(), all()]), ("a b c".to_owned(), None));
    assert_eq!(names(9, vec![page_of(&["a", "b"], Some("b")), all(), all()]), ("a b".to_owned(), some("b")));
    assert_eq!(names(2, vec![all(), all(), all()]), ("a b".to_owned(), some("b")));
    assert_eq!(names(3, vec![all(), all(), all()]), ("a b c".to_owned(), None));
    assert_eq!(names(9, vec![all(), page_of(&["b"], None), page_of(&["c"], None)]), ("b c".to_owned(), None));
}

#[test]
fn a_grant_ends_when_fewer_than_a_majority_have_it() {
    let end = |ends: &[Option<u64>]| {
        let parts: Vec<_> = ends
            .iter()
            .map(|end| {
                let mut part = part("one", Some(1));
                part.expires_in = end.map(Duration::from_secs);
                [part]
            })
            .collect();
        let info = info_of(&parts.iter().map(|part| &part[..]).collect::<Vec<_>>());
        info.claims[0].expires_in.map(|end| end.as_secs())
    };
    assert_eq!(end(&[Some(20), Some(50), Some(50)]), Some(50), "one node has not extended it");
    assert_eq!(end(&[Some(20), Some(50), Some(20)]), Some(20), "only one node has extended it");
    assert_eq!(end(&[Some(20), Some(50)]), Some(50), "the third node may have extended it");
    assert_eq!(end(&[None, None, Some(20)]), None, "two nodes know no end");
}
