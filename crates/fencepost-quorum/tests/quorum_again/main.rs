//! A held lock gets the votes back that nodes have lost.

mod five;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use fencepost_core::{Attempt, Backend, Eviction, How, Loss, Mode, Removed, State};

use five::{Five, Patient, TTL, name, token};

/// Each takes the votes of those nodes that are up then: of two permits three might be had by majorities that differ.
#[tokio::test]
async fn permits_are_no_more_than_there_are_whichever_nodes_grant_them() {
    let mut five = Five::new();
    let (mut held, mut granted) = (Vec::new(), 0);
    for down in [&[3, 4][..], &[1, 2], &[4], &[0], &[], &[]] {
        down.iter().for_each(|number| five.down(*number, true));
        let claim = five.claim_as(Mode::Permits { n: 1, of: 2 });
        let mut entry = Arc::clone(&five.quorum).entry(claim, How::Enter);
        let two_down = down.len() == 2;
        match entry.attempt().await {
            Ok(Attempt::Granted(_)) => granted += 1,
            Ok(_) => {}
            Err(error) => assert!(two_down && error.to_string().contains("fewer than 4 of 5"), "{error}"),
        }
        held.push(entry);
        down.iter().for_each(|number| five.down(*number, false));
        // The failed attempt is withdrawn.
        five.clock.advance_to(five.clock.now() + Duration::from_secs(1));
    }
    assert_eq!(granted, 2);
}

#[tokio::test]
async fn a_held_lock_outlives_that_all_nodes_lose_it_one_after_the_other() {
    let mut five = Five::new();
    let (claim, mut entry, granted) = five.attempt().await;
    let (held, token) = (entry.renewal().expect("it is renewed"), token(&granted));
    for number in 0..5 {
        five.down(number, true);
        five.pass(&held).await;
        let lost = five.nodes[number].memory.operator().inspect(&name()).await.unwrap();
        assert_eq!(lost.holders().count(), 0, "its lease has ended there");
        assert!(matches!(five.attempt().await.2, Attempt::Blocked { .. }), "four others hold it");
        five.down(number, false);
        five.pass(&held).await;
        assert_eq!(five.held_at(token).await, 5, "the node votes again, for the same token");
    }
    // Two more may go, as at first.
    five.down(0, true);
    five.down(1, true);
    five.pass(&held).await;
    assert_eq!(claim.validity.state(five.clock.now()), State::Held);
    assert!(matches!(five.attempt().await.2, Attempt::Blocked { .. }));
    five.down(0, false);
    five.down(1, false);
    five.quorum.operator().evict(&name(), token, &Eviction::new(false)).await.expect("all know it");
    assert_eq!(entry.release().await.unwrap(), Removed::Released);
    assert_eq!(five.held_at(token).await, 0);
    let (_, _, next) = five.attempt().await;
    assert!(self::token(&next) > token);
}

/// Three nodes may have it still.
#[tokio::test]
async fn a_release_that_a_minority_confirms_is_not_confirmed() {
    let mut five = Five::new();
    let (_, mut entry, granted) = five.attempt().await;
    let token = token(&granted);
    (0..3).for_each(|number| five.down(number, true));
    let limit = Duration::from_secs(20);
    let released = tokio::time::timeout(limit, entry.release()).await.expect("the nodes answer");
    let error = released.expect_err("two of five have confirmed it");
    assert!(error.is_unreachable(), "{error}");
    (0..3).for_each(|number| five.down(number, false));
    let released = tokio::time::timeout(limit, entry.release()).await.expect("the nodes answer");
    assert_eq!(released.unwrap(), Removed::Released);
    assert_eq!(five.held_at(token).await, 0);
}

/// Two nodes have renewed it, and it is over at two others. The work may have overlapped with that of another holder.
#[tokio::test]
async fn a_release_of_what_is_lost_is_none_though_a_minority_had_it_still() {
    let mut five = Five::new();
    let (claim, mut entry, _) = five.attempt().await;
    let held = entry.renewal().expect("it is renewed");
    (2..5).for_each(|number| five.down(number, true));
    five.pass(&held).await;
    (2..4).for_each(|number| five.down(number, false));
    assert!(matches!(claim.validity.state(five.clock.now()), State::Lost(_)));
    assert!(matches!(five.attempt().await.2, Attempt::Blocked { .. }), "two nodes were free for it");
    assert_eq!(entry.release().await.unwrap(), Removed::Nothing);
}

