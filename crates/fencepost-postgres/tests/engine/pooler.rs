//! Poolers between the client and the server.

use std::time::Duration;

use fencepost_testkit::needs;
use fencepost_testkit::sql::{PgBouncer, Postgres};
use fencepost_testkit::wait::eventually;

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
    // Longer than the test: a busy machine can keep a client from its renewal for 30 s.
    let ttl = Duration::from_secs(600);
    let guard = one.mutex("lock").expect("a good name").lock().ttl(ttl).await.expect("it is free");
    assert!(direct.mutex("lock").expect("a good name").try_lock().await.expect("busy").is_none());
    let wait = || {
        let mutex = two.mutex("lock").expect("a good name");
        tokio::spawn(async move { mutex.lock().ttl(ttl).await })
    };
    let queued = async |count: &str| {
        let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
        eventually(SOON, "the queue has that length", || async {
            server.run(waits).expect("the server answers").trim() == count
        })
        .await;
    };
    // A claim that gives up cancels its statement through the pooler.
    let gives_up = wait();
    queued("1").await;
    gives_up.abort();
    queued("0").await;
    let waiting = wait();
    queued("1").await;
    guard.ensure_held().expect("it is held");
    let token = guard.token();
    guard.release().await.expect("it was held");
    let guard =
        tokio::time::timeout(SOON, waiting).await.expect("granted").expect("no panic").expect("granted");
    assert!(guard.token() > token);
    guard.release().await.expect("it was held");
    for client in [one, two, direct] {
        client.close().await;
    }
    assert_eq!(locks(&server).trim(), "0");
}
