//! A server whose memory is full.

use crate::kit::{LONG, SOON, connect, eventually, granted, lock, wait};
use crate::runs::keeper;
use fencepost_core::Firing;
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Look, Redis};
use fencepost_testkit::wait::all_along;
use std::time::Duration;

/// Fills the server until it takes nothing more, however small, and has more than it may: the room that a script or a
/// connection needs comes and goes.
fn fill(look: &mut Look) {
    look.ask::<()>(&["CONFIG", "SET", "maxmemory", "16000000"]);
    for size in [100_000, 1_000, 10] {
        let value = "x".repeat(size);
        while look.try_ask::<()>(&["APPEND", "fill", &value]).is_ok() {}
    }
    look.ask::<()>(&["CONFIG", "SET", "maxmemory", "8000000"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_goes_on_and_what_is_new_is_refused() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new().memory(8_000_000, "noeviction")).unwrap();
    let (locks, other) =
        (connect(&redis.url(), Duration::from_secs(9)).await, connect(&redis.url(), LONG).await);
    let guard = lock(&locks, "lock").await;
    let waiting = wait(&locks, "lock", 1).await;
    fill(&mut redis.look());
    let first = guard.valid_until();
    all_along(Duration::from_secs(4), async || {
        guard.ensure_held().expect("renewals go on");
        assert!(!waiting.is_finished(), "two hold it");
    })
    .await;
    eventually("renewals go on", async || guard.valid_until() > first).await;
    let refused = other.mutex("new").unwrap().lock().wait(Duration::from_millis(500)).await;
    let error = refused.expect_err("there is no room for one more lock");
    let said = format!("{error} {:?}", std::error::Error::source(&error).map(ToString::to_string));
    assert!(said.contains("memory"), "the error says what is the matter: {said}");
    // A refused request leaves nothing that needs more room.
    eventually("it is tidied up", async || other.backlog() == 0).await;
    let keys = redis.look().ask::<u64>(&["DBSIZE"]);
    for number in 0..20 {
        let mutex = other.mutex(&format!("new/{number}")).unwrap();
        mutex.try_lock().await.expect_err("there is no room for one more lock");
    }
    eventually("it is tidied up", async || other.backlog() == 0).await;
    assert_eq!(redis.look().ask::<u64>(&["DBSIZE"]), keys);
    let token = guard.token();
    guard.release().await.expect("a release needs no room");
    let next = granted(waiting, SOON).await;
    assert!(next.token() > token);
    assert!(
        other.mutex("lock").unwrap().try_lock().await.map_or(true, |answer| answer.is_none()),
        "two hold it"
    );
    next.release().await.expect("a release needs no room");
    redis.look().ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    lock(&other, "new").await.release().await.unwrap();
    lock(&other, "lock").await.release().await.unwrap();
}

/// The record of its run never decides about a lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_run_is_kept_is_granted_and_released() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new().memory(8_000_000, "noeviction")).unwrap();
    let locks = keeper(&redis.url(), Duration::from_secs(86_400)).await;
    let guard = lock(&locks, "lock").await;
    let (first, waiting) = (guard.token(), wait(&locks, "lock", 1).await);
    fill(&mut redis.look());
    guard.report(0);
    guard.release().await.expect("a release needs no room");
    let next = granted(waiting, SOON).await;
    let runs = locks.inspect("lock").await.unwrap().runs.unwrap();
    assert_eq!(runs.good.map(|run| run.token), Some(first));
    assert_eq!(runs.running.map(|run| run.token), Some(next.token()));
    next.report(3);
    next.release().await.expect("a release needs no room");
    let runs = locks.inspect("lock").await.unwrap().runs.unwrap();
    assert_eq!(runs.last.and_then(|run| run.exit_code), Some(3));
    // A firing rests on the record of its run: without room for that it does not begin.
    let once = locks.once("job", LONG).unwrap();
    let error = once.begin().wait(Duration::from_millis(500)).await.expect_err("there is no room");
    let said = format!("{error} {:?}", std::error::Error::source(&error).map(ToString::to_string));
    assert!(said.contains("memory"), "the error says what is the matter: {said}");
    redis.look().ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    let Some(Firing::First(guard)) = once.try_begin().await.unwrap() else { panic!("it has not run") };
    guard.release().await.unwrap();
}
