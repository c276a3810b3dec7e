//! Votes that are split: the claim that keeps its votes, the one that gives them back, and when they ask again.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use fencepost_core::{Attempt, Backend, Effect, Entry, Error, ErrorKind, How, Mode, Moment, Removed, Result};
use fencepost_quorum::Quorum;

use crate::scripted::{Asked, Say, Votes, now, poll, unknown, unsent};

/// The order of a claim of later.
const YOUNGER: u64 = u64::MAX;
const OLDER: u64 = 1;

/// The pause until the claim asks again.
fn pause(votes: &Votes, attempt: Result<Attempt>) -> Duration {
    let Ok(Attempt::Blocked { next_attempt: Some(next), .. }) = attempt else { panic!("{attempt:?}") };
    next.since(votes.clock.now())
}

/// How many requests each node got.
fn counts(votes: &Votes) -> Vec<usize> {
    votes.asked().iter().map(Vec::len).collect()
}

/// A lock that is contended.
fn contended(count: usize) -> Votes {
    let votes = Votes::of(count);
    let mut entry = votes.enter(100);
    votes.say((0..count).map(|_| Say::Refuse(OLDER)));
    assert!(matches!(now(entry.attempt()), Ok(Attempt::Blocked { .. })));
    votes.asked();
    votes
}

#[test]
fn an_older_claim_keeps_its_votes_and_asks_the_others_six_times_more() {
    let votes = contended(3);
    let mut entry = votes.enter(1);
    let wall = votes.wall();
    votes.say([Say::Refuse(YOUNGER), Say::Grant(wall), Say::RefuseByItself]);
    // A contended lock is asked for at one node first, and then at all.
    let first = pause(&votes, now(entry.attempt()));
    assert!(first >= Duration::from_secs(1) && first < Duration::from_secs(2), "{first:?}");
    votes.nodes[0].say(Say::Refuse(YOUNGER));
    for stands in 1..=6 {
        let pause = pause(&votes, now(entry.attempt()));
        let base = Duration::from_micros(400) * stands;
        assert!(pause >= base && pause < 2 * base, "{pause:?} at {stands}");
        votes.asked();
        votes.say([Say::Refuse(YOUNGER)]);
        votes.nodes[2].say(Say::RefuseByItself);
    }
    votes.nodes[1].say(Say::Left(Removed::Released));
    assert!(pause(&votes, now(entry.attempt())) < Duration::from_millis(4), "it yields");
    assert_eq!(votes.asked(), [[Asked::Vote(wall)], [Asked::Withdraw], [Asked::Vote(wall)]]);
}

#[test]
fn a_younger_claim_gives_its_votes_back_and_asks_later_each_time() {
    let votes = Votes::of(3);
    let mut entry = votes.enter(1);
    let wall = votes.wall();
    for yields in 0..9 {
        votes.say([Say::Grant(wall), Say::Refuse(OLDER), Say::Refuse(YOUNGER)]);
        votes.nodes[0].say(Say::Left(Removed::Released));
        let pause = pause(&votes, now(entry.attempt()));
        let base = Duration::from_millis(2 << yields);
        assert!(pause >= base && pause < 2 * base, "{pause:?} at {yields}");
        assert_eq!(votes.nodes[0].asked(), [Asked::Vote(wall), Asked::Withdraw]);
    }
}

/// Of two that do not know each other's order one yields, mostly.
#[test]
fn a_claim_yields_to_one_of_unknown_order_by_chance() {
    let yields = |id: &u128| {
        let votes = Votes::of(3);
        let mut entry = votes.enter(*id);
        votes.say([Say::Refuse(0), Say::Grant(votes.wall()), Say::Refuse(0)]);
        let _ = now(entry.attempt());
        votes.nodes[1].asked().contains(&Asked::Withdraw)
    };
    let count = (1..200).filter(yields).count();
    assert!((60..140).contains(&count), "{count} of 199");
}

#[test]
fn a_refused_claim_asks_when_a_node_says_so() {
    let votes = Votes::of(3);
    let mut entry = votes.enter(1);
    let soon = votes.clock.now() + Duration::from_millis(300);
    let until = |moment: Moment| Say::RefuseUntil(moment);
    votes.say([until(soon + Duration::from_millis(9)), until(soon), Say::Refuse(OLDER)]);
    assert_eq!(pause(&votes, now(entry.attempt())), Duration::from_millis(300));
}

/// It asked all nodes, which refuse it, and the next claim asks one of them.
#[test]
fn a_contended_lock_is_asked_for_at_one_node_by_those_who_wait() {
    let votes = contended(3);
    assert!(poll(&mut votes.enter(1).attempt()).is_pending());
    assert_eq!(counts(&votes), [1, 0, 0]);
    let mut claim = votes.claim(2, Mode::Exclusive);
    claim.waits = false;
    assert!(poll(&mut votes.entry(claim, How::Enter).attempt()).is_pending());
    assert_eq!(counts(&votes), [1, 1, 1]);
    let attached = Arc::new(votes.claim(3, Mode::Exclusive));
    assert!(poll(&mut Arc::clone(&votes.quorum).entry(attached, How::Attach).attempt()).is_pending());
    assert_eq!(counts(&votes), [1, 1, 1]);
}

