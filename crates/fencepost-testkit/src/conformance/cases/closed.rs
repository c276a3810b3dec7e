//! Guards whose client is closed.

use crate::conformance::Stage;
use crate::conformance::stage::{LONG, SHORT, SOON, lock};
use crate::history::Mode;
use fencepost_core::{Client, Loss, State};
use std::time::Duration;

const X: Mode = Mode::Exclusive;

pub(super) async fn a_close_tells_its_guards_and_releases_them(stage: Stage) {
    // A guard has a tenth of this to be dropped, and a machine may stall for longer than the default.
    let builder = Client::builder().ttl(LONG).close_timeout(2 * LONG);
    let client = stage.refusable(builder).await.expect("a client can be made");
    let guard = lock(&client, "lock", X).await.expect("it is free");
    let holding = tokio::spawn(async move {
        let why = guard.lost().await;
        (why, guard.ensure_held().expect_err("it is lost"), guard.release().await.expect_err("it is lost"))
    });
    tokio::time::timeout(LONG - SOON, client.close()).await.expect("it waits for no lease");
    let (why, seen, released) = holding.await.expect("no panic");
    assert_eq!((why, seen.loss(), released.loss()), (Loss::Closed, Some(Loss::Closed), Some(Loss::Closed)));
    assert!(seen.to_string().contains("its client was closed"), "{seen}");
    stage.assert_free("lock").await;
}

pub(super) async fn a_close_does_not_wait_for_a_holder(stage: Stage) {
    let ttl = SHORT.max(stage.client().await.capabilities().min_ttl);
    let builder = Client::builder().ttl(LONG).close_timeout(Duration::from_secs(1));
    let client = stage.refusable(builder).await.expect("a client can be made");
    let mutex = client.mutex("lock").expect("a good name");
    let guard = mutex.lock().ttl(ttl).await.expect("it is free");
    tokio::time::timeout(LONG - SOON, client.close()).await.expect("it has a limit");
    assert!(matches!(guard.state(), State::Lost(Loss::Closed | Loss::Expired)), "{:?}", guard.state());
    let waiting = tokio::time::timeout(LONG, guard.lost()).await.expect("it is told");
    assert_eq!(State::Lost(waiting), guard.state(), "the first reason stays");
    drop(guard);
    stage.assert_free("lock").await;
}
