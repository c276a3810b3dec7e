//! Tests of guards.

use std::time::{Duration, Instant};

use fencepost_core::{Effect, Eviction, Loss};

use super::{RowEngine, RowServer, SOON, connect, lock, registry, sell};
use crate::faults::Faults;
use crate::server::{Proxy, Standalone};
use crate::wait::eventually;

/// The change and the lock commit together.
#[doc(hidden)]
pub async fn a_release_commits_the_change<R: RowEngine>() {
    let server = RowServer::<R>::start().await;
    let (client, other) = (server.connect().await, server.connect().await);
    let mut guard = lock(&client, "stock/42").await;
    let token = guard.token();
    sell::<R>(&mut guard).await;
    assert_eq!(server.pieces(), "10", "nothing is committed yet");
    let mutex = other.mutex("stock/42").expect("a good name");
    assert!(mutex.try_lock().await.expect("busy is no error").is_none());
    guard.release().await.expect("it was held");
    assert_eq!(server.pieces(), "7");
    let next = mutex.try_lock().await.expect("no error").expect("it is free");
    assert!(next.token() > token);
    next.release().await.expect("it was held");
    eventually(SOON, "no transaction is open", || async { server.open() == "0" }).await;
    client.close().await;
    other.close().await;
}

#[doc(hidden)]
pub async fn a_drop_rolls_the_change_back<R: RowEngine>() {
    let server = RowServer::<R>::start().await;
    let client = server.connect().await;
    let mut guard = lock(&client, "stock/42").await;
    sell::<R>(&mut guard).await;
    drop(guard);
    lock(&client, "stock/42").await.release().await.expect("it was held");
    assert_eq!(server.pieces(), "10");
    client.close().await;
}

/// The holder is told at once when its session ends: the test prints the time. Another client gets the lock, and nothing was written.
#[doc(hidden)]
pub async fn a_holder_whose_session_is_ended_is_told<R: RowEngine>() {
    let server = RowServer::<R>::start().await;
    let (client, other) = (server.connect().await, server.connect().await);
    let mut guard = lock(&client, "stock/42").await;
    sell::<R>(&mut guard).await;
    R::end_session(&server.server);
    let start = Instant::now();
    let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
    println!("told after {:?}", start.elapsed());
    assert_eq!(lost, Loss::SessionEnded);
    let next = lock(&other, "stock/42").await;
    assert!(next.token() > guard.token());
    assert!(guard.release().await.expect_err("it was lost").is_lost());
    assert_eq!(server.pieces(), "10");
    next.release().await.expect("it was held");
    client.close().await;
    other.close().await;
}

/// The server never frees a lock before the end of the lease that its holder has, also if a later lease is shorter.
#[doc(hidden)]
pub async fn a_shorter_extension_shortens_nothing<R: RowEngine>() {
    let server = RowServer::<R>::start().await;
    let mut proxy = Proxy::start(server.server.address()).expect("a proxy starts");
    let url = format!("{}?mode=row", server.server.url_at(proxy.address()));
    let (client, other) = (connect::<R>(&url).await.expect("it answers"), server.connect().await);
    let (mutex, ttl) = (client.mutex("stock/42").expect("a good name"), Duration::from_secs(8));
    let mut guard = mutex.lock().ttl(ttl).no_renewal().await.expect("it is free");
    guard.extend(ttl / 8).await.expect("it is held");
    proxy.silence().expect("a proxy can");
    let next =
        other.mutex("stock/42").expect("a good name").lock().wait(SOON).await.expect("it becomes free");
    assert!(guard.ensure_held().is_err(), "two hold the lock, one for {:?} more", guard.remaining());
    next.release().await.expect("it was held");
    proxy.mend().expect("a proxy can");
    drop(guard);
    client.close().await;
    other.close().await;
}

