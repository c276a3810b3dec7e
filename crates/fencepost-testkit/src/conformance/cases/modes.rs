//! Which modes can be held together.

use crate::conformance::Stage;
use crate::conformance::stage::{LONG, SOON, lock, try_lock};
use crate::history::Mode;

const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;

const fn p(n: u32) -> Mode {
    Mode::Permits { n, of: 3 }
}

pub(super) async fn exclusive(stage: Stage) {
    let (one, two) = (stage.client().await, stage.client().await);
    let guard = lock(&one, "lock", X).await.expect("it is free");
    guard.ensure_held().expect("it is held");
    for client in [&one, &two] {
        assert!(try_lock(client, "lock", X).await.expect("busy is no error").is_none(), "two hold it");
    }
    assert!(
        try_lock(&two, "another lock", X).await.expect("it is free").is_some(),
        "another name is another lock"
    );
    guard.release().await.expect("it was held");
    let guard = try_lock(&two, "lock", X).await.expect("it is free").expect("it is free");
    assert!(try_lock(&one, "lock", X).await.expect("busy is no error").is_none(), "two hold it");
    guard.release().await.expect("it was held");
}

/// Tries each mode while each mode is held.
async fn beside(stage: &Stage, table: &[(Mode, Mode, bool)]) {
    let (one, two) = (stage.client().await, stage.client().await);
    for (number, &(held, asked, granted)) in table.iter().enumerate() {
        let name = format!("beside/{number}");
        let first = lock(&one, &name, held).await.expect("it is free");
        for client in [&one, &two] {
            let second = try_lock(client, &name, asked).await.expect("busy is no error");
            assert_eq!(second.is_some(), granted, "{asked} beside {held}");
            // The release of a dropped guard is in flight, and the other client's request may overtake it.
            if let Some(second) = second {
                second.release().await.expect("it was held");
            }
        }
        first.release().await.expect("it was held");
    }
}

pub(super) async fn shared(stage: Stage) {
    beside(&stage, &[(S, S, true), (S, X, false), (X, S, false)]).await;
    let client = stage.client().await;
    let mut readers = Vec::new();
    for _ in 0..5 {
        readers.push(lock(&client, "lock", S).await.expect("readers fit beside readers"));
    }
    while let Some(reader) = readers.pop() {
        assert!(
            try_lock(&client, "lock", X).await.expect("busy is no error").is_none(),
            "a reader is still there"
        );
        reader.release().await.expect("it was held");
    }
    stage.assert_free("lock").await;
}

pub(super) async fn permits(stage: Stage) {
    beside(&stage, &[(p(1), p(1), true), (p(1), p(2), true), (p(2), p(2), false), (p(3), p(1), false)]).await;
    let client = stage.client().await;
    let one = lock(&client, "lock", p(1)).await.expect("it is free");
    let two = lock(&client, "lock", p(2)).await.expect("two permits are left");
    assert!(try_lock(&client, "lock", p(1)).await.expect("busy is no error").is_none(), "no permit is left");
    two.release().await.expect("it was held");
    let two = try_lock(&client, "lock", p(2)).await.expect("it is free").expect("two permits are left again");
    drop((one, two));
    let error = lock(&client, "lock", p(4)).await.expect_err("there are three permits");
    assert!(error.is_invalid(), "{error}");
}

pub(super) async fn mixed_modes(stage: Stage) {
    beside(&stage, &[(X, p(1), false), (p(1), X, false), (S, p(1), false), (p(1), S, false)]).await;
}

pub(super) async fn try_lock_leaves_nothing(stage: Stage) {
    let (one, two) = (stage.client().await, stage.client().await);
    let guard = lock(&one, "lock", X).await.expect("it is free");
    for _ in 0..5 {
        assert!(try_lock(&two, "lock", X).await.expect("busy is no error").is_none(), "two hold it");
    }
    if two.capabilities().inspect {
        let info = two.inspect("lock").await.expect("the engine can look");
        assert_eq!((info.holders().count(), info.waiters().count()), (1, 0), "{info:?}");
    }
    guard.release().await.expect("it was held");
    // A try that had stayed in the queue would be granted now, and no caller would receive the grant.
    stage.assert_free("lock").await;
}

pub(super) async fn all_or_none(stage: Stage) {
    let (one, two) = (stage.client().await, stage.client().await);
    let set = two.multi(["c", "a", "b", "a"]).expect("good names");
    let guard = lock(&one, "b", X).await.expect("it is free");
    assert!(set.try_lock().await.expect("busy is no error").is_none(), "`b` is held");
    for name in ["a", "c"] {
        stage.assert_free(name).await;
    }
    guard.release().await.expect("it was held");
    let all = set.try_lock().await.expect("they are free").expect("they are free");
    all.ensure_held().expect("all are held");
    for name in ["a", "b", "c"] {
        stage.assert_busy(name).await;
    }
    all.release().await.expect("all were held");
    // Two claims for the same names in opposite order never deadlock.
    let there = one.multi(["a", "b", "c"]).expect("good names");
    let back = two.multi(["c", "b", "a"]).expect("good names");
    for _ in 0..10 {
        let both = async {
            tokio::join!(async { there.lock().await.expect("it comes").release().await }, async {
                back.lock().await.expect("it comes").release().await
            })
        };
        let (first, second) =
            tokio::time::timeout(SOON.min(LONG), both).await.expect("they wait for each other");
        first.and(second).expect("all were held");
    }
}
