//! A lease that is detached, attached and released at nodes that differ.

use fencepost_core::{Attempt, Entry, How, Mode, Removed, Token};
use fencepost_quorum::Quorum;

use crate::scripted::{Asked, Say, TTL, Votes, lost, now, outbid, poll, unknown, unsent};

fn attach(votes: &Votes) -> Entry {
    votes.entry(votes.claim(1, Mode::Exclusive), How::Attach)
}

/// A claim that all nodes have granted.
fn granted(votes: &Votes) -> Entry {
    let mut entry = votes.enter(1);
    let wall = votes.wall();
    votes.say(votes.nodes.iter().map(|_| Say::Grant(wall)));
    assert!(matches!(now(entry.attempt()), Ok(Attempt::Granted(_))));
    votes.asked();
    entry
}

#[test]
fn a_lease_is_attached_as_soon_as_a_majority_has_one_token() {
    let votes = Votes::of(5);
    let mut entry = attach(&votes);
    votes.say((0..3).map(|_| Say::Grant(7)));
    assert_eq!(now(entry.attempt()).unwrap(), Attempt::Granted(Token::new(7)));
}

#[test]
fn a_lease_whose_nodes_differ_has_the_least_token() {
    for silent in [false, true] {
        let votes = Votes::of(3);
        let mut entry = attach(&votes);
        let mut asking = entry.attempt();
        votes.say([Say::Grant(9), Say::Grant(7)]);
        assert!(poll(&mut asking).is_pending(), "two more might have one token");
        if silent {
            votes.pass(Quorum::PATIENCE);
        } else {
            votes.nodes[2].say(Say::Grant(8));
        }
        assert_eq!(now(asking).unwrap(), Attempt::Granted(Token::new(7)));
    }
}

/// A claim is asked for under another id after each withdrawal.
#[test]
fn a_lease_is_looked_for_under_each_of_its_ids() {
    let votes = Votes::of(3);
    let mut entry = attach(&votes);
    for _ in 0..15 {
        votes.say((0..3).map(|_| Say::Gone));
    }
    votes.say((0..3).map(|_| Say::Grant(7)));
    assert_eq!(now(entry.attempt()).unwrap(), Attempt::Granted(Token::new(7)));
    let votes = Votes::of(3);
    let mut entry = attach(&votes);
    for _ in 0..16 {
        votes.say((0..3).map(|_| Say::Gone));
    }
    assert_eq!(now(entry.attempt()).unwrap(), Attempt::Gone);
    assert_eq!(votes.asked(), vec![vec![Asked::Attach; 16]; 3]);
}

/// With the one that is silent three of five may have it.
#[test]
fn a_lease_that_two_of_five_have_may_be_had_by_a_third() {
    let votes = Votes::of(5);
    let mut entry = attach(&votes);
    let mut asking = entry.attempt();
    for _ in 0..16 {
        votes.nodes[..2].iter().for_each(|node| node.say(Say::Gone));
    }
    votes.nodes[2..4].iter().for_each(|node| node.say(Say::Grant(7)));
    assert!(poll(&mut asking).is_pending());
    votes.pass(Quorum::PATIENCE);
    assert!(now(asking).unwrap_err().is_unreachable());
}

/// An attached lease may stand at a node under a later id than the first.
#[test]
fn a_lease_is_released_under_each_of_its_ids() {
    let votes = Votes::of(3);
    let mut entry = attach(&votes);
    votes.say((0..3).map(|_| Say::Left(Removed::Nothing)));
    votes.say((0..3).map(|_| Say::Left(Removed::Released)));
    assert_eq!(now(entry.release()).unwrap(), Removed::Released);
    assert_eq!(votes.asked(), vec![vec![Asked::ReleaseLease; 2]; 3]);
}

#[test]
fn a_grant_that_too_few_nodes_have_detached_is_taken_back() {
    let votes = Votes::of(3);
    let mut entry = granted(&votes);
    votes.say([Say::Done, unknown(), unknown()]);
    assert!(now(entry.detach()).unwrap_err().is_unreachable());
    votes.asked();
    votes.say((0..3).map(|_| Say::Left(Removed::Released)));
    assert_eq!(now(entry.release()).unwrap(), Removed::Released);
    assert_eq!(votes.asked(), [[Asked::ReleaseLease], [Asked::Release], [Asked::Release]]);
}

/// A node that knows no grant has nothing to withdraw; one whose reply was lost may have it.
#[test]
fn a_grant_that_a_node_has_not_detached_is_withdrawn_there() {
    let cases = [(lost(), vec![Asked::Detach]), (unknown(), vec![Asked::Detach, Asked::Withdraw])];
    for (answer, asked) in cases {
        let votes = Votes::of(3);
        let mut entry = granted(&votes);
        votes.say([answer, Say::Done, Say::Done]);
        now(entry.detach()).unwrap();
        assert_eq!(votes.asked(), [asked, vec![Asked::Detach], vec![Asked::Detach]]);
    }
}

