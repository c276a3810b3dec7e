//! Limits of permits that the engine stores.

use crate::conformance::Stage;
use crate::conformance::stage::{SOON, lock, try_lock};
use crate::history::Mode;
use fencepost_core::sync::Mutex;
use fencepost_core::{Client, Semaphore};
use std::sync::Arc;
use tokio::sync::watch;

const X: Mode = Mode::Exclusive;

/// `n` permits of a client that believes in `of`.
const fn p(n: u32, of: u32) -> Mode {
    Mode::Permits { n, of }
}

fn semaphore(client: &Client, permits: u32) -> Semaphore {
    client.semaphore("lock", permits).expect("the engine has permits")
}

/// Whether a claim is admitted now.
async fn is_admitted(client: &Client, mode: Mode) -> bool {
    match try_lock(client, "lock", mode).await.expect("busy is no error") {
        Some(guard) => {
            guard.release().await.expect("it was held");
            true
        }
        None => false,
    }
}

/// Other cases of the namespace's end look for what is left.
async fn reset(client: &Client) {
    semaphore(client, 1).reset_permits().await.expect("the engine stores limits");
    assert_eq!(semaphore(client, 1).stored_permits().await.expect("the engine can tell"), None);
}

pub(super) async fn a_stored_limit_counts_for_all_clients(stage: Stage) {
    let (one, two) = (stage.client().await, stage.client().await);
    assert_eq!(semaphore(&one, 4).stored_permits().await.expect("the engine can tell"), None);
    let error = semaphore(&one, 4).set_permits(0).await.expect_err("no permit at all");
    assert!(error.is_invalid(), "{error}");
    semaphore(&one, 4).set_permits(2).await.expect("the engine stores limits");
    for client in [&one, &two] {
        assert_eq!(semaphore(client, 9).stored_permits().await.expect("the engine can tell"), Some(2));
    }
    let first = lock(&one, "lock", p(1, 4)).await.expect("it is free");
    let second = lock(&two, "lock", p(1, 9)).await.expect("one is left");
    assert!(!is_admitted(&one, p(1, 4)).await && !is_admitted(&two, p(1, 9)).await, "three of two permits");
    first.release().await.expect("it was held");
    assert!(is_admitted(&stage.client().await, p(1, 4)).await, "one is left");
    // A client that believes in fewer permits is judged by the limit, too.
    assert!(is_admitted(&one, p(1, 1)).await, "one of two is left");
    assert!(!is_admitted(&one, X).await, "an exclusive claim beside permits");
    second.release().await.expect("it was held");
    // The limit outlives all claims, and counts for permits alone.
    let exclusive = lock(&two, "lock", X).await.expect("it is free");
    assert!(!is_admitted(&one, p(1, 4)).await, "permits beside an exclusive holder");
    exclusive.release().await.expect("it was held");
    let both = lock(&two, "lock", p(2, 4)).await.expect("it is free");
    assert!(!is_admitted(&one, p(1, 4)).await, "three of two permits");
    let other = one.semaphore("other", 4).expect("the engine has permits");
    assert_eq!(other.stored_permits().await.expect("the engine can tell"), None, "another name");
    reset(&one).await;
    assert!(is_admitted(&one, p(2, 4)).await, "its own number counts again");
    assert!(!is_admitted(&one, p(3, 4)).await, "five of four permits");
    both.release().await.expect("it was held");
    stage.assert_free("lock").await;
}

pub(super) async fn a_greater_limit_admits_waiters_at_once(stage: Stage) {
    let client = stage.client().await;
    let held = lock(&client, "lock", p(2, 2)).await.expect("it is free");
    let waiting = [stage.stand("lock", p(1, 2)).await, stage.stand("lock", p(2, 2)).await];
    let late = stage.stand("lock", p(1, 2)).await;
    semaphore(&client, 2).set_permits(5).await.expect("the engine stores limits");
    let mut before = held.token();
    let mut guards = vec![held];
    for waiting in waiting {
        let guard = waiting.granted().await;
        assert!(
            guard.token() > before || !stage.namespace().ordered_tokens(),
            "token {} after {before}",
            guard.token()
        );
        before = guard.token();
        guards.push(guard);
    }
    assert!(!late.is_answered(), "six of five permits");
    // Forgotten, the limit admits nobody. The holders stay.
    reset(&client).await;
    for guard in guards {
        guard.ensure_held().expect("it is held");
        assert!(!late.is_answered(), "more than two permits");
        guard.release().await.expect("it was held");
    }
    late.granted().await.release().await.expect("it was held");
    stage.assert_free("lock").await;
}

pub(super) async fn a_smaller_limit_takes_no_permits_away(stage: Stage) {
    let (client, other) = (stage.client().await, stage.client().await);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(lock(&client, "lock", p(1, 3)).await.expect("it is free"));
    }
    semaphore(&other, 3).set_permits(1).await.expect("the engine stores limits");
    let waiting = stage.stand("lock", p(1, 3)).await;
    for guard in held {
        guard.ensure_held().expect("it keeps its permit");
        assert!(!waiting.is_answered() && !is_admitted(&other, p(1, 3)).await, "the sum is above the limit");
        guard.release().await.expect("it was held");
    }
    let guard = waiting.granted().await;
    assert!(!is_admitted(&other, p(1, 3)).await, "two of one permit");
    guard.release().await.expect("it was held");
    reset(&client).await;
    stage.assert_free("lock").await;
}

