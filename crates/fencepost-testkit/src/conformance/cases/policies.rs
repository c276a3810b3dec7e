//! How long a lock is held, and several names at once.

use crate::conformance::Stage;
use crate::conformance::stage::{LONG, SHORT, SOON, builder, lock, lock_fixed};
use crate::history::Mode;
use crate::wait::Stalls;
use fencepost_core::{Client, Loss, Memory, MultiLock, Mutex, Result, State};
use std::time::{Duration, Instant};

const X: Mode = Mode::Exclusive;

/// The holder hangs: it neither asks for the lock's state nor drops its guard.
pub(super) async fn held_for_its_longest_time(stage: Stage) {
    let client = stage.client().await;
    let mutex = client.mutex("lock").expect("a good name");
    let mut stalls = Stalls::default();
    while stalls.spoilt(ends_with_its_longest_time(&stage, &mutex).await) {}
    // A limit that is not reached changes nothing.
    let guard = mutex.lock().max_hold(LONG).await.expect("it is free");
    guard.release().await.expect("it was held");
    stage.assert_free("lock").await;
    drop(mutex.lock().max_hold(LONG).await.expect("it is free"));
    stage.assert_free("lock").await;
    for bad in [mutex.lock().max_hold(Duration::ZERO), mutex.lock().max_hold(LONG).at_least(2 * LONG)] {
        assert!(bad.await.expect_err("a bad limit").is_invalid());
    }
    let bad = mutex.lock().max_hold(LONG).no_renewal();
    assert!(bad.await.expect_err("a fixed lease has no limit").is_invalid());
}

async fn ends_with_its_longest_time(stage: &Stage, mutex: &Mutex) -> Result<()> {
    let start = Instant::now();
    let mut guard = mutex.lock().max_hold(2 * SHORT).await.expect("it is free");
    guard.extend(LONG).await?;
    let next = stage.stand("lock", X).await.granted().await;
    assert!(start.elapsed() >= 2 * SHORT, "it was released early");
    assert_eq!(guard.state(), State::Lost(Loss::MaxHold), "two hold it");
    let error = guard.extend(LONG).await.expect_err("it is lost");
    assert_eq!(error.loss(), Some(Loss::MaxHold), "{error}");
    let error = guard.release().await.expect_err("it is lost");
    assert_eq!(error.loss(), Some(Loss::MaxHold), "{error}");
    next.ensure_held().expect("a late release takes nothing from its successor");
    next.release().await.expect("it was held");
    Ok(())
}

pub(super) async fn kept_for_its_least_time(stage: Stage) {
    let client = stage.client().await;
    let mutex = client.mutex("lock").expect("a good name");
    for dropped in [false, true] {
        let start = Instant::now();
        let guard = mutex.lock().at_least(2 * SHORT).await.expect("it is free");
        if dropped {
            drop(guard);
        } else {
            guard.release().await.expect("it is held");
        }
        let next = stage.stand("lock", X).await.granted().await;
        assert!(start.elapsed() >= 2 * SHORT, "it was released early");
        next.release().await.expect("it was held");
    }
    // Held for longer, it is released at once.
    let guard = mutex.lock().at_least(Duration::from_millis(1)).await.expect("it is free");
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1) {
        tokio::task::yield_now().await;
    }
    guard.release().await.expect("it was held");
    stage.assert_free("lock").await;
    // A close waits for no least time.
    let other = stage.unshared(builder(LONG)).await;
    let guard = other.mutex("lock").expect("a good name").lock().at_least(LONG).await.expect("it is free");
    guard.release().await.expect("it is held");
    stage.assert_busy("lock").await;
    other.close().await;
    stage.assert_free("lock").await;
}

pub(super) async fn a_lock_in_doubt_warns(stage: Stage) {
    let client = stage.client().await;
    let ttl = SHORT.max(client.capabilities().min_ttl);
    let deaf = stage.deaf(ttl).await;
    for guard in [
        lock(&deaf, "deaf", X).await.expect("it is free"),
        lock_fixed(&client.mutex("fixed").expect("a good name"), ttl).await.expect("it is free"),
    ] {
        let warned = tokio::time::timeout(ttl + SOON, guard.suspect()).await.expect("it is told");
        // On a machine that stalls the lease may be over by then.
        assert!(warned == State::Suspect || guard.ensure_held().is_err(), "{warned:?}");
        let why = tokio::time::timeout(ttl + SOON, guard.lost()).await.expect("it is told");
        assert_eq!(guard.suspect().await, State::Lost(why));
    }
    let guard = lock(&client, "lock", X).await.expect("it is free");
    let held = tokio::time::timeout(SHORT, guard.suspect()).await;
    assert!(held.is_err(), "nothing is in doubt: {held:?}");
    guard.release().await.expect("it was held");
}

