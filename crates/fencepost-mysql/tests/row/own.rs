//! Locks in transactions of the caller's own.

use std::time::Duration;

use fencepost_mysql::mysql_async::{LockOptions, lock_in, make_row};
use fencepost_testkit::needs;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, IsolationLevel, Transaction, TxOpts};

use crate::{SELL, connect, lock, open, pieces, server, url};

async fn driver(url: &str) -> Conn {
    Conn::from_url(url.replace("mariadb:", "mysql:")).await.expect("it answers")
}

async fn begin(connection: &mut Conn) -> Transaction<'_> {
    let mut options = TxOpts::default();
    options.with_isolation_level(IsolationLevel::ReadCommitted);
    connection.start_transaction(options).await.expect("it begins")
}

#[tokio::test]
async fn a_lock_in_a_transaction_excludes_guards() {
    needs!(MARIADB);
    let server = server().await;
    let client = connect(&url(&server)).await;
    let mut own = driver(&server.url()).await;
    let options = LockOptions::default();
    let before = lock(&client, "stock/42").await;
    let token = before.token();
    before.release().await.expect("it was held");
    let mut transaction = begin(&mut own).await;
    let row = lock_in(&mut transaction, "stock/42", &options).await.expect("it is free");
    assert!(row.token() > token && row.name().as_str() == "stock/42");
    transaction.query_drop(SELL).await.expect("it is open");
    let mutex = client.mutex("stock/42").expect("a good name");
    assert!(mutex.try_lock().await.expect("busy is no error").is_none());
    transaction.commit().await.expect("it commits");
    assert_eq!(pieces(&server), "7");
    let next = lock(&client, "stock/42").await;
    assert!(next.token() > row.token());
    // A lock that is held is waited for. Then the transaction is as it was.
    let mut transaction = begin(&mut own).await;
    transaction.query_drop("SET SESSION innodb_lock_wait_timeout = 17").await.expect("it is open");
    transaction.query_drop(SELL).await.expect("it is open");
    for wait in [Duration::ZERO, Duration::from_micros(1)] {
        let error = lock_in(&mut transaction, "stock/42", &options.clone().wait(wait)).await;
        assert!(error.expect_err("it is held").is_timeout());
    }
    let (locked, released) =
        tokio::join!(lock_in(&mut transaction, "stock/42", &options), async { next.release().await });
    released.expect("it was held");
    let _ = locked.expect("it comes");
    let shown: Option<u64> =
        transaction.query_first("SELECT @@innodb_lock_wait_timeout").await.expect("it is open");
    assert_eq!(shown, Some(17));
    // A rollback frees the lock.
    transaction.rollback().await.expect("it can be undone");
    assert_eq!(pieces(&server), "7");
    lock(&client, "stock/42").await.release().await.expect("it was held");
    own.disconnect().await.expect("it leaves");
    client.close().await;
}

#[tokio::test]
async fn shared_locks_in_transactions_hold_together() {
    needs!(MARIADB);
    let server = server().await;
    let client = connect(&url(&server)).await;
    let (mut one, mut two) = (driver(&server.url()).await, driver(&server.url()).await);
    let options = LockOptions::default().shared();
    make_row(&mut one, "lock", &options).await.expect("it is made");
    make_row(&mut one, "lock", &options).await.expect("it is there");
    let mut first = begin(&mut one).await;
    let mut second = begin(&mut two).await;
    let row = lock_in(&mut first, "lock", &options).await.expect("it is free");
    let _ = lock_in(&mut second, "lock", &options).await.expect("readers hold together");
    let rwlock = client.rwlock("lock").expect("a good name");
    rwlock.read().await.expect("readers hold together").release().await.expect("it was held");
    assert!(rwlock.try_write().await.expect("busy is no error").is_none());
    first.rollback().await.expect("it can be undone");
    second.rollback().await.expect("it can be undone");
    let write = rwlock.write().await.expect("it is free");
    assert!(write.token() > row.token());
    write.release().await.expect("it was held");
    client.close().await;
}

#[tokio::test]
async fn what_a_transaction_lacks_is_named() {
    needs!(MARIADB);
    let server = server().await;
    let mut own = driver(&server.url()).await;
    let mut transaction = begin(&mut own).await;
    let options = LockOptions::default();
    for wait in [options.clone(), options.clone().wait(Duration::ZERO)] {
        let error = lock_in(&mut transaction, "new", &wait).await.expect_err("it has no row");
        assert!(error.is_configuration() && error.to_string().contains("make_row"), "{error}");
    }
    let error = lock_in(&mut transaction, "", &options).await.expect_err("it is no name");
    assert!(error.is_invalid(), "{error}");
    let bad = options.clone().table("a;b", "");
    let error = lock_in(&mut transaction, "new", &bad).await.expect_err("no table");
    assert!(error.is_invalid(), "{error}");
    let other = options.clone().table("other", "");
    let error = lock_in(&mut transaction, "new", &other).await.expect_err("no table");
    assert!(error.is_configuration() && error.to_string().contains("fencepost schema --apply"), "{error}");
    transaction.rollback().await.expect("it can be undone");
    // A transaction that repeats its reads sees what the last holder has written, if it locks first.
    make_row(&mut own, "stock/42", &options).await.expect("it is made");
    let mut other = driver(&server.url()).await;
    let mut holder = begin(&mut other).await;
    let _ = lock_in(&mut holder, "stock/42", &options).await.expect("it is free");
    holder.query_drop(SELL).await.expect("it is open");
    let mut waiter = own.start_transaction(TxOpts::default()).await.expect("it begins");
    let (locked, committed) =
        tokio::join!(lock_in(&mut waiter, "stock/42", &options), async { holder.commit().await });
    committed.expect("it commits");
    let _ = locked.expect("it comes");
    let seen: Option<i64> = waiter.query_first("SELECT pieces FROM stock").await.expect("it is open");
    assert_eq!((seen, &*pieces(&server)), (Some(7), "7"));
    waiter.rollback().await.expect("it can be undone");
    assert_eq!(open(&server), "0");
}
