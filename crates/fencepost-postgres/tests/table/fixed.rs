//! Leases that are not renewed.

use std::time::Duration;

use fencepost_core::{Eviction, Loss};
use fencepost_testkit::needs;
use fencepost_testkit::wait::eventually;

use crate::{Psql, SOON, await_blocked, await_open, connect, number, start};

/// A release of another process has granted the lock to a claim whose lease is not renewed. The request that collects the grant starts the
/// lease anew. That must take effect although the lease expires between the two statements of the request, because the claim is reported as
/// granted, and another claim would be granted the lock beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_expires_while_its_grant_is_collected_starts_anew() {
    needs!(POSTGRES);
    let (server, url) = start().await;
    let (one, two, three) = (connect(&url).await, connect(&url).await, connect(&url).await);
    let (mutex, third) = (two.mutex("lock").expect("a good name"), three.mutex("lock").expect("a good name"));
    let guard = one.mutex("lock").expect("a good name").lock().await.expect("it is free");
    let waiting = tokio::spawn(async move { mutex.lock().no_renewal().await });
    let waits = "SELECT count(*) FROM fencepost_lock_queue WHERE token = 0";
    eventually(SOON, "it waits", || async { number(&server, waits) == 1 }).await;
    // A release by hand grants the lock, and a transaction locks the granted row.
    let mut other = Psql::start(&server);
    other.send(
        "UPDATE fencepost_lock SET token = token + 1, owner = NULL, session = NULL, count = 0 WHERE name = 'lock'; \
         UPDATE fencepost_lock_queue SET token = (SELECT token FROM fencepost_lock WHERE name = 'lock'), \
         expires = clock_timestamp() + interval '30s'; \
         BEGIN; SELECT id FROM fencepost_lock_queue FOR UPDATE;",
    );
    await_open(&server).await;
    // Notifications are sent at the commit, so another transaction sends this one.
    server
        .run(
            "SELECT pg_notify((SELECT client FROM fencepost_lock_session s JOIN fencepost_lock_queue q ON s.id = q.session), \
             'grant ' || (SELECT id FROM fencepost_lock_queue))",
        )
        .expect("sent");
    await_blocked(&server, 1).await;
    other.send("UPDATE fencepost_lock_queue SET expires = clock_timestamp() - interval '1s'; COMMIT;");
    let granted = tokio::time::timeout(SOON, waiting)
        .await
        .expect("it collects its grant")
        .expect("no panic")
        .expect("granted");
    other.end();
    granted.ensure_held().expect("it was granted the lock a moment ago");
    let second = third.try_lock().await.expect("busy is no error");
    assert!(second.is_none(), "two hold the lock");
    granted.release().await.expect("it was held");
    drop(guard);
}

/// Nothing renews its session, and its client has no other claim, so no message about the eviction arrives.
#[tokio::test]
async fn an_evicted_holder_with_a_fixed_lease_is_told() {
    needs!(POSTGRES);
    let (_server, url) = start().await;
    let (one, two, operator) = (connect(&url).await, connect(&url).await, connect(&url).await);
    // The lock's own row has the exclusive holder, the queue has the shared one.
    let ttl = Duration::from_secs(9);
    let exclusive = one.mutex("lock").expect("a good name");
    let exclusive = exclusive.lock().ttl(ttl).no_renewal().await.expect("it is free");
    let shared = two.rwlock("read").expect("a good name");
    let shared = shared.read().ttl(ttl).no_renewal().await.expect("it is free");
    let how = Eviction::new(false).because("maintenance");
    operator.evict("lock", exclusive.token(), &how).await.expect("it is held");
    operator.evict("read", shared.token(), &how).await.expect("it is held");
    for guard in [exclusive, shared] {
        let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
        assert_eq!(lost, Loss::Evicted);
        let detail = guard.loss_detail().unwrap_or_default();
        assert!(detail.contains("maintenance"), "{detail:?}");
    }
    for client in [one, two, operator] {
        client.close().await;
    }
}

/// `evict --now` deletes the row, and the next claim is granted the lock at once.
#[tokio::test]
async fn a_holder_with_a_fixed_lease_is_told_that_its_row_was_deleted() {
    needs!(POSTGRES);
    let (_server, url) = start().await;
    let (holder, operator) = (connect(&url).await, connect(&url).await);
    let mutex = holder.mutex("lock").expect("a good name");
    let guard = mutex.lock().ttl(Duration::from_secs(9)).no_renewal().await.expect("it is free");
    operator.evict("lock", guard.token(), &Eviction::new(true)).await.expect("it is held");
    let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
    assert_eq!(lost, Loss::Deleted);
    for client in [holder, operator] {
        client.close().await;
    }
}