#[test]
fn a_node_that_detaches_late_is_left_to_it() {
    let votes = Votes::of(3);
    let mut entry = granted(&votes);
    votes.say([Say::Done, Say::Done]);
    now(entry.detach()).unwrap();
    assert_eq!(votes.asked(), [[Asked::Detach]; 3]);
    assert_eq!(votes.runtime.cleaner().backlog(), 0);
}

/// Makes a claim that holds by two nodes, while the first node has not answered yet that it has raised the token.
fn granted_during_a_raise(votes: &Votes) -> Entry {
    let wall = votes.wall();
    let mut entry = votes.enter(1);
    let mut asking = entry.attempt();
    votes.say([Say::Grant(wall), Say::Grant(wall + 5)]);
    assert!(poll(&mut asking).is_pending());
    votes.nodes[2].say(Say::Grant(wall + 5));
    assert!(matches!(now(asking), Ok(Attempt::Granted(_))));
    assert_eq!(votes.asked()[0], [Asked::Vote(wall), Asked::Raise(wall + 5)]);
    entry
}

/// Its vote is a part of the lease: otherwise it would stay until it expires, also if the lease is released before.
#[test]
fn a_node_whose_token_is_being_raised_detaches_behind_that() {
    for is_late in [false, true] {
        let votes = Votes::of(3);
        let mut entry = granted_during_a_raise(&votes);
        let mut detaching = entry.detach();
        assert!(poll(&mut detaching).is_pending());
        assert_eq!(votes.asked(), [vec![], vec![Asked::Detach], vec![Asked::Detach]]);
        let raised = || votes.nodes[0].say(Say::Done);
        if !is_late {
            raised();
            assert!(poll(&mut detaching).is_pending());
        }
        votes.nodes[1..].iter().for_each(|node| node.say(Say::Done));
        now(detaching).unwrap();
        if is_late {
            raised();
            votes.run();
        }
        assert_eq!(votes.nodes[0].asked(), [Asked::Detach], "late: {is_late}");
    }
}

/// The node has lost the vote meanwhile.
#[test]
fn a_node_that_cannot_detach_behind_a_raise_keeps_nothing() {
    let votes = Votes::of(3);
    let mut entry = granted_during_a_raise(&votes);
    let mut detaching = entry.detach();
    assert!(poll(&mut detaching).is_pending());
    votes.nodes[1..].iter().for_each(|node| node.say(Say::Done));
    now(detaching).unwrap();
    votes.asked();
    for say in [outbid(), unknown(), Say::Left(Removed::Released)] {
        votes.nodes[0].say(say);
    }
    votes.run();
    assert_eq!(votes.nodes[0].asked(), [Asked::Detach, Asked::Withdraw]);
    assert_eq!(votes.runtime.cleaner().backlog(), 0);
}

#[test]
fn a_node_without_the_grant_is_not_asked_to_detach_it() {
    let votes = Votes::of(3);
    let mut entry = votes.enter(1);
    let wall = votes.wall();
    votes.say([unsent(), Say::Grant(wall), Say::Grant(wall)]);
    assert!(matches!(now(entry.attempt()), Ok(Attempt::Granted(_))));
    votes.asked();
    votes.say([Say::Done, Say::Done, Say::Done]);
    now(entry.detach()).unwrap();
    assert_eq!(votes.asked(), [vec![], vec![Asked::Detach], vec![Asked::Detach]]);
}

#[test]
fn a_grant_that_has_ended_is_lost_when_it_is_detached() {
    let votes = Votes::of(3);
    let mut entry = granted(&votes);
    votes.pass(TTL);
    votes.say([lost(), lost(), lost()]);
    assert!(now(entry.detach()).unwrap_err().is_lost());
}

/// One that attaches the lease does not look further.
#[test]
fn a_grant_under_a_seventeenth_id_is_not_detached() {
    for (losses, last) in [(15, Asked::Detach), (16, Asked::Withdraw)] {
        let votes = Votes::of(3);
        let mut entry = granted(&votes);
        let held = entry.renewal().expect("it is renewed");
        let due = std::slice::from_ref(&held.claim);
        for _ in 0..losses {
            votes.say([Say::Gone, Say::Done, Say::Done]);
            now(held.session.renew(due)).unwrap();
            // The claim of before is withdrawn there first.
            votes.nodes[0].say(Say::Left(Removed::Nothing));
            votes.say([Say::Grant(votes.wall()), Say::Done, Say::Done]);
            now(held.session.renew(due)).unwrap();
        }
        votes.asked();
        let first = if last == Asked::Detach { Say::Done } else { Say::Left(Removed::Released) };
        votes.say([first, Say::Done, Say::Done]);
        now(entry.detach()).unwrap();
        assert_eq!(votes.asked(), [[last], [Asked::Detach], [Asked::Detach]], "{losses}");
    }
}