/// Two nodes have evicted it and one is down: a majority may have held it to the end.
#[tokio::test]
async fn a_release_of_what_is_held_is_one_though_a_minority_confirms_it() {
    for lease in [false, true] {
        let mut five = Five::new();
        let (claim, mut entry, granted) = five.attempt().await;
        if lease {
            entry.detach().await.unwrap();
            entry = Arc::clone(&five.quorum).entry(claim, How::Attach);
        }
        five.evict(2..4, token(&granted)).await;
        five.down(4, true);
        assert_eq!(entry.release().await.unwrap(), Removed::Released, "a detached lease: {lease}");
    }
}

/// Three of five nodes are a majority, and too few for one of two permits.
#[tokio::test]
async fn a_permit_is_lost_with_the_second_node_that_evicts_it() {
    let mut five = Five::new();
    let claim = five.claim_as(Mode::Permits { n: 1, of: 2 });
    let mut entry = Arc::clone(&five.quorum).entry(Arc::clone(&claim), How::Enter);
    let token = token(&entry.attempt().await.unwrap());
    five.evict(0..1, token).await;
    assert_eq!(claim.validity.state(five.clock.now()), State::Held);
    five.evict(1..2, token).await;
    assert_eq!(claim.validity.state(five.clock.now()), State::Lost(Loss::Evicted));
}

/// A renewal by fewer nodes than the quorum is none, however many nodes still have the claim.
#[tokio::test]
async fn a_renewal_that_too_few_nodes_confirm_fails() {
    for (mode, down) in [(Mode::Exclusive, 3), (Mode::Permits { n: 1, of: 2 }, 2)] {
        let mut five = Five::new();
        let claim = five.claim_as(mode);
        let mut entry = Arc::clone(&five.quorum).entry(Arc::clone(&claim), How::Enter);
        assert!(matches!(entry.attempt().await, Ok(Attempt::Granted(_))));
        let held = entry.renewal().expect("it is renewed");
        let before = claim.validity.due();
        (1..down).for_each(|number| five.down(number, true));
        five.clock.advance_to(before);
        held.session.renew(std::slice::from_ref(&claim)).await.expect("enough of them renew it");
        let (due, until) = (claim.validity.due(), claim.validity.until());
        assert!(due > before);
        five.down(0, true);
        five.clock.advance_to(due);
        let error = held.session.renew(std::slice::from_ref(&claim)).await.unwrap_err();
        assert!(error.is_unreachable(), "{error}");
        assert_eq!((claim.validity.due(), claim.validity.until()), (due, until));
    }
}

/// A node that another claim has got stays with it, and is asked again.
#[tokio::test]
async fn a_node_that_voted_for_somebody_else_is_asked_until_it_is_free() {
    let mut five = Five::new();
    let mut claim = five.claim();
    Arc::get_mut(&mut claim).expect("nobody else has it").waits = true;
    let mut entry = Arc::clone(&five.quorum).entry(claim, How::Enter);
    let token = token(&entry.attempt().await.unwrap());
    let held = entry.renewal().expect("it is renewed");
    five.down(4, true);
    five.pass(&held).await;
    five.down(4, false);
    // A contender without a majority, which has stopped.
    let other = five.claim();
    let mut contender = Arc::clone(&five.nodes[4].memory).entry(Arc::clone(&other), How::Enter);
    assert!(matches!(contender.attempt().await, Ok(Attempt::Granted(_))));
    for _ in 0..3 {
        five.clock.advance_to(five.clock.now() + TTL / 4);
        held.session.renew(std::slice::from_ref(&held.claim)).await.expect("four of five");
    }
    assert_eq!(five.held_at(token).await, 4);
    let waits = five.nodes[4].memory.operator().inspect(&name()).await.unwrap();
    assert_eq!(waits.claims.len(), 1, "who holds already waits for nothing");
    five.pass(&held).await;
    assert_eq!(five.held_at(token).await, 5);
}

