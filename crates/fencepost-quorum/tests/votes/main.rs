//! The decision of a quorum on each combination of votes, and the requests that follow from it.

mod leases;
mod leave;
mod renewal;
mod scripted;
mod turns;

use fencepost_core::{Attempt, How, Mode, Token};
use fencepost_quorum::Quorum;

use scripted::{Asked, Say, Votes, now, outbid, poll, unsent};

/// The single request to each of these nodes.
fn only(asked: Vec<Vec<Asked>>) -> Vec<Asked> {
    asked.into_iter().flat_map(|asked| <[Asked; 1]>::try_from(asked).expect("one request")).collect()
}

#[test]
fn nodes_that_agree_grant_the_token_that_was_proposed_by_the_clock() {
    let votes = Votes::of(3);
    let wall = votes.wall();
    let mut entry = votes.enter(1);
    votes.say([Say::Grant(wall), Say::Grant(wall)]);
    assert_eq!(now(entry.attempt()).unwrap(), Attempt::Granted(Token::new(wall)));
    assert_eq!(only(votes.asked()), [Asked::Vote(wall); 3]);
}

#[test]
fn the_greatest_token_is_written_back_to_those_that_gave_less() {
    let votes = Votes::of(5);
    let wall = votes.wall();
    let mut entry = votes.enter(1);
    let mut asking = entry.attempt();
    votes.say((0..5).map(|number| Say::Grant(wall + 10 * number)));
    assert!(poll(&mut asking).is_pending());
    let top = wall + 40;
    let asked = votes.asked();
    assert_eq!(asked[4], [Asked::Vote(wall)], "it gave that token");
    for asked in &asked[..4] {
        assert_eq!(*asked, [Asked::Vote(wall), Asked::Raise(top)]);
    }
    // The third of the five clocks is the median: the next proposal is made by it.
    assert!(poll(&mut votes.enter(2).attempt()).is_pending());
    assert_eq!(votes.nodes[4].asked(), [Asked::Vote(wall + 20)]);
    votes.say([Say::Done]);
    assert!(poll(&mut asking).is_pending(), "two of five have the token");
    votes.nodes[1].say(Say::Done);
    assert_eq!(now(asking).unwrap(), Attempt::Granted(Token::new(top)));
}

/// The raise of the first node was outbid by another claim, as was that of the second.
#[test]
fn a_token_that_is_outbid_is_replaced_by_one_that_is_ahead_of_the_others() {
    let mut spreads = Vec::new();
    for id in 1..100 {
        let votes = Votes::of(3);
        let wall = votes.wall();
        let mut entry = votes.enter(id);
        let mut asking = entry.attempt();
        votes.say([Say::Grant(wall), Say::Grant(wall + 5)]);
        assert!(poll(&mut asking).is_pending());
        assert_eq!(votes.nodes[0].asked(), [Asked::Vote(wall), Asked::Raise(wall + 5)]);
        votes.nodes[1].asked();
        let mut top = wall + 5;
        let mut raised = |asked: Vec<Asked>, times: u32| {
            let [Asked::Raise(to)] = asked[..] else { panic!("{asked:?}") };
            let spread = to - top - (500 << times);
            assert!(spread < 1024, "{spread} at {times}");
            spreads.push(spread);
            top = to;
            to
        };
        votes.nodes[0].say(outbid());
        assert!(poll(&mut asking).is_pending());
        let first = raised(votes.nodes[0].asked(), 1);
        assert_eq!(votes.nodes[1].asked(), [Asked::Raise(first)]);
        // Two at once are outbid again, and later one after the other.
        votes.say([outbid(), outbid()]);
        assert!(poll(&mut asking).is_pending());
        raised(votes.nodes[0].asked(), 2);
        for times in 3..9 {
            votes.nodes[1].asked();
            votes.say([outbid(), outbid()]);
            assert!(poll(&mut asking).is_pending());
            raised(votes.nodes[0].asked(), times.min(6));
        }
        votes.say([Say::Done, Say::Done]);
        assert_eq!(now(asking).unwrap(), Attempt::Granted(Token::new(top)));
    }
    spreads.sort_unstable();
    assert!(spreads[0] < 100 && *spreads.last().unwrap() > 900, "they are spread: {spreads:?}");
}

