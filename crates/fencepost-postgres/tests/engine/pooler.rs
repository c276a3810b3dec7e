//! Poolers between the client and the server.

use std::time::Duration;

use fencepost_testkit::needs;
use fencepost_testkit::sql::{PgBouncer, Postgres};

use crate::{SOON, connect, locks, try_connect};

/// A lock of a session would stay on a backend of the pooler.
#[tokio::test]
async fn a_pooler_in_transaction_mode_is_refused_with_the_reason() {
    needs!(POSTGRES, PGBOUNCER);
    let server = Postgres::start().expect("a server starts");
    for mode in ["transaction", "statement"] {
        let pooler = PgBouncer::start(&server, mode).expect("a pooler starts");
        let error = try_connect(&pooler.url()).await.expect_err("locks do not work there");
        let text = error.to_string();
        assert!(error.is_configuration() && text.contains("transaction mode"), "{mode}: {text}");
        assert!(text.contains("session mode"), "it says what to do: {text}");
    }
    assert_eq!(locks(&server).trim(), "0");
}

/// In session mode a connection of the client has a backend of its own.
#[tokio::test]
async fn a_pooler_in_session_mode_works() {
    needs!(POSTGRES, PGBOUNCER);
    let server = Postgres::start().expect("a server starts");
    let pooler = PgBouncer::start(&server, "session").expect("a pooler starts");
    let (one, two) = (connect(&pooler.url()).await, connect(&pooler.url()).await);
    let direct = connect(&server.url()).await;
    let guard = one.mutex("lock").expect("a good name").lock().await.expect("it is free");
    assert!(direct.mutex("lock").expect("a good name").try_lock().await.expect("busy").is_none());
    let mutex = two.mutex("lock").expect("a good name");
    let error = mutex.lock().wait(Duration::from_millis(300)).await.expect_err("it is held");
    assert!(error.is_timeout(), "{error}");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    let queued = fencepost_testkit::wait::eventually(2 * SOON, "it stands in the queue", || async {
        server.run(waits).expect("the server answers").trim() == "1"
    });
    if tokio::time::timeout(SOON, queued).await.is_err() {
        let backends = "SELECT pid, state, wait_event, state_change, query FROM pg_stat_activity WHERE state IS NOT NULL";
        panic!("no claim stands in the queue; the backends:\n{}", server.run(backends).expect("it answers"));
    }
    let token = guard.token();
    guard.release().await.expect("it was held");
    let guard =
        tokio::time::timeout(SOON, waiting).await.expect("granted").expect("no panic").expect("granted");
    assert!(guard.token() > token);
    guard.release().await.expect("it was held");
    let permits = two.semaphore("pool", 3).expect("a good name");
    permits.acquire_many(3).await.expect("free").release().await.expect("held");
    for client in [one, two, direct] {
        client.close().await;
    }
    assert_eq!(locks(&server).trim(), "0");
}