/// A silent holder's statement keeps its lock, and a renewal waits behind it. If it lasts longer than the lease, the lock is lost and
/// nothing is committed.
#[doc(hidden)]
pub async fn a_renewal_waits_for_a_statement_of_the_holder<R: RowEngine>() {
    let server = RowServer::<R>::start().await;
    let (client, other) = (server.connect().await, server.connect().await);
    let mutex = client.mutex("stock/42").expect("a good name");
    // Each statement takes longer than a third of the lease, and all of them longer than the lease.
    let mut guard = mutex.lock().ttl(Duration::from_secs(6)).await.expect("it is free");
    for _ in 0..3 {
        R::execute(&mut guard, &R::SLEEP.replace("{}", "2.5")).await.expect("it is open");
        guard.ensure_held().expect("a renewal got through");
    }
    sell::<R>(&mut guard).await;
    guard.release().await.expect("it was held");
    assert_eq!(server.pieces(), "7");
    let mut guard = mutex.lock().ttl(Duration::from_secs(1)).await.expect("it is free");
    sell::<R>(&mut guard).await;
    let sleep = R::SLEEP.replace("{}", "600");
    let long = R::execute(&mut guard, &sleep);
    let next = async { lock(&other, "stock/42").await };
    // The lock is free only when the statement has been ended.
    let (long, next) = tokio::time::timeout(SOON, async { tokio::join!(long, next) }).await.expect("it ends");
    long.expect_err("it was ended");
    assert!(guard.ensure_held().expect_err("its lease is over").is_lost());
    assert!(guard.release().await.expect_err("its lease is over").is_lost());
    assert_eq!(server.pieces(), "7");
    next.release().await.expect("it was held");
    client.close().await;
    other.close().await;
}

/// One thousand guards and waiters that are dropped at random moments leave no transaction and no note.
#[doc(hidden)]
pub async fn drops_at_random_moments_leave_nothing<R: RowEngine>() {
    let server = RowServer::<R>::start().await;
    let client = connect::<R>(&format!("{}&connections=60", server.url())).await.expect("it answers");
    let mut tasks = Vec::new();
    for task in 0..20_u64 {
        let client = client.clone();
        tasks.push(tokio::spawn(async move {
            let mut granted = 0;
            for round in 0..50_u64 {
                let micros = (task * 50 + round).wrapping_mul(0x9e37_79b9_7f4a_7c15) % 300_000;
                let mutex = client.mutex(&format!("lock/{}", (task + round) % 5)).expect("a good name");
                let request = mutex.lock().into_future();
                if let Ok(guard) = tokio::time::timeout(Duration::from_micros(micros), request).await {
                    drop(guard.expect("no connection is missing"));
                    granted += 1;
                }
            }
            granted
        }));
    }
    let mut granted = 0;
    for task in tasks {
        granted += task.await.expect("no task panics");
    }
    println!("{granted} of 1000 were granted");
    eventually(SOON, "no transaction is open", || async { server.open() == "0" }).await;
    let notes = format!("SELECT count(*) FROM {}", R::CLAIMS);
    eventually(SOON, "no note is left", || async { server.run(&notes) == "0" }).await;
    for name in 0..5 {
        lock(&client, &format!("lock/{name}")).await.release().await.expect("it was held");
    }
    client.close().await;
}

/// A row that somebody deletes is made again. A client refuses a lock for which it has no connection.
#[doc(hidden)]
pub async fn rows_and_connections_that_are_missing<R: RowEngine>() {
    let server = RowServer::<R>::start().await;
    let client = connect::<R>(&format!("{}&connections=2", server.url())).await.expect("it answers");
    lock(&client, "one").await.release().await.expect("it was held");
    server.run(&format!("DELETE FROM {} WHERE name = 'one'", R::ROWS));
    let (one, two) = (lock(&client, "one").await, lock(&client, "two").await);
    let error = client.mutex("three").expect("a good name").lock().await.expect_err("there is no connection");
    assert!(error.to_string().contains("raise connections="), "{error}");
    one.release().await.expect("it was held");
    lock(&client, "three").await.release().await.expect("it was held");
    two.release().await.expect("it was held");
    client.close().await;
}

