//! The server's wall clock is set.

use crate::kit::{Fenced, LONG, SOON, connect, eventually, lock, wait};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis};
use fencepost_testkit::wait::all_along;
use std::time::{Duration, Instant};

const HOUR: i64 = 3_600;

#[tokio::test(flavor = "multi_thread")]
async fn set_back_an_hour_it_makes_no_lease_longer() {
    needs!(REDIS);
    let mut redis = Redis::start(&Config::new().clock()).unwrap();
    let dead = connect(&redis.url(), LONG).await;
    let lease = Duration::from_secs(3);
    let guard = dead.mutex("lock").unwrap().lock().ttl(lease).no_renewal().await.unwrap();
    let start = Instant::now();
    redis.jump(-HOUR).unwrap();
    let others = connect(&redis.url(), LONG).await;
    let waiting = others.mutex("lock").unwrap();
    let next = waiting.lock().wait(lease + lease + SOON).await.expect("three seconds are no hour");
    assert!(start.elapsed() < lease + lease + SOON, "it took {:?}", start.elapsed());
    assert!(guard.ensure_held().is_err(), "two hold it");
    assert!(next.token() > guard.token(), "the clock is behind, the token is not");
    let mut token = next.token();
    next.release().await.unwrap();
    for _ in 0..3 {
        let guard = lock(&others, "lock").await;
        assert!(guard.token() > token);
        token = guard.token();
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn set_back_an_hour_it_keeps_who_holds_and_who_waits() {
    needs!(REDIS);
    let mut redis = Redis::start(&Config::new().clock()).unwrap();
    let locks = connect(&redis.url(), Duration::from_secs(9)).await;
    let guard = lock(&locks, "lock").await;
    let waiting = wait(&locks, "lock", 1).await;
    redis.jump(-HOUR).unwrap();
    let first = guard.valid_until();
    all_along(Duration::from_secs(4), async || {
        guard.ensure_held().expect("it is renewed");
        assert!(!waiting.is_finished());
    })
    .await;
    eventually("it is renewed", async || guard.valid_until() > first).await;
    assert!(!waiting.is_finished());
    let token = guard.token();
    guard.release().await.unwrap();
    let next = crate::kit::granted(waiting, SOON).await;
    assert!(next.token() > token);
}

/// Redis breaks its promise here, and the page on it says so: what holds is the token.
#[tokio::test(flavor = "multi_thread")]
async fn set_forward_it_ends_leases_early_and_the_token_stops_the_stale_writer() {
    needs!(REDIS);
    let mut redis = Redis::start(&Config::new().clock()).unwrap();
    let (one, two) = (connect(&redis.url(), LONG).await, connect(&redis.url(), LONG).await);
    let stale = lock(&one, "lock").await;
    redis.jump(HOUR).unwrap();
    let fresh = lock(&two, "lock").await;
    assert!(stale.ensure_held().is_ok(), "nothing could tell it yet: the two overlap");
    let mut resource = Fenced::default();
    assert!(resource.write(stale.token()), "nobody newer has written");
    assert!(resource.write(fresh.token()));
    assert!(!resource.write(stale.token()), "the stale writer is stopped");
}