#[test]
fn nodes_that_failed_lately_are_asked_only_if_there_is_no_majority_without_them() {
    for (failing, asked) in [(2, [1, 1, 1, 0, 0]), (3, [1; 5])] {
        let votes = Votes::of(5);
        let mut entry = votes.enter(1);
        let wall = votes.wall();
        let fails = |number| if number < 5 - failing { Say::Grant(wall) } else { unsent() };
        votes.say((0..5).map(fails));
        let _ = now(entry.attempt());
        votes.asked();
        let mut next = votes.enter(2);
        let mut asking = next.attempt();
        assert!(poll(&mut asking).is_pending());
        assert_eq!(counts(&votes), asked);
        if failing == 2 {
            // Those that are not asked count as failed: with the third there is no majority.
            votes.say([Say::Refuse(OLDER), Say::Refuse(OLDER), unsent()]);
            assert!(now(asking).unwrap_err().is_unreachable());
        }
    }
}

/// A node that refused the claim need not remember it; one that is asked still may grant it.
#[test]
fn a_granted_claim_is_withdrawn_where_it_was_refused() {
    let votes = Votes::of(3);
    let mut entry = votes.enter(1);
    let wall = votes.wall();
    votes.say([Say::Refuse(OLDER), Say::Refuse(OLDER), Say::Refuse(OLDER)]);
    let _ = now(entry.attempt());
    votes.asked();
    // The first is silent, and has not answered when the others are a majority.
    votes.nodes[1..].iter().for_each(|node| node.say(Say::Grant(wall)));
    assert!(matches!(now(entry.attempt()), Ok(Attempt::Granted(_))));
    assert_eq!(votes.nodes[0].asked(), [Asked::Vote(wall)]);
    votes.nodes[0].say(Say::Grant(wall));
    let held = entry.renewal().expect("it is renewed");
    votes.say([Say::Done, Say::Done, Say::Done]);
    now(held.session.renew(std::slice::from_ref(&held.claim))).unwrap();
    assert_eq!(votes.nodes[0].asked(), [Asked::Renew(1)], "its vote counts");
    // Nobody has been refused for a while.
    votes.pass(Duration::from_secs(2));
    let (mut next, wall) = (votes.enter(2), votes.wall());
    votes.say([Say::Refuse(OLDER), Say::Grant(wall), Say::Grant(wall)]);
    assert!(matches!(now(next.attempt()), Ok(Attempt::Granted(_))));
    assert_eq!(votes.nodes[0].asked()[1..], [Asked::Withdraw]);
}

#[test]
fn an_answer_that_comes_while_the_claim_waits_wakes_it_if_it_is_a_vote() {
    for (answer, wakes) in [(Say::Grant(1), true), (Say::Refuse(OLDER), false)] {
        let votes = Votes::of(3);
        let mut entry = votes.enter(1);
        votes.say([Say::Refuse(OLDER), Say::Refuse(OLDER)]);
        assert!(matches!(now(entry.attempt()), Ok(Attempt::Blocked { .. })));
        assert!(waits(&mut entry));
        votes.nodes[2].say(answer);
        assert_eq!(!waits(&mut entry), wakes);
    }
}

#[test]
fn two_hints_wake_as_one_does() {
    let votes = Votes::of(3);
    let mut entry = votes.enter(1);
    votes.say([Say::Refuse(OLDER), Say::Refuse(OLDER), Say::Refuse(OLDER)]);
    assert!(matches!(now(entry.attempt()), Ok(Attempt::Blocked { .. })));
    votes.nodes[..2].iter().for_each(|node| node.hints(true));
    assert!(!waits(&mut entry));
}

fn waits(entry: &mut Entry) -> bool {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    entry.poll_wait(&mut cx) == Poll::Pending
}

/// Asking again mends an error of the network, and no error that an operator has to mend.
#[test]
fn an_error_is_that_of_the_nodes_without_which_there_is_no_majority() {
    let denied = || Say::Fail(Error::new(ErrorKind::Denied, "the password is wrong"));
    let error = |says: [fn() -> Say; 5]| {
        let votes = Votes::of(5);
        let mut entry = votes.enter(1);
        votes.say(says.map(|say| say()));
        let error = now(entry.attempt()).unwrap_err();
        (error.kind(), error.effect())
    };
    use ErrorKind::{Denied, Unreachable};
    assert_eq!(error([denied, denied, denied, unsent, unsent]), (Denied, Effect::None));
    assert_eq!(error([denied, denied, denied, denied, unsent]), (Denied, Effect::None));
    assert_eq!(error([denied, denied, denied, unknown, unsent]), (Denied, Effect::Unknown));
    assert_eq!(error([denied, denied, unsent, unsent, unsent]), (Unreachable, Effect::Unknown));
    // Nobody knows about those that are silent.
    let votes = Votes::of(5);
    let mut entry = votes.enter(1);
    let mut asking = entry.attempt();
    votes.say((0..3).map(|_| denied()));
    assert!(poll(&mut asking).is_pending());
    votes.pass(Quorum::PATIENCE);
    let error = now(asking).unwrap_err();
    assert_eq!((error.kind(), error.effect()), (Denied, Effect::Unknown));
}

/// The vote of a node that is asked for the first time may take as long as its connection.
#[test]
fn a_late_vote_is_taken_in_by_a_task_only_from_a_node_that_is_met_first() {
    let votes = Votes::of(3);
    let wall = votes.wall();
    for (id, tasks) in [(1, 1), (2, 0)] {
        let mut entry = votes.enter(id);
        let before = votes.tasks();
        votes.say([Say::Grant(wall), Say::Grant(wall)]);
        assert!(matches!(now(entry.attempt()), Ok(Attempt::Granted(_))));
        assert_eq!(votes.tasks() - before, tasks);
        votes.nodes[2].say(Say::Grant(wall));
        votes.run();
    }
}
