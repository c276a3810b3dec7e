//! Tests of row locks on real servers: those of all SQL engines, and those of PostgreSQL alone.

mod driver;
mod pooler;

use std::time::Duration;

use fencepost_core::Guard;
use fencepost_postgres::tokio_postgres::RowTransaction;
use fencepost_testkit::needs;
use fencepost_testkit::sql::rows::{RowServer, SELL, SOON, lock};
use fencepost_testkit::wait::eventually;

use crate::driver::Rows;

fencepost_testkit::row_tests!(Rows);

/// Starts a server with the tables of row locks and a table of the caller.
async fn server() -> RowServer<Rows> {
    RowServer::start().await
}

fn transaction(guard: &mut Guard) -> RowTransaction {
    RowTransaction::of(guard).expect("a row lock has one")
}

/// A statement that fails does not free the lock. The release says that nothing was committed.
#[tokio::test]
async fn a_statement_that_fails_frees_nothing() {
    needs!(POSTGRES);
    let server = server().await;
    let (client, other) = (server.connect().await, server.connect().await);
    let mutex = other.mutex("stock/42").expect("a good name");
    for recovers in [false, true] {
        let mut guard = lock(&client, "stock/42").await;
        let transaction = transaction(&mut guard);
        transaction.client().execute(SELL, &[]).await.expect("it is open");
        transaction.client().batch_execute("SELECT 1 / 0").await.expect_err("it fails");
        // A renewal of a failed transaction tells that the lock is still there.
        guard.extend(Duration::from_secs(30)).await.expect("it is held");
        assert!(mutex.try_lock().await.expect("busy is no error").is_none());
        if recovers {
            transaction.client().batch_execute("ROLLBACK TO SAVEPOINT fencepost").await.expect("it is there");
            transaction.client().execute(SELL, &[]).await.expect("it is open");
            guard.release().await.expect("it was held");
        } else {
            let error = guard.release().await.expect_err("nothing can be committed");
            let text = format!("{error} {:?}", std::error::Error::source(&error).map(ToString::to_string));
            assert!(text.contains("nothing of it was committed"), "{text}");
        }
        let next = mutex.lock().wait(SOON).await.expect("it is free");
        next.release().await.expect("it was held");
    }
    assert_eq!(server.pieces(), "7");
    client.close().await;
    other.close().await;
}

/// A COMMIT of the holder frees the lock. Its renewal and its release notice.
#[tokio::test]
async fn a_commit_of_the_holder_is_noticed() {
    needs!(POSTGRES);
    let server = server().await;
    let client = server.connect().await;
    for renews in [true, false] {
        let mut guard = lock(&client, "stock/42").await;
        transaction(&mut guard).client().batch_execute("COMMIT").await.expect("nobody forbids it");
        if renews {
            let error = guard.extend(Duration::from_secs(30)).await.expect_err("the lock is free");
            assert!(error.is_lost(), "{error}");
            assert!(guard.ensure_held().is_err());
        }
        let error = guard.release().await.expect_err("the lock was free");
        assert!(error.is_lost(), "{error}");
    }
    client.close().await;
}

/// The server itself ends a holder that falls silent: the client's process is stopped, or its network is cut.
#[tokio::test]
async fn the_lease_is_the_server_s() {
    needs!(POSTGRES);
    let server = server().await;
    let client = server.connect().await;
    let guard = client
        .mutex("lock")
        .expect("a good name")
        .lock()
        .ttl(Duration::from_millis(1_500))
        .await
        .expect("free");
    let setting = "SELECT count(*) FROM pg_stat_activity a, fencepost.row_claim c WHERE a.pid = c.connection \
                   AND a.state = 'idle in transaction'";
    assert_eq!(server.run(setting), "1");
    // Renewals restart it.
    let until = guard.valid_until();
    eventually(SOON, "it is renewed", || async {
        guard.valid_until() > until + Duration::from_millis(1_500)
    })
    .await;
    guard.ensure_held().expect("it is renewed");
    guard.release().await.expect("it was held");
    client.close().await;
}

#[tokio::test]
async fn a_stopped_process_holds_up_nobody_for_its_lease() {
    needs!(POSTGRES);
    let server = server().await;
    let registry = fencepost_postgres::register(fencepost_core::Registry::new());
    fencepost_testkit::sql::a_stopped_process_holds_up_nobody_for_its_lease(&registry, &server.url()).await;
}

/// Runs in the other process of a test; does nothing in this one.
#[test]
fn hold_elsewhere() {
    let registry = fencepost_postgres::register(fencepost_core::Registry::new());
    fencepost_testkit::conformance::hold_elsewhere(&registry);
}
