//! Clients that are closed while their locks are held and waited for.

use crate::conformance::Stage;
use crate::conformance::stage::{SHORT, SOON, lock};
use crate::history::Mode;

const X: Mode = Mode::Exclusive;

pub(super) async fn a_close_lets_nobody_in_beside_a_holder(stage: Stage) {
    let ttl = SHORT.max(stage.client().await.capabilities().min_ttl);
    let client = stage.client_of(ttl).await;
    let guard = lock(&client, "lock", X).await.expect("it is free");
    let waiting = stage.stand("lock", X).await;
    client.close().await;
    let next = tokio::time::timeout(ttl + SOON, waiting.granted_at_last()).await.expect("its turn comes");
    assert!(guard.ensure_held().expect_err("somebody else holds it").is_lost());
    drop(guard);
    next.release().await.expect("it was held");
}

pub(super) async fn who_waits_is_told_of_a_close(stage: Stage) {
    let ttl = SHORT.max(stage.client().await.capabilities().min_ttl);
    let (other, client) = (stage.client().await, stage.client_of(ttl).await);
    let guard = lock(&other, "lock", X).await.expect("it is free");
    let waiting = stage.stand_of(client.clone(), "lock", X).await;
    client.close().await;
    let answer = tokio::time::timeout(SOON, waiting.answer()).await.expect("it is told");
    let error = answer.expect_err("its client is closed");
    assert!(error.is_closed(), "{error}");
    guard.release().await.expect("it was held");
}
