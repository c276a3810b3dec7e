//! A claim that leaves nodes of which some do not answer.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake};
use std::time::Duration;

use fencepost_core::{Attempt, Entry, How, Mode, Removed};
use fencepost_quorum::Quorum;

use crate::scripted::{Asked, Say, Votes, now, poll, unknown, unsent};

/// A claim that is granted by the nodes that answer so.
fn granted(votes: &Votes, id: u128, says: impl IntoIterator<Item = Say>) -> Entry {
    let mut entry = votes.enter(id);
    votes.say(says);
    assert!(matches!(now(entry.attempt()), Ok(Attempt::Granted(_))));
    votes.asked();
    entry
}

/// A claim that was asked for, with these answers.
fn asked_for(votes: &Votes, says: [Say; 3]) -> Entry {
    let mut entry = votes.enter(1);
    votes.say(says);
    let _ = now(entry.attempt());
    votes.asked();
    entry
}

#[test]
fn a_claim_that_was_never_asked_for_leaves_nothing_and_asks_nobody() {
    let votes = Votes::of(3);
    let mut entry = votes.enter(1);
    assert_eq!(now(entry.withdraw()).unwrap(), Removed::Nothing);
    assert_eq!(votes.asked(), [[]; 3]);
}

#[test]
fn a_waiter_is_withdrawn_by_a_majority() {
    let votes = Votes::of(3);
    let mut entry = asked_for(&votes, [Say::Refuse(1), Say::Refuse(1), Say::Refuse(1)]);
    let mut leaving = entry.withdraw();
    assert!(poll(&mut leaving).is_pending());
    assert_eq!(votes.asked(), [[Asked::Withdraw]; 3]);
    votes.say([Say::Left(Removed::Withdrawn), Say::Left(Removed::Withdrawn)]);
    assert!(poll(&mut leaving).is_pending(), "the third may hold it");
    votes.pass(Quorum::PATIENCE);
    assert_eq!(now(leaving).unwrap(), Removed::Withdrawn);
}

/// The first poll sends: there may be no second one.
#[test]
fn a_request_that_may_have_taken_effect_is_undone_by_the_first_withdrawal() {
    let votes = Votes::of(3);
    let mut entry = asked_for(&votes, [unknown(), unknown(), unsent()]);
    let mut leaving = entry.withdraw();
    assert!(poll(&mut leaving).is_pending());
    assert_eq!(votes.asked(), [vec![Asked::Withdraw], vec![Asked::Withdraw], vec![]]);
    votes.say([Say::Left(Removed::Nothing), Say::Left(Removed::Nothing)]);
    assert_eq!(now(leaving).unwrap(), Removed::Nothing);
}

#[test]
fn a_withdrawal_that_failed_is_sent_again() {
    let votes = Votes::of(3);
    let mut entry = asked_for(&votes, [Say::Refuse(1), Say::Refuse(1), Say::Refuse(1)]);
    votes.say([unsent(), unknown(), Say::Left(Removed::Withdrawn)]);
    assert!(now(entry.withdraw()).unwrap_err().is_unreachable());
    votes.asked();
    votes.say((0..2).map(|_| Say::Left(Removed::Withdrawn)));
    assert_eq!(now(entry.withdraw()).unwrap(), Removed::Withdrawn);
    assert_eq!(votes.asked(), [vec![Asked::Withdraw], vec![Asked::Withdraw], vec![]]);
}

/// A node that refused the claim before knows it, though the last request did not reach it.
#[test]
fn a_node_that_refused_a_claim_is_told_that_it_leaves() {
    let votes = Votes::of(3);
    let mut entry = asked_for(&votes, [Say::Refuse(1), Say::Refuse(1), Say::Refuse(1)]);
    votes.say([unsent(), unsent(), unsent()]);
    assert!(now(entry.attempt()).unwrap_err().is_unreachable());
    votes.asked();
    assert!(poll(&mut entry.withdraw()).is_pending());
    assert_eq!(votes.asked(), [[Asked::Withdraw]; 3]);
}

/// A node that blocks a claim that does not wait keeps nothing of it, so only a node whose reply was lost is asked to remove it. Nobody waits
/// for that.
#[test]
fn a_refused_claim_that_does_not_wait_is_withdrawn_where_it_may_be_known() {
    for (answer, last) in [(unsent(), vec![]), (unknown(), vec![Asked::Withdraw])] {
        let votes = Votes::of(3);
        let mut claim = votes.claim(1, Mode::Exclusive);
        claim.waits = false;
        let mut entry = votes.entry(claim, How::Enter);
        votes.say([Say::Refuse(1), Say::Refuse(1), answer]);
        assert!(matches!(now(entry.attempt()), Ok(Attempt::Blocked { next_attempt: None, .. })));
        let vote = Asked::Vote(votes.wall());
        assert_eq!(votes.asked(), [vec![vote], vec![vote], [vec![vote], last].concat()]);
        assert_eq!(now(entry.withdraw()).unwrap(), Removed::Nothing);
    }
}

#[test]
fn a_grant_that_two_of_three_nodes_know_no_more_is_no_release() {
    let votes = Votes::of(3);
    let wall = votes.wall();
    let mut entry = granted(&votes, 1, (0..3).map(|_| Say::Grant(wall)));
    let nothing = || Say::Left(Removed::Nothing);
    votes.say([nothing(), nothing(), Say::Left(Removed::Released)]);
    assert_eq!(now(entry.release()).unwrap(), Removed::Nothing);
}

/// The release could not be sent behind the vote that is under way. It is waited for once: for 1 ms at most.
#[test]
fn a_release_waits_a_little_for_a_punctual_node() {
    let votes = Votes::of(3);
    let wall = votes.wall();
    for punctual in [true, false] {
        let mut entry = granted(&votes, u128::from(punctual) + 1, (0..2).map(|_| Say::Grant(wall)));
        let mut leaving = entry.release();
        assert!(poll(&mut leaving).is_pending());
        votes.pass(Duration::from_millis(10));
        votes.say((0..2).map(|_| Say::Left(Removed::Released)));
        if punctual {
            assert!(poll(&mut leaving).is_pending());
            votes.pass(Duration::from_micros(999));
            assert!(poll(&mut leaving).is_pending());
            votes.pass(Duration::from_micros(1));
        }
        assert_eq!(now(leaving).unwrap(), Removed::Released);
        assert_eq!(votes.runtime.cleaner().backlog(), 1 + usize::from(!punctual));
    }
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Another poll would take the waker of the one who waits for it.
#[test]
fn a_renewal_does_not_poll_what_its_owner_withdraws() {
    let votes = Votes::of(3);
    let wall = votes.wall();
    let mut entry = granted(&votes, 1, (0..3).map(|_| Say::Grant(wall)));
    let held = entry.renewal().expect("it is renewed");
    let flag = Arc::new(Flag(AtomicBool::new(false)));
    let waker = Arc::clone(&flag).into();
    let mut leaving = entry.release();
    let pending = Pin::new(&mut leaving).poll(&mut Context::from_waker(&waker));
    assert!(pending.is_pending());
    let mut round = held.session.renew(std::slice::from_ref(&held.claim));
    let _ = poll(&mut round);
    drop(round);
    votes.nodes[0].say(Say::Left(Removed::Released));
    assert!(flag.0.load(Ordering::SeqCst));
}
