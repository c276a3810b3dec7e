//! Tests of locks in transactions of the caller's own.

use std::time::Duration;

use super::{OwnLock, RowEngine, RowServer, SELL, lock};

#[doc(hidden)]
pub async fn a_lock_in_a_transaction_excludes_guards<R: RowEngine>() {
    let server = RowServer::<R>::start().await;
    let client = server.connect().await;
    let mut own = R::driver(&server.driver_url()).await;
    let options = OwnLock::default();
    let before = lock(&client, "stock/42").await;
    let first = before.token();
    before.release().await.expect("it was held");
    let mut transaction = R::begin(&mut own).await;
    let (name, token) = R::lock_in(&mut transaction, "stock/42", options).await.expect("it is free");
    assert!(token > first && name == "stock/42");
    R::run_in(&mut transaction, SELL).await;
    let mutex = client.mutex("stock/42").expect("a good name");
    assert!(mutex.try_lock().await.expect("busy is no error").is_none());
    R::commit(transaction).await;
    assert_eq!(server.pieces(), "7");
    let next = lock(&client, "stock/42").await;
    assert!(next.token() > token);
    // A lock that is held is waited for. Then the transaction is as it was.
    let mut transaction = R::begin(&mut own).await;
    R::run_in(&mut transaction, R::SET_WAIT).await;
    R::run_in(&mut transaction, SELL).await;
    for wait in [Duration::ZERO, Duration::from_micros(1), Duration::from_millis(50)] {
        let limited = OwnLock { wait: Some(wait), ..options };
        let error = R::lock_in(&mut transaction, "stock/42", limited).await.expect_err("it is held");
        assert!(error.is_timeout(), "{error}");
    }
    let (locked, released) =
        tokio::join!(R::lock_in(&mut transaction, "stock/42", options), async { next.release().await });
    released.expect("it was held");
    locked.expect("it comes");
    assert!(R::query_in(&mut transaction, R::SHOW_WAIT).await.starts_with("17"));
    // A rollback frees the lock.
    R::roll_back(transaction).await;
    assert_eq!(server.pieces(), "7");
    lock(&client, "stock/42").await.release().await.expect("it was held");
    client.close().await;
}

#[doc(hidden)]
pub async fn shared_locks_in_transactions_hold_together<R: RowEngine>() {
    let server = RowServer::<R>::start().await;
    let client = server.connect().await;
    let (mut one, mut two) = (R::driver(&server.driver_url()).await, R::driver(&server.driver_url()).await);
    let options = OwnLock { shared: true, ..OwnLock::default() };
    R::make_row(&mut one, "lock").await.expect("it is made");
    R::make_row(&mut one, "lock").await.expect("it is there");
    let (mut first, mut second) = (R::begin(&mut one).await, R::begin(&mut two).await);
    let (_, token) = R::lock_in(&mut first, "lock", options).await.expect("it is free");
    R::lock_in(&mut second, "lock", options).await.expect("readers hold together");
    let rwlock = client.rwlock("lock").expect("a good name");
    rwlock.read().await.expect("readers hold together").release().await.expect("it was held");
    assert!(rwlock.try_write().await.expect("busy is no error").is_none());
    R::roll_back(first).await;
    R::roll_back(second).await;
    let write = rwlock.write().await.expect("it is free");
    assert!(write.token() > token);
    write.release().await.expect("it was held");
    client.close().await;
}

#[doc(hidden)]
pub async fn what_a_transaction_lacks_is_named<R: RowEngine>() {
    let server = RowServer::<R>::start().await;
    let mut own = R::driver(&server.driver_url()).await;
    let mut transaction = R::begin(&mut own).await;
    let options = OwnLock::default();
    for wait in [None, Some(Duration::ZERO)] {
        let limited = OwnLock { wait, ..options };
        let error = R::lock_in(&mut transaction, "new", limited).await.expect_err("it has no row");
        assert!(error.is_configuration() && error.to_string().contains("make_row"), "{error}");
    }
    let error = R::lock_in(&mut transaction, "", options).await.expect_err("it is no name");
    assert!(error.is_invalid(), "{error}");
    let bad = OwnLock { table: Some("a;b"), ..options };
    let error = R::lock_in(&mut transaction, "new", bad).await.expect_err("it is no table");
    assert!(error.is_invalid(), "{error}");
    let other = OwnLock { table: Some("other"), ..options };
    let error = R::lock_in(&mut transaction, "new", other).await.expect_err("there is no table");
    assert!(error.is_configuration() && error.to_string().contains("fencepost schema --apply"), "{error}");
    R::roll_back(transaction).await;
}
