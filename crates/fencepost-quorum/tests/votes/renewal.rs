//! Renewal rounds at nodes of which some do not answer.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Attempt, Claim, Entry, How, Mode, Removed, Renewal};

use crate::scripted::{Asked, Say, Votes, now, poll, unsent};

/// Slow nodes are waited for so long where a majority suffices.
const GRACE: Duration = Duration::from_millis(20);

fn granted(votes: &Votes, id: u128) -> (Entry, Renewal) {
    let mut entry = votes.entry(votes.claim(id, Mode::Shared), How::Enter);
    let wall = votes.wall();
    votes.say([Say::Grant(wall), Say::Grant(wall), Say::Grant(wall)]);
    assert!(matches!(now(entry.attempt()), Ok(Attempt::Granted(_))));
    votes.asked();
    let held = entry.renewal().expect("it is renewed");
    (entry, held)
}

/// Another quorum's claims are no part of its rounds.
#[test]
fn the_session_of_a_quorum_is_its_own() {
    let each = [Votes::of(3), Votes::of(3), Votes::of(3)];
    let mut ids = each.each_ref().map(|votes| {
        let (_entry, held) = granted(votes, 1);
        held.session.id()
    });
    ids.sort_unstable();
    assert!(ids[0] < ids[1] && ids[1] < ids[2], "{ids:?}");
}

/// A majority that renews it is no reason to give up the vote of a slow node.
#[test]
fn a_renewal_waits_for_each_node_that_it_asked() {
    let votes = Votes::of(3);
    let (_entry, held) = granted(&votes, 1);
    let due = std::slice::from_ref(&held.claim);
    let mut round = held.session.renew(due);
    votes.say([Say::Done, Say::Done]);
    assert!(poll(&mut round).is_pending());
    votes.pass(GRACE);
    assert!(poll(&mut round).is_pending());
    votes.nodes[2].say(Say::Done);
    now(round).unwrap();
    // The same where one of them is asked for its vote again.
    votes.say([Say::Gone, Say::Done, Say::Done]);
    now(held.session.renew(due)).unwrap();
    votes.asked();
    votes.nodes[0].say(Say::Left(Removed::Nothing));
    let mut round = held.session.renew(due);
    votes.nodes[1].say(Say::Done);
    assert!(poll(&mut round).is_pending());
    votes.pass(GRACE);
    assert!(poll(&mut round).is_pending());
    votes.nodes[0].say(unsent());
    votes.nodes[2].say(Say::Done);
    now(round).unwrap();
}

#[test]
fn a_claim_whose_entry_is_gone_is_not_renewed() {
    let votes = Votes::of(3);
    let (entry, held) = granted(&votes, 1);
    drop(entry);
    now(held.session.renew(std::slice::from_ref(&held.claim))).unwrap();
    assert_eq!(votes.asked(), [[]; 3]);
}

/// A node that has lost everything is asked for some of its votes by each round.
#[test]
fn a_round_asks_again_for_1024_votes() {
    let votes = Votes::of(3);
    let held: Vec<_> = (1..=1_025).map(|id| granted(&votes, id)).collect();
    let due: Vec<Arc<Claim>> = held.iter().map(|(_, held)| Arc::clone(&held.claim)).collect();
    let session = &held[0].1.session;
    votes.say([Say::Gone, Say::Done, Say::Done]);
    now(session.renew(&due)).unwrap();
    assert_eq!(votes.asked(), [[Asked::Renew(1_025)]; 3]);
    let mut round = session.renew(&due);
    assert!(poll(&mut round).is_pending());
    let asked = votes.nodes[0].asked();
    assert_eq!(asked.iter().filter(|asked| matches!(asked, Asked::Vote(_))).count(), 1_024);
}