/// A lock that has lost its majority is lost, whichever nodes would vote for it afterwards.
#[tokio::test]
async fn what_is_lost_is_not_voted_for_again() {
    let mut five = Five::new();
    let (claim, entry, granted) = five.attempt().await;
    let (held, token) = (entry.renewal().expect("it is renewed"), token(&granted));
    (0..3).for_each(|number| five.down(number, true));
    five.pass(&held).await;
    (0..3).for_each(|number| five.down(number, false));
    five.pass(&held).await;
    assert!(matches!(claim.validity.state(five.clock.now()), State::Lost(_)));
    assert!(five.held_at(token).await <= 2, "the three have forgotten it");
}

/// Until its renewal is over, which waits for the slowest node, the claim must not be as weak as before.
#[tokio::test]
async fn a_vote_that_came_back_counts_while_another_node_hangs() {
    let mut five = Five::new();
    let (claim, entry, granted) = five.attempt().await;
    let (held, token) = (entry.renewal().expect("it is renewed"), token(&granted));
    (0..2).for_each(|number| five.down(number, true));
    five.pass(&held).await;
    (0..2).for_each(|number| five.down(number, false));
    five.nodes[2].hangs.store(true, Ordering::SeqCst);
    five.clock.advance_to(five.clock.now() + TTL / 4);
    let mut round = held.session.renew(std::slice::from_ref(&held.claim));
    assert!(poll_fn(|cx| Poll::Ready(Pin::new(&mut round).poll(cx))).await.is_pending());
    assert_eq!(five.held_at(token).await, 5);
    five.evict(3..5, token).await;
    assert_eq!(claim.validity.state(five.clock.now()), State::Held, "three of five hold it");
}

/// A node with a new connection answers after the others. Until then only three nodes hold the claim.
#[tokio::test]
async fn a_node_that_is_met_late_counts_before_the_first_renewal() {
    let tasks = Patient::default();
    let mut five = Five::on(tasks.clone());
    let unmade = five.unmade();
    let (claim, entry, granted) = five.attempt().await;
    let (_held, token) = (entry.renewal().expect("it is renewed"), token(&granted));
    tasks.run().await;
    assert_eq!(five.held_at(token).await, 3);
    drop(unmade);
    tasks.run().await;
    assert_eq!(five.held_at(token).await, 5);
    assert!(tasks.0.lock().unwrap().is_empty(), "nothing is left to do");
    five.evict(0..2, token).await;
    assert_eq!(claim.validity.state(five.clock.now()), State::Held, "three of five hold it");
}

/// A renewal takes in what is still under way, without waiting for it.
#[tokio::test]
async fn a_node_that_was_met_late_counts_while_the_others_are_renewed() {
    let mut five = Five::new();
    let unmade = five.unmade();
    let (claim, entry, granted) = five.attempt().await;
    let (held, token) = (entry.renewal().expect("it is renewed"), token(&granted));
    five.nodes[0].hangs.store(true, Ordering::SeqCst);
    let mut round = held.session.renew(std::slice::from_ref(&held.claim));
    let mut poll = async || poll_fn(|cx| Poll::Ready(Pin::new(&mut round).poll(cx))).await;
    assert!(poll().await.is_pending());
    drop(unmade);
    assert!(poll().await.is_pending());
    five.evict(0..2, token).await;
    assert_eq!(claim.validity.state(five.clock.now()), State::Held, "three of five hold it");
}

/// An operator's word to a single node stands.
#[tokio::test]
async fn a_node_that_evicted_it_does_not_get_it_back() {
    let mut five = Five::new();
    let (claim, entry, granted) = five.attempt().await;
    let (held, token) = (entry.renewal().expect("it is renewed"), token(&granted));
    five.evict(2..3, token).await;
    five.pass(&held).await;
    assert_eq!(five.held_at(token).await, 4);
    assert_eq!(claim.validity.state(five.clock.now()), State::Held);
}
