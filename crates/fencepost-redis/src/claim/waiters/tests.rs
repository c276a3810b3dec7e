use fencepost_core::{HolderInfo, Mode, Want};

use super::*;

fn claim(id: u128, thread: &crate::testing::Thread) -> Arc<Claim> {
    let want = Want { name: Name::new("lock").unwrap(), mode: Mode::Exclusive };
    let (holder, ttl) = (HolderInfo::labelled("me"), Duration::from_secs(1));
    Arc::new(Claim::new(ClaimId::from_u128(id), want, ttl, holder, thread.runtime.clone()))
}

/// While the server knows none of those that it was asked about, it may have lost the whole line.
#[test]
fn a_line_that_may_be_lost_is_asked_about_in_growing_parts() {
    let thread = crate::testing::Thread::start();
    let (table, sent, last) = (TrackedClaims::default(), thread.runtime.clock().now(), Token::new(4));
    let name = Name::new("lock").unwrap();
    for number in 1..=2_000 {
        let tracked = table.add(&claim(u128::from(number), &thread));
        assert_eq!(table.number(&tracked), None);
        table.stand(&tracked, (sent, last), number, sent);
        assert_eq!(table.number(&tracked), Some(number));
    }
    let asked = || match table.oldest(&name, sent + Duration::from_secs(9)) {
        Ok(oldest) => oldest.len(),
        Err(due) => panic!("not before {due:?}"),
    };
    let first = Some((1, last));
    // The last one is asked about, too.
    assert_eq!(asked(), OLDEST + 1);
    for (found, count) in [
        ((None, true), 64),
        ((None, false), 256),
        ((first, true), 1_024),
        ((None, true), 1_024),
        ((first, false), OLDEST),
        ((first, false), OLDEST),
    ] {
        table.anchored(&name, found, sent, sent);
        assert_eq!(asked(), count + 1, "{found:?}");
    }
}

/// The server would answer for the new ones alone, and nobody would find out that it has lost the old ones.
#[test]
fn old_claims_are_asked_about_although_new_ones_have_lower_numbers() {
    let thread = crate::testing::Thread::start();
    let (table, sent) = (TrackedClaims::default(), thread.runtime.clock().now());
    let name = Name::new("lock").unwrap();
    let stand = |number: u64| {
        let tracked = table.add(&claim(u128::from(number), &thread));
        table.stand(&tracked, (sent, Token::new(4)), number, sent);
        tracked
    };
    let old = stand(1_000);
    (1..=20).for_each(|number| _ = stand(number));
    let Ok(asked) = table.oldest(&name, sent + Duration::from_secs(9)) else { panic!("not yet") };
    assert_eq!(asked.len(), OLDEST + 1);
    assert!(Arc::ptr_eq(&asked[OLDEST], &old));
}

#[test]
fn a_grant_that_has_ended_is_forgotten_however_it_was_found() {
    let thread = crate::testing::Thread::start();
    let (clock, ttl) = (thread.runtime.clock(), Duration::from_secs(1));
    let claim = claim(1, &thread);
    let (table, sent) = (TrackedClaims::default(), clock.now());
    let tracked = table.add(&claim);
    let found = |token| Pushed { token: Token::new(token), confirmed: Some((sent, ttl)) };
    table.stand(&tracked, (sent, Token::new(4)), 1, sent);
    tracked.push(found(5));
    assert!(!tracked.waits());
    // It was not collected in time, the lock went on, and the claim waits in the queue again.
    table.stand(&tracked, (sent, Token::new(7)), 2, sent);
    assert!(tracked.waits());
    tracked.push(found(6));
    assert!(tracked.waits(), "the answer to a request of before is late");
    tracked.push(found(8));
    assert!(matches!(tracked.collect(), Collected::Grant { pushed, .. } if pushed.token == Token::new(8)));
}

/// An upgrade would ask again without a pause, because nothing takes that news away while the claim holds.
#[test]
fn late_news_about_a_grant_does_not_wake_an_upgrade() {
    let thread = crate::testing::Thread::start();
    let table = TrackedClaims::default();
    let tracked = table.add(&claim(1, &thread));
    table.hold(&tracked);
    let cx = Context::from_waker(std::task::Waker::noop());
    tracked.push(Pushed { token: Token::new(4), confirmed: None });
    tracked.end();
    assert!(tracked.poll_hint(&cx).is_pending());
    tracked.hint();
    assert!(tracked.poll_hint(&cx).is_ready());
}

/// A server that has lost its last data answers "still waiting" to a claim that it had handed the lock to.
#[test]
fn an_answer_that_it_waits_ends_a_grant_that_came_before_the_request() {
    let thread = crate::testing::Thread::start();
    let clock = thread.runtime.clock();
    let table = TrackedClaims::default();
    let tracked = table.add(&claim(1, &thread));
    let handed = Pushed { token: Token::new(100), confirmed: None };
    let later = || clock.now() + Duration::from_nanos(1);
    table.stand(&tracked, (clock.now(), Token::new(98)), 1, later());
    tracked.push(handed);
    table.stand(&tracked, (later(), Token::new(99)), 1, later());
    assert!(matches!(tracked.collect(), Collected::Nothing));
    // The same by a renewal.
    tracked.push(handed);
    table.anchored(&tracked.claim.want().name, (Some((1, Token::new(99))), false), later(), later());
    assert!(matches!(tracked.collect(), Collected::Nothing));
    // A message may be quicker than the answer to the request that was sent before it.
    let sent = clock.now();
    tracked.push(handed);
    table.stand(&tracked, (sent, Token::new(99)), 1, later());
    assert!(matches!(tracked.collect(), Collected::Grant { .. }));
}
