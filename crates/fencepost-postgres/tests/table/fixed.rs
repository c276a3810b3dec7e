//! Leases that are not renewed.

use fencepost_testkit::wait::eventually;
use fencepost_testkit::{needs, sql};

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

#[tokio::test]
async fn an_evicted_holder_with_a_fixed_lease_is_told() {
    needs!(POSTGRES);
    let (_server, url) = start().await;
    sql::evicted_holders_with_fixed_leases_are_told(async || connect(&url).await).await;
}

#[tokio::test]
async fn a_holder_with_a_fixed_lease_is_told_that_its_row_was_deleted() {
    needs!(POSTGRES);
    let (_server, url) = start().await;
    sql::a_holder_with_a_fixed_lease_is_told_that_its_row_was_deleted(async || connect(&url).await).await;
}
