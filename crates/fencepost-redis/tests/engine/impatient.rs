//! Callers that give up while their request is on its way.

use fencepost_testkit::needs;
use std::future::IntoFuture;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::kit::{LONG, connect, eventually, lock};
use fencepost_core::{Client, Result};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::redis::{Config, Proxied, Redis};

/// Sends a request for the lock, and gives up before the answer can be there.
fn give_up<T>(request: impl IntoFuture<Output = Result<T>>) {
    let request = pin!(request.into_future());
    if let Poll::Ready(Err(error)) = request.poll(&mut Context::from_waker(Waker::noop())) {
        panic!("{error}");
    }
}

async fn all_withdrawn(locks: &Client) {
    eventually("all requests are withdrawn", async || locks.backlog() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_given_up_leaves_no_tombstone() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new()).unwrap();
    let locks = connect(&redis.url(), LONG).await;
    lock(&locks, "lock").await.release().await.unwrap();
    let mutex = locks.mutex("lock").unwrap();
    for _ in 0..500 {
        give_up(mutex.lock());
        give_up(mutex.try_lock());
        give_up(locks.rwlock("lock").unwrap().read());
        tokio::task::yield_now().await;
    }
    all_withdrawn(&locks).await;
    let fields: i64 = redis.look().ask(&["HLEN", "fencepost:lock"]);
    assert_eq!(fields, 1, "nothing is left but the last token");
    locks.close().await;
}

/// Requests whose connection breaks may still arrive, so that their withdrawals leave tombstones.
#[tokio::test(flavor = "multi_thread")]
async fn tombstones_have_a_limit_and_no_withdrawal_is_forgotten() {
    needs!(REDIS);
    const LIMIT: i64 = 1_000;
    const MORE: i64 = 20;
    let mut proxied = Proxied::start(&Config::new().clock()).unwrap();
    let locks = connect(&proxied.url(), LONG).await;
    lock(&locks, "lock").await.release().await.unwrap();
    proxied.silence().unwrap();
    let mutex = locks.mutex("lock").unwrap();
    (0..LIMIT + MORE).for_each(|_| give_up(mutex.lock()));
    // The client loses the connection, and makes another one.
    let direct = connect(&proxied.direct_url(), LONG).await;
    let mut look = proxied.look();
    proxied.cut().unwrap();
    proxied.mend().unwrap();
    all_withdrawn(&locks).await;
    // Each has its number and its record; and there are the summary and the list of the numbers.
    let mut fields = |count: i64| {
        let found: i64 = look.ask(&["HLEN", "fencepost:lock"]);
        found == 2 * count + 2
    };
    assert!(fields(LIMIT), "there is a tombstone for each up to the limit");
    let guard = lock(&direct, "lock").await;
    assert!(guard.ensure_held().is_ok(), "others get the lock as before");
    guard.release().await.unwrap();
    proxied.jump(121).unwrap();
    for _ in 0..LIMIT / 100 {
        lock(&direct, "lock").await.release().await.unwrap();
    }
    eventually("the others have their tombstones", || std::future::ready(fields(MORE))).await;
    locks.close().await;
}
