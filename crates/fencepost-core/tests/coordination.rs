//! Barriers and firings whose requests take their time.

use std::time::Duration;

use fencepost_core::Firing;
use fencepost_core::testing;

const SECOND: Duration = Duration::from_secs(1);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A member was killed while it noted that all were inside: its lease keeps that from the others.
#[tokio::test]
async fn a_barrier_that_is_being_opened_keeps_to_the_limit() {
    const OPEN: &str = "batch#barrier0.open";
    let (locks, clock, engine) = testing::client();
    let killed = engine.busy(OPEN).await.unwrap();
    engine.slow(OPEN, millis(1));
    let batch = locks.barrier("batch", 1).unwrap();
    let enter = |limit: Duration| {
        let batch = batch.clone();
        tokio::spawn(async move { batch.enter(limit).await.map(drop) })
    };
    let entering = enter(SECOND);
    clock.advance(2 * SECOND).await;
    assert!(entering.is_finished(), "the limit is over");
    assert!(entering.await.unwrap().unwrap_err().is_timeout());
    let entering = enter(10 * SECOND);
    clock.advance(2 * SECOND).await;
    drop(killed);
    clock.advance(2 * SECOND).await;
    entering.await.unwrap().unwrap();
}

/// It has held the lock to wait for the run of another start, which failed.
#[tokio::test]
async fn a_start_does_not_find_its_own_locks_busy() {
    let (locks, clock, engine) = testing::client();
    let job = locks.once("job", Duration::from_secs(3600)).unwrap().retry();
    let Firing::First(first) = job.begin().await.unwrap() else { panic!("it is free") };
    first.report(1);
    engine.slow("job", millis(500));
    engine.slow("job#once", millis(100));
    let begin = tokio::spawn(async move { job.begin().await });
    clock.advance(millis(10)).await;
    let release = tokio::spawn(first.release());
    clock.advance(millis(640)).await;
    release.await.unwrap().unwrap();
    // The release of the lock that the start has held is under way.
    engine.heal("job");
    clock.advance(2 * SECOND).await;
    let firing = begin.await.unwrap().unwrap();
    assert!(matches!(firing, Firing::First(_)), "{firing:?}");
}
