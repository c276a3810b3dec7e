use fencepost_core::{HolderInfo, Mode, Want};

use super::*;

#[test]
fn a_grant_that_has_ended_is_forgotten_however_it_was_found() {
    let thread = crate::testing::Thread::start();
    let (clock, ttl) = (thread.runtime.clock(), Duration::from_secs(1));
    let want = Want { name: Name::new("lock").unwrap(), mode: Mode::Exclusive };
    let holder = HolderInfo::labelled("me");
    let claim = Arc::new(Claim::new(ClaimId::from_u128(1), want, ttl, holder, thread.runtime.clone()));
    let (table, sent) = (TrackedClaims::default(), clock.now());
    let tracked = table.add(&claim);
    let found = |token| Pushed { token: Token::new(token), confirmed: Some((sent, ttl)) };
    table.stand(&tracked, (sent, Token::new(4)), 1, sent);
    tracked.push(found(5));
    assert!(!tracked.waits());
    // It was not collected in time, the lock went on, and the claim stands in line again.
    table.stand(&tracked, (sent, Token::new(7)), 2, sent);
    assert!(tracked.waits());
    tracked.push(found(6));
    assert!(tracked.waits(), "the answer to a request of before is late");
    tracked.push(found(8));
    assert!(matches!(tracked.collect(), Collected::Grant { pushed, .. } if pushed.token == Token::new(8)));
}
