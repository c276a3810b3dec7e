//! The data is lost, or is not; scripts and subscriptions are lost.

use crate::kit::{LONG, SOON, Waiting, connect, counter, eventually, granted, line_of, lock, wait, within};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis};

/// Takes and releases the lock, and says which token that had; and what a counter said.
async fn token(redis: &Redis) -> (u64, u64) {
    let locks = connect(&redis.url(), LONG).await;
    let guard = lock(&locks, "lock").await;
    let tokens = (guard.token().get(), counter(&mut redis.look()));
    guard.release().await.unwrap();
    locks.close().await;
    tokens
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_outlive_the_data_and_a_counter_does_not() {
    needs!(REDIS);
    let mut redis = Redis::start(&Config::new()).unwrap();
    let mut before = token(&redis).await;
    for loss in ["flush", "deletion", "restart"] {
        match loss {
            "flush" => redis.look().ask::<()>(&["FLUSHALL"]),
            "deletion" => redis.look().ask::<()>(&["DEL", "fencepost:lock", "counter"]),
            _ => redis.restart().unwrap(),
        }
        assert_eq!(redis.look().ask::<u64>(&["DBSIZE"]), 0, "{loss} loses all");
        let after = token(&redis).await;
        assert!(after.0 > before.0, "{loss}: {} is not above {}", after.0, before.0);
        assert!(after.1 <= before.1, "{loss} rewinds a counter: this is what the clock in a token is for");
        before = after;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_durable_server_keeps_grants_and_places_through_a_kill() {
    needs!(REDIS);
    let mut redis = Redis::start(&Config::new().durable()).unwrap();
    let locks = connect(&redis.url(), LONG).await;
    let guard = lock(&locks, "lock").await;
    let waiting = wait(&locks, "lock", 1).await;
    redis.kill().unwrap();
    redis.restart().unwrap();
    let other = connect(&redis.url(), LONG).await;
    assert!(other.mutex("lock").unwrap().try_lock().await.unwrap().is_none(), "it is still held");
    guard.ensure_held().unwrap();
    let token = guard.token();
    guard.release().await.expect("it was still held");
    assert!(granted(waiting, SOON).await.token() > token);
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_that_the_server_forgot_are_sent_again() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new()).unwrap();
    let locks = connect(&redis.url(), LONG).await;
    let mut look = redis.look();
    let mut forget = || look.ask::<()>(&["SCRIPT", "FLUSH"]);
    let guard = lock(&locks, "lock").await;
    forget();
    let waiting = wait(&locks, "lock", 1).await;
    forget();
    guard.release().await.unwrap();
    let mut guard = granted(waiting, SOON).await;
    forget();
    guard.extend(LONG).await.unwrap();
    forget();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_loses_no_wake_up() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new()).unwrap();
    let (holder, waiter) = (connect(&redis.url(), LONG).await, connect(&redis.url(), LONG).await);
    for kind in ["pubsub", "normal", "pubsub", "normal"] {
        let guard = lock(&holder, "lock").await;
        let waiting = wait(&waiter, "lock", 1).await;
        // The handoff's message finds nobody, or somebody who has just come back. The killer is not killed.
        redis.look().ask::<u64>(&["CLIENT", "KILL", "TYPE", kind]);
        guard.release().await.unwrap();
        granted(waiting, SOON).await.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_expires_in_the_end() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new()).unwrap();
    let locks = connect(&format!("{}?retention=1s", redis.url()), LONG).await;
    let guard = lock(&locks, "lock").await;
    let waiting = wait(&locks, "lock", 1).await;
    guard.release().await.unwrap();
    granted(waiting, SOON).await.release().await.unwrap();
    locks.close().await;
    let mut look = redis.look();
    let ttl: i64 = look.ask(&["PTTL", "fencepost:lock"]);
    // -2: it has gone already. -1 would be a key that never expires.
    assert!(
        ttl == -2 || (0..=4_000).contains(&ttl),
        "an idle lock's key goes soon after its retention, not in {ttl} ms"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_line_that_was_lost_with_the_data_is_asked_for_again_at_once() {
    needs!(REDIS);
    const COUNT: usize = 1_000;
    let redis = Redis::start(&Config::new()).unwrap();
    let (locks, other) = (connect(&redis.url(), LONG).await, connect(&redis.url(), LONG).await);
    let _guard = lock(&other, "lock").await;
    let waiting: Vec<_> = (0..COUNT)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move { locks.mutex("lock")?.lock().await?.release().await })
        })
        .collect();
    line_of(&locks, "lock", COUNT).await;
    redis.look().ask::<()>(&["FLUSHALL"]);
    // By sixteen a second it would take a minute.
    let all = futures_util::future::join_all(waiting);
    for one in within(2 * SOON, all).await {
        one.unwrap().expect("waiting is no error");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_stood_in_a_line_that_begins_anew_gets_in_although_its_number_is_anothers() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new()).unwrap();
    let (locks, other) = (connect(&redis.url(), LONG).await, connect(&redis.url(), LONG).await);
    let guard = lock(&other, "lock").await;
    let first = wait(&locks, "lock", 1).await;
    redis.look().ask::<()>(&["FLUSHALL"]);
    // Before the first one hears of that: the second one of its client has the number that it had.
    let holder = lock(&locks, "lock").await;
    let own = locks.clone();
    let second = tokio::spawn(async move { own.mutex("lock")?.lock().await });
    // The first one may be back by then.
    eventually("it waits in the queue", async || {
        locks.inspect("lock").await.is_ok_and(|info| info.waiters().count() > 0)
    })
    .await;
    holder.release().await.unwrap();
    let (one, two) = (first, second);
    let both = async { tokio::join!(granted_and_released(one), granted_and_released(two)) };
    within(SOON, both).await;
    drop(guard);
    locks.close().await;
    other.close().await;
}

async fn granted_and_released(waiting: Waiting) {
    granted(waiting, SOON).await.release().await.unwrap();
}