pub(super) async fn a_claim_over_the_limit_is_refused_and_blocks_nobody(stage: Stage) {
    let client = stage.client().await;
    let held = lock(&client, "lock", p(1, 4)).await.expect("it is free");
    let large = stage.stand("lock", p(4, 4)).await;
    let small = stage.stand("lock", p(1, 4)).await;
    assert!(!large.is_answered() && !small.is_answered(), "they wait in the queue");
    semaphore(&client, 4).set_permits(2).await.expect("the engine stores limits");
    let guard = small.granted().await;
    let refused = tokio::time::timeout(SOON, large.answer()).await.expect("it is told").map(drop);
    let error = refused.expect_err("it can never be granted");
    assert!(error.is_invalid() && error.to_string().contains("limit of 2"), "{error}");
    for error in [
        lock(&client, "lock", p(3, 4)).await.map(drop).expect_err("it can never be granted"),
        try_lock(&client, "lock", p(3, 4)).await.map(drop).expect_err("it can never be granted"),
    ] {
        assert!(error.is_invalid() && error.to_string().contains("limit of 2"), "{error}");
    }
    held.release().await.expect("it was held");
    guard.release().await.expect("it was held");
    // Also where the lock is free.
    let error = try_lock(&client, "lock", p(3, 4)).await.map(drop).expect_err("it can never be granted");
    assert!(error.is_invalid(), "{error}");
    reset(&client).await;
    assert!(is_admitted(&client, p(4, 4)).await, "its own number counts again");
    stage.assert_free("lock").await;
}

/// The limit and the permits that are held for certain, while limits change.
struct Load {
    /// Grows before and after each change.
    epoch: u32,
    /// `None`: it is being changed.
    limit: Option<u32>,
    held: u32,
}

pub(super) async fn limits_change_under_load(stage: Stage) {
    const LIMITS: [u32; 8] = [2, 5, 3, 2, 4, 2, 5, 2];
    let clients = [stage.client().await, stage.client().await];
    let load = Arc::new(Mutex::new(Load { epoch: 0, limit: None, held: 0 }));
    let (done, mut grants) = watch::channel(0_u32);
    let mut workers = Vec::new();
    for task in 0..8 {
        let (client, load, done) = (clients[task % 2].clone(), Arc::clone(&load), done.clone());
        workers.push(tokio::spawn(async move {
            for round in 0..15 {
                let n = if (task + round) % 3 == 0 { 2 } else { 1 };
                let began = load.lock().epoch;
                let guard = lock(&client, "lock", p(n, 5)).await.expect("each limit leaves room for it");
                {
                    let mut load = load.lock();
                    load.held += n;
                    // All that is held now is held together, and the last of it was granted under this limit.
                    let limit = load.limit.filter(|_| load.epoch == began);
                    assert!(
                        limit.is_none_or(|limit| load.held <= limit),
                        "{} of {limit:?} permits",
                        load.held
                    );
                }
                done.send_modify(|grants| *grants += 1);
                // Others would be granted meanwhile, if the engine let them.
                for _ in 0..3 {
                    semaphore(&client, 5).stored_permits().await.expect("the engine can tell");
                    tokio::task::yield_now().await;
                }
                load.lock().held -= n;
                guard.release().await.expect("it was held");
            }
        }));
    }
    for (number, limit) in (0..).zip(LIMITS) {
        grants.wait_for(|grants| *grants >= 12 * number).await.expect("the workers go on");
        {
            let mut load = load.lock();
            (load.epoch, load.limit) = (2 * number + 1, None);
        }
        semaphore(&clients[0], 5).set_permits(limit).await.expect("the engine stores limits");
        let mut load = load.lock();
        (load.epoch, load.limit) = (2 * number + 2, Some(limit));
    }
    for worker in workers {
        worker.await.expect("no more than the limit was granted");
    }
    reset(&clients[1]).await;
    stage.assert_free("lock").await;
}

pub(super) async fn stored_limits_are_refused_where_the_engine_has_none(stage: Stage) {
    let client = stage.client().await;
    let can = client.capabilities().clone();
    assert!(can.permits || !can.stored_permits, "a limit of nothing");
    if !can.permits {
        return;
    }
    let semaphore = semaphore(&client, 2);
    let answers = [
        semaphore.set_permits(1).await,
        semaphore.stored_permits().await.map(drop),
        semaphore.reset_permits().await,
    ];
    for answer in answers {
        match answer {
            Ok(()) => assert!(can.stored_permits, "the engine says that it cannot"),
            Err(error) => assert!(!can.stored_permits && error.is_unsupported(), "{error}"),
        }
    }
}