/// The next token of a lock that others hold too is soon theirs.
#[test]
fn a_claim_beside_others_puts_its_token_ahead_at_once() {
    let votes = Votes::of(3);
    let wall = votes.wall();
    let mut entry = votes.entry(votes.claim(1, Mode::Shared), How::Enter);
    let mut asking = entry.attempt();
    votes.say([Say::Grant(wall), Say::Grant(wall + 5)]);
    assert!(poll(&mut asking).is_pending());
    let Asked::Raise(to) = votes.nodes[0].asked()[1] else { panic!("it was not raised") };
    assert!((wall + 5 + 1_000..wall + 5 + 1_000 + 1_024).contains(&to), "{}", to - wall);
    // The one that is left keeps the token that the first has taken.
    votes.say([Say::Done]);
    assert!(poll(&mut asking).is_pending());
    votes.nodes[2].say(Say::Grant(wall));
    assert!(poll(&mut asking).is_pending());
    assert_eq!(votes.nodes[2].asked(), [Asked::Vote(wall), Asked::Raise(to)]);
    votes.nodes[1].say(Say::Done);
    assert_eq!(now(asking).unwrap(), Attempt::Granted(Token::new(to)));
}

/// Where a lock is contended one node is asked first.
#[test]
fn the_node_that_was_asked_first_is_asked_once() {
    let votes = Votes::of(3);
    let wall = votes.wall();
    let mut refused = votes.enter(1);
    votes.say([Say::Refuse(1), Say::Refuse(1), Say::Refuse(1)]);
    assert!(matches!(now(refused.attempt()), Ok(Attempt::Blocked { .. })));
    votes.asked();
    let mut entry = votes.enter(2);
    let mut asking = entry.attempt();
    assert!(poll(&mut asking).is_pending());
    assert_eq!(votes.asked(), [vec![Asked::Vote(wall)], vec![], vec![]]);
    votes.say([Say::Grant(wall), Say::Grant(wall)]);
    assert_eq!(now(asking).unwrap(), Attempt::Granted(Token::new(wall)));
    assert_eq!(votes.asked(), [vec![], vec![Asked::Vote(wall)], vec![Asked::Vote(wall)]]);
}

/// One has failed and one has refused: the third decides whether a majority was heard.
#[test]
fn a_vote_that_may_still_come_is_waited_for_before_an_error() {
    let votes = Votes::of(3);
    let mut entry = votes.enter(1);
    let mut asking = entry.attempt();
    votes.say([Say::Refuse(1), unsent()]);
    assert!(poll(&mut asking).is_pending());
    votes.nodes[2].say(Say::Refuse(1));
    assert!(matches!(now(asking), Ok(Attempt::Blocked { .. })));
}

/// The node's grant is not known: the third has to give that token.
#[test]
fn a_raise_that_fails_does_not_count() {
    let votes = Votes::of(3);
    let wall = votes.wall();
    let mut entry = votes.enter(1);
    let mut asking = entry.attempt();
    votes.say([Say::Grant(wall), Say::Grant(wall + 5)]);
    assert!(poll(&mut asking).is_pending());
    votes.nodes[0].say(unsent());
    assert!(poll(&mut asking).is_pending());
    votes.nodes[2].say(Say::Grant(wall + 5));
    assert_eq!(now(asking).unwrap(), Attempt::Granted(Token::new(wall + 5)));
}

#[test]
fn a_claim_is_gone_when_a_majority_does_not_know_it_any_more() {
    for (says, gone) in
        [([Say::Gone, Say::Gone, Say::Refuse(1)], true), ([Say::Gone, Say::Refuse(1), Say::Refuse(1)], false)]
    {
        let votes = Votes::of(3);
        let mut entry = votes.enter(1);
        votes.say(says);
        assert_eq!(now(entry.attempt()).unwrap() == Attempt::Gone, gone);
    }
}

/// Three of five are silent. Two of them answer late: then only the last one is known to fail.
#[test]
fn silence_is_not_counted_against_the_nodes_that_answered() {
    let votes = Votes::of(5);
    let wall = votes.wall();
    let mut entry = votes.enter(1);
    let mut asking = entry.attempt();
    votes.say([Say::Grant(wall), Say::Grant(wall)]);
    assert!(poll(&mut asking).is_pending());
    votes.pass(Quorum::PATIENCE);
    assert!(now(asking).unwrap_err().is_unreachable());
    votes.nodes[2..4].iter().for_each(|node| node.say(Say::Refuse(1)));
    assert!(poll(&mut entry.attempt()).is_pending());
    votes.asked();
    assert!(poll(&mut votes.enter(2).attempt()).is_pending());
    let asked: Vec<_> = votes.asked().iter().map(Vec::len).collect();
    assert_eq!(asked, [1, 1, 1, 1, 0]);
}
