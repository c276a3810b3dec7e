use fencepost_core::{HolderInfo, Mode, Token};
use std::time::Duration;

use super::*;

const NODES: usize = 3;
const NEED: usize = 2;

fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

/// A claim with this label: a holder if it has a token.
fn claim(label: &str, token: Option<u64>) -> ClaimInfo {
    let mut claim = ClaimInfo::new(HolderInfo::new(label, "", 1), Mode::Shared);
    claim.token = token.map(Token::new);
    claim
}

fn node(name_of: &str, claims: Vec<ClaimInfo>) -> Info {
    Info::new(name(name_of), None, claims)
}

/// The labels of what is shown of these answers.
fn shown(answers: &[&[ClaimInfo]]) -> Vec<String> {
    let answers = answers.iter().map(|claims| node("a", claims.to_vec())).collect();
    info(name("a"), answers, NODES, NEED).claims.into_iter().map(|claim| claim.holder.label).collect()
}

#[test]
fn a_holder_is_shown_if_a_majority_may_have_it_and_a_waiter_if_one_has_it() {
    let (one, other, waits) = (claim("one", Some(1)), claim("other", Some(1)), claim("waits", None));
    let [one, other, waits] = [&[one][..], &[other], &[waits]];
    assert_eq!(shown(&[one, one, one]), ["one"]);
    assert_eq!(shown(&[one, one, &[]]), ["one"]);
    assert!(shown(&[one, &[], &[]]).is_empty(), "two nodes have said no");
    assert_eq!(shown(&[one, &[]]), ["one"], "the third node may have it");
    assert!(shown(&[one, other, &[]]).is_empty(), "these are two claims");
    assert_eq!(shown(&[waits, &[], &[]]), ["waits"]);
}

#[test]
fn a_vote_of_the_holder_at_a_node_that_has_not_granted_it_is_no_waiter() {
    let (holds, vote, other) = (claim("one", Some(1)), claim("one", None), claim("other", None));
    let both = [vote.clone(), other.clone()];
    let [holds, vote] = [&[holds][..], &[vote]];
    assert_eq!(shown(&[holds, holds, vote]), ["one"]);
    assert_eq!(shown(&[vote, holds, holds]), ["one"]);
    assert_eq!(shown(&[holds, holds, &both]), ["one", "other"]);
    assert_eq!(shown(&[holds, vote]), ["one"], "the third node may have granted it");
    assert_eq!(shown(&[holds, vote, vote]), ["one"], "one node has granted it: it still waits");
    let late = claim("one", Some(2));
    assert_eq!(
        shown(&[holds, holds, &[late, vote[0].clone()]]),
        ["one", "one"],
        "the third node has granted it"
    );
    let mut younger = vote[0].clone();
    younger.since_micros = 1;
    assert_eq!(shown(&[holds, holds, &[younger]]), ["one", "one"], "it came after the grant");
    let waits_too = [holds, vote].concat();
    assert_eq!(shown(&[holds, &waits_too, vote]), ["one", "one"], "another claim waits at the second node");
}

#[test]
fn holders_come_before_waiters_and_the_oldest_first() {
    let at = |label, token, since_micros| {
        let mut claim = claim(label, token);
        claim.since_micros = since_micros;
        claim
    };
    let all = [at("waits", None, 1), at("late", Some(2), 3), at("early", Some(1), 2)];
    assert_eq!(shown(&[&all, &all, &all]), ["early", "late", "waits"]);
}

#[test]
fn claims_that_differ_in_what_they_say_are_several() {
    let reasons = ["x", "y"].map(|reason| {
        let mut claim = claim("one", Some(1));
        claim.reason = Some(reason.to_owned());
        claim
    });
    let tokens = [1, 2].map(|token| claim("one", Some(token)));
    for [first, second] in [reasons, tokens] {
        let [first, second] = [&[first][..], &[second]];
        assert!(shown(&[first, second, &[]]).is_empty());
        assert_eq!(shown(&[first, first, second]), ["one"]);
    }
}