#[doc(hidden)]
pub async fn tables_and_rights_that_are_missing<R: RowEngine>() {
    let bare = RowServer::<R>::bare();
    let error = connect::<R>(&bare.url()).await.expect_err("there are no tables");
    assert!(error.is_configuration() && error.to_string().contains("fencepost schema --apply"), "{error}");
    let server = RowServer::<R>::start().await;
    server.run(R::MAKE_USER);
    let app = server.url().replace(R::ADMINISTRATOR, "app@");
    let error = connect::<R>(&app).await.expect_err("it has no rights");
    assert!(error.is_denied() && error.to_string().contains("fencepost schema"), "{error}");
    // The comments of the schema name the rights.
    let schema = registry::<R>().schema(&app).expect("a good URL");
    for right in schema.lines().filter_map(|line| line.strip_prefix("--     ")) {
        server.run(right);
    }
    let client = connect::<R>(&app).await.expect("it has all rights");
    lock(&client, "lock").await.release().await.expect("it was held");
    let error = match client.semaphore("pool", 3) {
        Ok(semaphore) => semaphore.acquire().await.expect_err("there are no permits"),
        Err(error) => error,
    };
    assert!(error.is_unsupported(), "{error}");
    client.close().await;
}

/// An eviction at once ends the holder's session.
#[doc(hidden)]
pub async fn an_eviction_at_once_undoes_the_change<R: RowEngine>() {
    let server = RowServer::<R>::start().await;
    let (client, operator) = (server.connect().await, server.connect().await);
    let mut guard = lock(&client, "stock/42").await;
    sell::<R>(&mut guard).await;
    operator.evict("stock/42", guard.token(), &Eviction::new(true)).await.expect("it is held");
    tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
    lock(&operator, "stock/42").await.release().await.expect("it was held");
    assert!(guard.release().await.expect_err("it was evicted").is_lost());
    assert_eq!(server.pieces(), "10");
    let report = operator.examine().await.expect("it answers");
    assert!(format!("{report:?}").contains("transactions"), "{report:?}");
    client.close().await;
    operator.close().await;
}

/// The connection of a holder ends in the middle of its commit. The caller is told what became of it, or that nobody knows. Nothing is left
/// open, and the next holder gets the lock.
#[doc(hidden)]
pub async fn a_commit_without_a_reply<R: RowEngine>() {
    let server = RowServer::<R>::start().await;
    let mut proxy = Proxy::start(server.server.address()).expect("a proxy starts");
    let url = format!("{}?mode=row", server.server.url_at(proxy.address()));
    let other = server.connect().await;
    let mut operator = R::driver(&server.driver_url()).await;
    let mut left = 10;
    server.run(R::PREPARE_HOLD);
    for is_committed in [true, false] {
        let client = connect::<R>(&url).await.expect("it answers");
        let mut guard = lock(&client, "stock/42").await;
        sell::<R>(&mut guard).await;
        R::hold_commits(&mut operator).await;
        let releasing = tokio::spawn(guard.release());
        eventually(SOON, "it commits", || async { server.run(R::WAITING_COMMITS) == "1" }).await;
        if is_committed {
            // Only the reply is lost.
            proxy.silence().expect("a proxy can");
            R::free_commits(&mut operator).await;
            left -= 3;
            eventually(SOON, "it has committed", || async { server.pieces() == left.to_string() }).await;
        }
        proxy.cut().expect("a proxy can");
        proxy.mend().expect("a proxy can");
        let released =
            tokio::time::timeout(SOON, releasing).await.expect("the caller is told").expect("no panic");
        if !is_committed {
            R::free_commits(&mut operator).await;
        }
        // The lock is free only when the server has ended the transaction.
        let next = other.mutex("stock/42").expect("a good name").lock().wait(SOON).await.expect("it is free");
        let now: i32 = server.pieces().parse().expect("it is a number");
        match (R::LEARNS_OUTCOME, released) {
            (true, Ok(())) => assert_eq!(now, left, "it was not committed"),
            (true, Err(error)) => {
                assert!(!is_committed && error.is_lost() && error.effect() == Effect::None, "{error}");
                assert!(error.to_string().contains("nothing of the transaction was committed"), "{error}");
                assert_eq!(now, left);
            }
            (false, Ok(())) => panic!("nobody knows that it was committed"),
            (false, Err(error)) => {
                assert_eq!(error.effect(), Effect::Unknown, "{error}");
                let told = error.to_string();
                assert!(
                    told.contains("may have taken effect") && !told.contains("is being undone"),
                    "{told}"
                );
                assert!(now == left || (!is_committed && now == left - 3), "{now} pieces");
            }
        }
        left = now;
        next.release().await.expect("it was held");
        eventually(SOON, "no transaction is open", || async { server.open() == "0" }).await;
        client.close().await;
    }
    other.close().await;
}
