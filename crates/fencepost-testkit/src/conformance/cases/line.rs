//! The queue: its order, its time limits, and how it moves on.

use crate::conformance::Stage;
use crate::conformance::stage::{LONG, SOON, lock, try_lock};
use crate::history::Mode;
use std::time::{Duration, Instant};

const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;

pub(super) async fn first_come_first_served(stage: Stage) {
    let client = stage.client().await;
    let guard = lock(&client, "lock", X).await.expect("it is free");
    let mut line = Vec::new();
    for _ in 0..8 {
        line.push(stage.stand("lock", X).await);
    }
    assert!(try_lock(&client, "lock", X).await.expect("busy is no error").is_none());
    let mut before = guard.token();
    guard.release().await.expect("it was held");
    for waiting in line {
        let guard = waiting.granted().await;
        assert!(guard.token() >= before, "token {} was given before {before}", guard.token());
        before = guard.token();
        guard.release().await.expect("it was held");
    }
}

pub(super) async fn a_waiting_writer_is_not_overtaken(stage: Stage) {
    let client = stage.client().await;
    let reader = lock(&client, "lock", S).await.expect("it is free");
    let writer = stage.stand("lock", X).await;
    assert!(
        try_lock(&client, "lock", S).await.expect("busy is no error").is_none(),
        "a reader overtook the writer"
    );
    let late = stage.stand("lock", S).await;
    reader.release().await.expect("it was held");
    let guard = writer.granted().await;
    assert!(!late.is_answered(), "a reader holds beside the writer");
    guard.release().await.expect("it was held");
    late.granted().await.release().await.expect("it was held");
}

pub(super) async fn a_small_claim_waits_behind_a_large_one(stage: Stage) {
    let p = |n| Mode::Permits { n, of: 3 };
    let client = stage.client().await;
    let two = lock(&client, "lock", p(2)).await.expect("it is free");
    let large = stage.stand("lock", p(3)).await;
    assert!(
        try_lock(&client, "lock", p(1)).await.expect("busy is no error").is_none(),
        "it overtook the large claim"
    );
    two.release().await.expect("it was held");
    large.granted().await.release().await.expect("it was held");
    stage.assert_free("lock").await;
}

pub(super) async fn a_permit_in_line_is_not_overtaken(stage: Stage) {
    let all = Mode::Permits { n: 3, of: 3 };
    let client = stage.client().await;
    let held = lock(&client, "lock", all).await.expect("it is free");
    // The rule holds for every waiter for permits, not only for the first one.
    let (first, second) = (stage.stand("lock", all).await, stage.stand("lock", all).await);
    let late = stage.stand("lock", X).await;
    let mut before = held.token();
    held.release().await.expect("it was held");
    for waiting in [first, second, late] {
        let guard = waiting.granted().await;
        assert!(guard.token() >= before, "token {} was given before {before}", guard.token());
        before = guard.token();
        guard.release().await.expect("it was held");
    }
    stage.assert_free("lock").await;
}

pub(super) async fn readers_go_together(stage: Stage) {
    let client = stage.client().await;
    let writer = lock(&client, "lock", X).await.expect("it is free");
    let mut readers = Vec::new();
    for _ in 0..5 {
        readers.push(stage.stand("lock", S).await);
    }
    writer.release().await.expect("it was held");
    let mut guards = Vec::new();
    for reader in readers {
        guards.push(reader.granted().await);
    }
    for guard in guards {
        guard.ensure_held().expect("all of them hold it at once");
        guard.release().await.expect("it was held");
    }
}

pub(super) async fn waiting_time_is_a_bound(stage: Stage) {
    let (one, two) = (stage.client_called("the one who holds").await, stage.client().await);
    let guard = lock(&one, "lock", X).await.expect("it is free");
    let mutex = two.mutex("lock").expect("a good name");
    let wait = Duration::from_millis(300);
    // The holder is looked up shortly before the end of the wait, earlier if the wait is longer. A slow
    // engine gets another try with a longer wait.
    for (attempt, wait) in [wait, wait, 2 * wait, 4 * wait, 16 * wait].into_iter().enumerate() {
        let start = Instant::now();
        let error = mutex.lock().wait(wait).await.expect_err("it is held");
        let waited = start.elapsed();
        assert!(waited >= wait && waited < wait + SOON, "it waited {waited:?} of {wait:?}");
        // An engine that is silent for a second counts as failed.
        let silent = error.is_unreachable() && waited >= Duration::from_secs(1);
        assert!(error.is_timeout() || silent, "{error}");
        if silent {
            continue;
        }
        if !two.capabilities().inspect || error.to_string().contains("the one who holds") {
            break;
        }
        assert!(attempt < 4, "the holder is not named: {error}");
    }
    let start = Instant::now();
    assert!(mutex.try_lock().wait(wait).await.expect("busy is no error").is_none());
    assert!(start.elapsed() >= wait, "it gave up early");
    guard.release().await.expect("it was held");
    stage.assert_free("lock").await;
}

/// With a timeout of zero one attempt is made.
pub(super) async fn no_waiting_time_at_all(stage: Stage) {
    let (one, two) = (stage.client_called("the one who holds").await, stage.client().await);
    let mutex = two.mutex("lock").expect("a good name");
    let guard = mutex.lock().wait(Duration::ZERO).await.expect("it is free");
    guard.release().await.expect("it was held");
    let guard = mutex.try_lock().wait(Duration::ZERO).await.expect("it is free").expect("it is free");
    guard.release().await.expect("it was held");
    let both = two.multi(["lock", "another"]).expect("good names");
    both.lock().wait(Duration::ZERO).await.expect("both are free").release().await.expect("they were held");
    let guard = lock(&one, "lock", X).await.expect("it is free");
    // A process that stalls may not say that it holds the lock.
    for tries in (0..4).rev() {
        let start = Instant::now();
        let error = mutex.lock().wait(Duration::ZERO).await.expect_err("it is held");
        assert!(error.is_timeout() && start.elapsed() < LONG, "zero is no time, not for ever: {error}");
        if !two.capabilities().inspect || error.to_string().contains("the one who holds") {
            break;
        }
        assert!(tries > 0, "the holder is not named: {error}");
    }
    assert!(mutex.try_lock().wait(Duration::ZERO).await.expect("busy is no error").is_none());
    assert!(both.try_lock().wait(Duration::ZERO).await.expect("busy is no error").is_none());
    guard.release().await.expect("it was held");
    stage.assert_free("lock").await;
}

pub(super) async fn release_frees_at_once(stage: Stage) {
    let client = stage.client().await;
    for _ in 0..5 {
        let guard = lock(&client, "lock", X).await.expect("it is free");
        let waiting = stage.stand("lock", X).await;
        guard.release().await.expect("it was held");
        // Within `SOON`, which is a fraction of the lease.
        waiting.granted().await.release().await.expect("it was held");
    }
    assert!(SOON * 4 < LONG);
}

pub(super) async fn drop_frees_at_once(stage: Stage) {
    let client = stage.client().await;
    for _ in 0..5 {
        let guard = lock(&client, "lock", X).await.expect("it is free");
        let waiting = stage.stand("lock", X).await;
        drop(guard);
        drop(waiting.granted().await);
    }
    stage.assert_free("lock").await;
}

pub(super) async fn drop_needs_no_runtime(stage: Stage) {
    let client = stage.client().await;
    let guard = lock(&client, "lock", X).await.expect("it is free");
    let waiting = stage.stand("lock", X).await;
    std::thread::spawn(move || drop(guard)).join().expect("a drop does not panic");
    waiting.granted().await.release().await.expect("it was held");
}
