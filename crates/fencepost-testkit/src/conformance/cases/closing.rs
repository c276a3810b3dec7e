//! Clients that are closed while their locks are held and waited for.

use crate::conformance::Stage;
use crate::conformance::stage::{LONG, SHORT, SOON, lock};
use crate::history::Mode;
use fencepost_core::{Client, Guard};
use tokio::runtime::{Builder, Runtime};

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

/// A way in which a program drops its guard and then its last client.
type Drops = fn(Runtime, Guard, Client);

pub(super) async fn the_last_client_waits_for_its_releases(stage: Stage) {
    let one = || Builder::new_current_thread().enable_all().build().expect("a runtime");
    let many = || Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let ways: [(&str, Runtime, Drops); 5] = [
        ("inside a runtime of one thread", one(), |runtime, guard, client| {
            runtime.block_on(async { drop((guard, client)) });
        }),
        ("beside a runtime that nobody drives", one(), |_runtime, guard, client| drop((guard, client))),
        ("after its runtime", one(), |runtime, guard, client| {
            drop(runtime);
            drop((guard, client));
        }),
        ("on a worker of a runtime", many(), |runtime, guard, client| {
            runtime
                .block_on(async { tokio::spawn(async { drop((guard, client)) }).await })
                .expect("no panic");
        }),
        ("in `main` of a program", many(), |runtime, guard, client| {
            runtime.block_on(async { drop((guard, client)) });
        }),
    ];
    for (way, runtime, drops) in ways {
        let program = stage.clone();
        let work = move || {
            // A slow machine may need longer than the default of 500 ms.
            let builder = Client::builder().ttl(LONG).drop_timeout(4 * SOON);
            let client = runtime.block_on(program.unshared(builder));
            let guard = runtime.block_on(lock(&client, "lock", X)).expect("it is free");
            drops(runtime, guard, client);
        };
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| panic!("{way}: a drop panics"));
        assert!(stage.is_granted("lock").await, "{way}: the drop returned before the lock was free");
    }
}

pub(super) async fn a_process_that_ends_frees(stage: Stage) {
    let mut other = stage.elsewhere("lock", LONG).expect("the needs were checked");
    stage.assert_busy("lock").await;
    let ended = tokio::task::spawn_blocking(move || other.end());
    tokio::time::timeout(SOON, ended).await.expect("it ends soon").expect("it can be ended");
    stage.assert_free("lock").await;
}
