//! Tests of row locks on real servers: those of all SQL engines, and those of MySQL and MariaDB alone.

mod driver;
mod idle;

use std::time::Duration;

use fencepost_core::{Guard, Loss};
use fencepost_mysql::mysql_async::RowTransaction;
use fencepost_testkit::needs;
use fencepost_testkit::sql::rows::{self, RowServer, SELL, SOON, lock};
use fencepost_testkit::wait::eventually;
use mysql_async::params;

use crate::driver::Rows;

fencepost_testkit::row_tests!(Rows);

/// Starts a server with the tables of row locks and a table of the caller.
async fn server() -> RowServer<Rows> {
    RowServer::start().await
}

fn transaction(guard: &mut Guard) -> RowTransaction {
    RowTransaction::of(guard).expect("a row lock has one")
}

async fn sell(guard: &mut Guard) {
    rows::sell::<Rows>(guard).await;
}

/// Statements may have parameters, by position or by name. After the release they fail.
#[tokio::test]
async fn statements_have_parameters() {
    needs!(MARIADB);
    let server = server().await;
    let client = server.connect().await;
    let mut guard = lock(&client, "stock/42").await;
    let sold = transaction(&mut guard);
    let update = "UPDATE stock SET pieces = pieces - :sold WHERE id = :id";
    let params = params! { "sold" => 3, "id" => 42 };
    assert_eq!(sold.execute(update, params).await.expect("it is open").affected_rows, 1);
    let read = sold.execute("SELECT pieces FROM stock WHERE id = ?", (42,)).await.expect("it is open");
    assert_eq!(read.rows.into_iter().map(mysql_async::from_row::<i64>).collect::<Vec<_>>(), [7]);
    let error = sold.execute("SELECT ?, ?", (42,)).await.expect_err("a value is missing");
    assert!(error.to_string().contains("takes 2 parameters"), "{error}");
    guard.release().await.expect("it was held");
    assert_eq!(server.pieces(), "7");
    sold.execute(SELL, ()).await.expect_err("the transaction is over");
    client.close().await;
}

/// A statement that fails is undone alone, and does not free the lock.
#[tokio::test]
async fn a_statement_that_fails_frees_nothing() {
    needs!(MARIADB);
    let server = server().await;
    let (client, other) = (server.connect().await, server.connect().await);
    let mut guard = lock(&client, "stock/42").await;
    sell(&mut guard).await;
    let error = transaction(&mut guard).execute("INSERT INTO stock VALUES (42, 1)", ()).await;
    assert!(error.expect_err("it is there").to_string().contains("Duplicate"));
    guard.extend(Duration::from_secs(30)).await.expect("it is held");
    let mutex = other.mutex("stock/42").expect("a good name");
    assert!(mutex.try_lock().await.expect("busy is no error").is_none());
    guard.release().await.expect("it was held");
    assert_eq!(server.pieces(), "7");
    client.close().await;
    other.close().await;
}

/// A statement that ends the transaction frees the lock. The holder is told, and what follows is not committed.
#[tokio::test]
async fn an_end_by_the_holder_is_noticed() {
    needs!(MARIADB);
    let server = server().await;
    let client = server.connect().await;
    for end in ["COMMIT", "ROLLBACK", "CREATE TABLE IF NOT EXISTS other (id INT)", "SET autocommit = 1"] {
        let mut guard = lock(&client, "stock/42").await;
        transaction(&mut guard).execute(end, ()).await.expect("nobody forbids it");
        let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
        assert_eq!(lost, Loss::SessionEnded, "{end}");
        assert!(guard.release().await.expect_err("the lock was free").is_lost(), "{end}");
    }
    // Another transaction on the connection is not the lock's: the release finds that out.
    for begin in ["BEGIN", "COMMIT AND CHAIN"] {
        let mut guard = lock(&client, "stock/42").await;
        transaction(&mut guard).execute(begin, ()).await.expect("nobody forbids it");
        sell(&mut guard).await;
        assert!(guard.release().await.expect_err("the lock was free").is_lost(), "{begin}");
    }
    assert_eq!(server.pieces(), "10");
    lock(&client, "stock/42").await.release().await.expect("it was held");
    client.close().await;
}

/// The server rolls a transaction back whose wait for another one would never end. The holder is told at once.
#[tokio::test]
async fn a_deadlock_ends_the_lock() {
    needs!(MARIADB);
    let server = server().await;
    server.run("INSERT INTO stock VALUES (43, 10)");
    let client = server.connect().await;
    let (mut one, mut two) = (lock(&client, "stock/42").await, lock(&client, "stock/43").await);
    let (first, second) = (transaction(&mut one), transaction(&mut two));
    let sell = |id: i32| (id,);
    let update = "UPDATE stock SET pieces = pieces - 3 WHERE id = ?";
    first.execute(update, sell(42)).await.expect("it is free");
    second.execute(update, sell(43)).await.expect("it is free");
    // One of them waits for the other. The second one to wait fails, or makes the first one fail.
    let (waits, fails) = tokio::join!(first.execute(update, sell(43)), second.execute(update, sell(42)));
    assert!(waits.is_ok() != fails.is_ok(), "one is undone");
    let (kept, ended) = if waits.is_ok() { (one, two) } else { (two, one) };
    tokio::time::timeout(SOON, ended.lost()).await.expect("it is told");
    assert!(ended.release().await.expect_err("it was undone").is_lost());
    kept.release().await.expect("it was held");
    assert_eq!(server.run("SELECT pieces FROM stock ORDER BY id"), "7\n7");
    client.close().await;
}

/// A statement with parameters is prepared. It does not stay at the server, at whichever moment its call was dropped.
#[tokio::test]
async fn a_dropped_statement_is_not_left_prepared() {
    needs!(MARIADB);
    let server = server().await;
    let client = server.connect().await;
    // No renewal prepares a statement meanwhile.
    let mutex = client.mutex("stock/42").expect("a good name");
    let mut guard = mutex.lock().ttl(Duration::from_secs(3_600)).await.expect("it is free");
    let open = transaction(&mut guard);
    let prepared = || server.run("SHOW GLOBAL STATUS LIKE 'Prepared_stmt_count'");
    let before = prepared();
    for number in 0..200 {
        let moment = Duration::from_micros(number * 97 % 2_000);
        let _ =
            tokio::time::timeout(moment, open.execute("SELECT pieces FROM stock WHERE id = ?", (42,))).await;
    }
    eventually(SOON, "all are closed", || async { prepared() == before }).await;
    sell(&mut guard).await;
    guard.release().await.expect("it was held");
    client.close().await;
}

#[tokio::test]
async fn a_stopped_process_holds_up_nobody_for_its_lease() {
    needs!(MARIADB);
    let server = server().await;
    let registry = fencepost_mysql::register(fencepost_core::Registry::new());
    fencepost_testkit::sql::a_stopped_process_holds_up_nobody_for_its_lease(&registry, &server.url()).await;
}

/// Runs in the other process of a test; does nothing in this one.
#[test]
fn hold_elsewhere() {
    let registry = fencepost_mysql::register(fencepost_core::Registry::new());
    fencepost_testkit::conformance::hold_elsewhere(&registry);
}