pub(super) async fn several_names_are_asked_for_at_once(stage: Stage) {
    let (client, claims) = stage.counted().await;
    let set = client.multi(["a", "b", "c", "d"]).expect("good names");
    claims.hold_back(4);
    let all = tokio::time::timeout(SOON, set.lock().into_future()).await;
    let all = all.expect("one name waits for the grant of another").expect("they are free");
    assert_eq!(claims.count(), 4);
    all.release().await.expect("they were held");
}

/// The set waits for its third name: it holds those before, and none behind.
pub(super) async fn a_set_holds_nothing_behind_what_it_waits_for(stage: Stage) {
    let (one, two) = (stage.client().await, stage.client().await);
    let busy = lock(&one, "c", X).await.expect("it is free");
    let set = two.multi(["a", "b", "c", "d", "e"]).expect("good names");
    let waiting = tokio::spawn(async move { set.lock().await });
    let waits = || async {
        !two.capabilities().inspect
            || two.inspect("c").await.expect("the engine can look").waiters().count() > 0
    };
    stage.eventually("it waits for the busy one", waits).await;
    if two.capabilities().inspect {
        for name in ["a", "b"] {
            stage.assert_busy(name).await;
        }
    }
    for name in ["d", "e"] {
        stage.assert_free(name).await;
    }
    busy.release().await.expect("it was held");
    let all = tokio::time::timeout(SOON, waiting).await.expect("it is free").expect("it ran");
    let all = all.expect("it is free");
    for guard in all.guards() {
        stage.assert_held(guard).await;
    }
    all.release().await.expect("they were held");
    for name in ["a", "b", "c", "d", "e"] {
        stage.assert_free(name).await;
    }
}

/// The other engine is in memory. Its name comes before or behind those of the engine under test.
pub(super) async fn a_set_spans_two_engines(stage: Stage) {
    let (one, two, memory) = (stage.client().await, stage.client().await, Memory::new());
    let beside = || Client::builder().ttl(LONG).open(|_| Ok(memory.clone())).expect("memory is there");
    let look = beside();
    let is_held =
        || async { look.mutex("m").expect("a good name").try_lock().await.expect("no error").is_none() };
    for (here, there) in [("a", "b"), ("b", "a")] {
        let names = |client: &Client| client.multi(["y", "x"]).expect("good names");
        let set = |client: &Client| {
            let parts = [(here, names(client)), (there, beside().multi(["m"]).expect("a good name"))];
            MultiLock::across(parts).expect("two engines with a key each")
        };
        let (mine, other) = (set(&one), set(&two));
        let busy = lock(&two, "y", X).await.expect("it is free");
        assert!(mine.try_lock().await.expect("busy is no error").is_none(), "`y` is held");
        stage.assert_free("x").await;
        assert!(!is_held().await, "the try left the other engine's name locked");
        let waiting = {
            let mine = mine.clone();
            tokio::spawn(async move { mine.lock().await })
        };
        if one.capabilities().inspect {
            let waits =
                || async { one.inspect("y").await.expect("the engine can look").waiters().count() > 0 };
            stage.eventually("it waits for the busy one", waits).await;
            stage.assert_busy("x").await;
            assert_eq!(is_held().await, there < here, "it holds only what comes before `y`");
        }
        busy.release().await.expect("it was held");
        let all = tokio::time::timeout(SOON, waiting).await.expect("it is free").expect("it ran");
        let all = all.expect("it is free");
        for guard in all.guards().iter().filter(|guard| guard.name().as_str() != "m") {
            stage.assert_held(guard).await;
        }
        assert!(is_held().await, "the other engine's name is held");
        all.release().await.expect("they were held");
        for _ in 0..5 {
            let both = async {
                tokio::join!(async { mine.lock().await.expect("it comes").release().await }, async {
                    other.lock().await.expect("it comes").release().await
                })
            };
            let (first, second) = tokio::time::timeout(SOON, both).await.expect("they wait for each other");
            first.and(second).expect("all were held");
        }
        stage.assert_free("x").await;
        stage.assert_free("y").await;
        assert!(!is_held().await, "the other engine's name is free");
    }
}
