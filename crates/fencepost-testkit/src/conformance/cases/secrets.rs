//! The rights that the text of a lease gives, and those that it does not give.

use crate::conformance::Stage;
use crate::conformance::stage::{LONG, lock};
use crate::forgery::Text;
use crate::history::Mode;
use fencepost_core::{Client, DetachedLease, Token};

const X: Mode = Mode::Exclusive;

pub(super) async fn a_lease_opens_no_other_claim(stage: Stage) {
    let (owner, stranger) = (stage.client().await, stage.client().await);
    let before = lock(&owner, "before", X).await.expect("it is free");
    let leased = lock(&owner, "leased", X).await.expect("it is free").detach().await.expect("it is held");
    let own = lock(&owner, "own", X).await.expect("it is free").detach().await.expect("it is held");
    let after = lock(&owner, "after", X).await.expect("it is free");
    for steps in (-3..=3).filter(|steps| *steps != 0) {
        for id in Text::of(&own).neighbours(steps) {
            for name in ["before", "leased", "after"] {
                let forged = Text { id, name: name.to_owned(), ..Text::of(&own) }.forged();
                opens_nothing(&stranger, &forged).await;
            }
        }
    }
    for name in ["before", "leased", "own", "after"] {
        stage.assert_busy(name).await;
    }
    for guard in [before, after] {
        guard.release().await.expect("it was held");
    }
    for lease in [leased, own] {
        stranger.release(&lease).await.expect("its text opens it");
    }
}

async fn opens_nothing(stranger: &Client, forged: &DetachedLease) {
    let name = forged.name();
    let error = stranger.extend(forged, LONG).await.expect_err("another claim was extended");
    assert!(error.is_lost(), "{name}: {error}");
    let error = stranger.attach(forged).await.expect_err("another claim was taken up");
    assert!(error.is_lost(), "{name}: {error}");
    let error = stranger.release(forged).await.expect_err("another claim was released");
    assert!(error.is_lost(), "{name}: {error}");
}

pub(super) async fn a_changed_lease_is_not_believed(stage: Stage) {
    let client = stage.client().await;
    let guard = lock(&client, "lock", X).await.expect("it is free");
    let token = guard.token();
    let lease = guard.detach().await.expect("it is held");
    let text = Text::of(&lease);
    let longest = client.capabilities().max_ttl.as_nanos() as u64;
    for nanos in [0, longest + 1, u64::MAX] {
        let forged = Text { nanos, ..text.clone() }.forged();
        let error = client.attach(&forged).await.expect_err("its length is out of bounds");
        assert!(error.is_invalid(), "{nanos} ns: {error}");
        assert!(client.release(&forged).await.expect_err("its length is out of bounds").is_invalid());
    }
    for mode in [[1, 0, 0, 0, 0, 0, 0, 0, 0], [2, 0, 0, 0, 1, 0, 0, 0, 9]] {
        let forged = Text { mode, ..text.clone() }.forged();
        let error = client.attach(&forged).await.expect_err("it is held in another mode");
        assert!(error.is_lost(), "{error}");
        assert!(client.extend(&forged, LONG).await.expect_err("it is held in another mode").is_lost());
        stage.assert_busy("lock").await;
    }
    let forged = Text { token: u64::MAX, ..text }.forged();
    let extended = client.extend(&forged, LONG).await.expect("it is held");
    assert_eq!(extended.token(), token, "the text's token was believed");
    let guard = client.attach(&forged).await.expect("it is held");
    assert_eq!(guard.token(), token, "the text's token was believed");
    let lease = guard.detach().await.expect("it is held");
    assert_eq!(lease.token(), token);
    client.release(&lease).await.expect("it is held");
    let next = lock(&client, "lock", X).await.expect("it is free");
    assert!(next.token() > token || token == Token::default());
    next.release().await.expect("it was held");
}
