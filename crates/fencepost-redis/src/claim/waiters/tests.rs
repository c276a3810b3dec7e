use fencepost_core::{HolderInfo, Mode, Want};

use super::*;

#[test]
fn a_grant_that_has_ended_is_forgotten_however_it_was_found() {
    let thread = crate::testing::Thread::start();
    let (clock, ttl) = (thread.runtime.clock(), Duration::from_secs(1));
    let want = Want { name: Name::new("lock").unwrap(), mode: Mode::Exclusive };
    let holder = HolderInfo::labelled("me");
    let claim = Arc::new(Claim::new(ClaimId::from_u128(1), want, ttl, holder, thread.runtime.clone()));
    let (places, sent) = (Places::default(), clock.now());
    let place = places.add(&claim);
    let found = |token| Pushed { token: Token::new(token), confirmed: Some((sent, ttl)) };
    places.stand(&place, (sent, Token::new(4)), 1, sent);
    place.push(found(5));
    assert!(!place.waits());
    // It was not collected in time, the lock went on, and the claim stands in line again.
    places.stand(&place, (sent, Token::new(7)), 2, sent);
    assert!(place.waits());
    place.push(found(6));
    assert!(place.waits(), "the answer to a request of before is late");
    place.push(found(8));
    assert!(matches!(place.collect(), Collected::Grant { pushed, .. } if pushed.token == Token::new(8)));
}