/// The third node and one of the others have the same token, but the third one does not answer.
#[test]
fn a_claim_with_another_token_at_a_node_is_shown_once_while_a_node_is_missing() {
    let [low, high, other] = [6, 7, 9].map(|token| claim("one", Some(token)));
    let tokens = |answers: [&[&ClaimInfo]; 2]| {
        let nodes = answers.map(|claims| node("a", claims.iter().copied().cloned().collect()));
        let info = info(name("a"), nodes.into(), NODES, NEED);
        let mut tokens: Vec<_> = info.claims.iter().filter_map(|claim| Some(claim.token?.get())).collect();
        tokens.sort_unstable();
        tokens
    };
    assert_eq!(tokens([&[&low], &[&high]]), [7]);
    assert_eq!(tokens([&[&high], &[&low]]), [7]);
    assert_eq!(tokens([&[&low, &other], &[&other, &high]]), [7, 9]);
    assert_eq!(tokens([&[&low, &high], &[]]), [6, 7], "a node has each claim once");
    assert_eq!(tokens([&[&low, &high], &[&high]]), [6, 7], "a majority has one of them");
}

#[test]
fn a_holder_is_evicted_when_a_majority_has_evicted_it() {
    let evicted = |count: usize| {
        let claim = |evicted| {
            let mut claim = claim("one", Some(1));
            claim.evicted = evicted;
            claim
        };
        let answers = (0..NODES).map(|number| node("a", vec![claim(number >= NODES - count)])).collect();
        info(name("a"), answers, NODES, NEED).claims[0].evicted
    };
    assert_eq!([0, 1, 2, 3].map(evicted), [false, false, true, true]);
}

#[test]
fn a_page_ends_where_the_shortest_of_the_nodes_ends() {
    let part = |names: &[&str], next: Option<&str>| {
        let resources = names.iter().map(|name| node(name, vec![claim("one", Some(1))])).collect();
        Listing::new(resources, next.map(name))
    };
    let names = |limit, parts: Vec<Listing>| {
        let page = Page::of(limit);
        let listing = listing(parts, &page, NODES, NEED);
        let names: Vec<_> = listing.resources.iter().map(|info| info.name.as_str().to_owned()).collect();
        (names.join(" "), listing.next.map(|next| next.as_str().to_owned()))
    };
    let all = || part(&["a", "b", "c"], None);
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(names(9, vec![all(), all(), all()]), ("a b c".to_owned(), None));
    assert_eq!(names(9, vec![part(&["a", "b"], Some("b")), all(), all()]), ("a b".to_owned(), some("b")));
    assert_eq!(names(2, vec![all(), all(), all()]), ("a b".to_owned(), some("b")));
    assert_eq!(names(3, vec![all(), all(), all()]), ("a b c".to_owned(), None));
    assert_eq!(names(9, vec![all(), part(&["b"], None), part(&["c"], None)]), ("b c".to_owned(), None));
}

#[test]
fn a_grant_ends_when_fewer_than_a_majority_have_it() {
    let end = |ends: &[Option<u64>]| {
        let answers = ends.iter().map(|end| {
            let mut claim = claim("one", Some(1));
            claim.expires_in = end.map(Duration::from_secs);
            node("a", vec![claim])
        });
        info(name("a"), answers.collect(), NODES, NEED).claims[0].expires_in.map(|end| end.as_secs())
    };
    assert_eq!(end(&[Some(20), Some(50), Some(50)]), Some(50), "one node has not extended it");
    assert_eq!(end(&[Some(20), Some(50), Some(20)]), Some(20), "only one node has extended it");
    assert_eq!(end(&[Some(20), Some(50)]), Some(50), "the third node may have extended it");
    assert_eq!(end(&[None, None, Some(20)]), None, "two nodes know no end");
}
