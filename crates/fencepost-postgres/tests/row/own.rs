//! Locks in transactions of the caller's own.

use std::time::Duration;

use fencepost_postgres::tokio_postgres::{LockOptions, lock_in, make_row};
use fencepost_testkit::needs;
use tokio_postgres::NoTls;

use crate::{SELL, connect, lock, pieces, server, url};

async fn driver(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("it answers");
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn a_lock_in_a_transaction_excludes_guards() {
    needs!(POSTGRES);
    let server = server().await;
    let client = connect(&url(&server)).await;
    let mut own = driver(&server.url()).await;
    let options = LockOptions::default();
    let before = lock(&client, "stock/42").await;
    let token = before.token();
    before.release().await.expect("it was held");
    let transaction = own.transaction().await.expect("it begins");
    let row = lock_in(&transaction, "stock/42", &options).await.expect("it is free");
    assert!(row.token() > token && row.name().as_str() == "stock/42");
    transaction.execute(SELL, &[]).await.expect("it is open");
    let mutex = client.mutex("stock/42").expect("a good name");
    assert!(mutex.try_lock().await.expect("busy is no error").is_none());
    transaction.commit().await.expect("it commits");
    assert_eq!(pieces(&server), "7");
    let next = lock(&client, "stock/42").await;
    assert!(next.token() > row.token());
    // A lock that is held is waited for. Then the transaction is as it was.
    let transaction = own.transaction().await.expect("it begins");
    transaction.batch_execute("SET LOCAL lock_timeout = '17s'").await.expect("it is open");
    transaction.execute(SELL, &[]).await.expect("it is open");
    for wait in [Duration::ZERO, Duration::from_micros(1), Duration::from_millis(50)] {
        let error =
            lock_in(&transaction, "stock/42", &options.clone().wait(wait)).await.expect_err("it is held");
        assert!(error.is_timeout(), "{error}");
    }
    let (locked, released) =
        tokio::join!(lock_in(&transaction, "stock/42", &options), async { next.release().await });
    released.expect("it was held");
    let _ = locked.expect("it comes");
    let shown: String = transaction.query_one("SHOW lock_timeout", &[]).await.expect("it is open").get(0);
    assert_eq!(shown, "17s");
    // A rollback frees the lock, and draws no token back.
    transaction.rollback().await.expect("it can be undone");
    assert_eq!(pieces(&server), "7");
    lock(&client, "stock/42").await.release().await.expect("it was held");
    client.close().await;
}

#[tokio::test]
async fn shared_locks_in_transactions_hold_together() {
    needs!(POSTGRES);
    let server = server().await;
    let client = connect(&url(&server)).await;
    let (mut one, mut two) = (driver(&server.url()).await, driver(&server.url()).await);
    let options = LockOptions::default().shared();
    make_row(&one, "lock", &options).await.expect("it is made");
    make_row(&one, "lock", &options).await.expect("it is there");
    let first = one.transaction().await.expect("it begins");
    let second = two.transaction().await.expect("it begins");
    let _ = lock_in(&first, "lock", &options).await.expect("it is free");
    let _ = lock_in(&second, "lock", &options).await.expect("readers hold together");
    let rwlock = client.rwlock("lock").expect("a good name");
    rwlock.read().await.expect("readers hold together").release().await.expect("it was held");
    assert!(rwlock.try_write().await.expect("busy is no error").is_none());
    drop((first, second));
    rwlock.write().await.expect("it is free").release().await.expect("it was held");
    client.close().await;
}

#[tokio::test]
async fn what_a_transaction_lacks_is_named() {
    needs!(POSTGRES);
    let server = server().await;
    let mut own = driver(&server.url()).await;
    let transaction = own.transaction().await.expect("it begins");
    let options = LockOptions::default();
    let error = lock_in(&transaction, "new", &options).await.expect_err("it has no row");
    assert!(error.is_configuration() && error.to_string().contains("make_row"), "{error}");
    let error = lock_in(&transaction, "", &options).await.expect_err("it is no name");
    assert!(error.is_invalid(), "{error}");
    let error = lock_in(&transaction, "new", &options.clone().table("a;b", "")).await.expect_err("no table");
    assert!(error.is_invalid(), "{error}");
    let error =
        lock_in(&transaction, "new", &options.clone().table("other", "")).await.expect_err("no table");
    assert!(error.is_configuration() && error.to_string().contains("fencepost schema --apply"), "{error}");
    drop(transaction);
    make_row(&own, "new", &options).await.expect("it is made");
    let builder = own.build_transaction().isolation_level(tokio_postgres::IsolationLevel::RepeatableRead);
    let transaction = builder.start().await.expect("it begins");
    let error = lock_in(&transaction, "new", &options).await.expect_err("it reads old data");
    assert!(error.is_configuration() && error.to_string().contains("READ COMMITTED"), "{error}");
}
