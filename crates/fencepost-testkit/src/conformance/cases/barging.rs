//! Unfair requests, which pass claims that wait, and clients that require fairness.

use super::upgrade::Upgrading;
use crate::conformance::Stage;
use crate::conformance::stage::{LONG, SOON, lock, try_lock};
use crate::history::Mode;
use fencepost_core::{Client, Kind};

const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;

pub(super) async fn an_unfair_reader_passes_a_writer(stage: Stage) {
    let client = stage.client().await;
    let first = lock(&client, "lock", S).await.expect("it is free");
    let writer = stage.stand("lock", X).await;
    if client.capabilities().fair {
        assert!(try_lock(&client, "lock", S).await.expect("busy is no error").is_none(), "it is fair");
    }
    let rwlock = stage.client().await.rwlock("lock").expect("a good name");
    let tried = rwlock.try_read().unfair().await.expect("busy is no error").expect("readers fit");
    assert!(tried.token() > first.token() || !stage.namespace().ordered_tokens());
    // One that may wait, and one in a set.
    let waited = rwlock.read().unfair().wait(SOON).await.expect("readers fit beside readers");
    let set = client.multi(["lock", "other"]).expect("good names").kind(Kind::Read);
    let set = set.lock().unfair().wait(SOON).await.expect("readers fit beside readers");
    assert!(!writer.is_answered(), "a writer beside readers");
    assert!(
        rwlock.try_write().unfair().await.expect("busy is no error").is_none(),
        "a writer beside readers"
    );
    first.release().await.expect("it was held");
    for guard in [tried, waited] {
        stage.assert_held(&guard).await;
        guard.ensure_held().expect("it holds beside others");
        assert!(!writer.is_answered(), "a writer beside a reader");
        guard.release().await.expect("it was held");
    }
    set.release().await.expect("it was held");
    let writer = writer.granted().await;
    assert!(
        rwlock.try_read().unfair().await.expect("busy is no error").is_none(),
        "a reader beside a writer"
    );
    writer.release().await.expect("it was held");
    stage.assert_free("lock").await;
}

pub(super) async fn an_unfair_claim_for_few_permits_passes_one_for_many(stage: Stage) {
    let p = |n| Mode::Permits { n, of: 10 };
    let client = stage.client().await;
    let held = lock(&client, "lock", p(7)).await.expect("it is free");
    let large = stage.stand("lock", p(10)).await;
    let semaphore = stage.client().await.semaphore("lock", 10).expect("the engine has permits");
    let two = semaphore.acquire_many(2).unfair().wait(SOON).await.expect("9 of 10 are held then");
    let more = semaphore.try_acquire_many(2).unfair().await.expect("busy is no error");
    assert!(more.is_none(), "11 of 10 permits");
    let one = semaphore.try_acquire().unfair().await.expect("busy is no error").expect("one is left");
    assert!(semaphore.try_acquire().unfair().await.expect("busy is no error").is_none(), "11 of 10 permits");
    for guard in [held, two, one] {
        assert!(!large.is_answered(), "more than 10 permits");
        guard.release().await.expect("it was held");
    }
    large.granted().await.release().await.expect("it was held");
    stage.assert_free("lock").await;
}

pub(super) async fn an_unfair_claim_that_does_not_fit_waits_in_order(stage: Stage) {
    let client = stage.client().await;
    let held = lock(&client, "lock", X).await.expect("it is free");
    let line = [
        stage.stand("lock", X).await,
        stage.stand_unfair("lock", X).await,
        stage.stand("lock", X).await,
        stage.stand_unfair("lock", X).await,
    ];
    let mut before = held.token();
    held.release().await.expect("it was held");
    let mut line = line.into_iter();
    while let Some(waiting) = line.next() {
        let guard = waiting.granted().await;
        assert!(line.as_slice().iter().all(|waiting| !waiting.is_answered()), "two hold it");
        assert!(guard.token() >= before, "token {} was given before {before}", guard.token());
        before = guard.token();
        guard.release().await.expect("it was held");
    }
    stage.assert_free("lock").await;
}

pub(super) async fn no_unfair_claim_passes_an_upgrade(stage: Stage) {
    let client = stage.client().await;
    let first = lock(&client, "lock", S).await.expect("it is free");
    let second = lock(&stage.client().await, "lock", S).await.expect("readers fit beside readers");
    let upgrading = Upgrading::begin(&stage, first).await;
    let rwlock = client.rwlock("lock").expect("a good name");
    assert!(rwlock.try_read().unfair().await.expect("busy is no error").is_none(), "it passed the upgrade");
    let reader = stage.stand_unfair("lock", S).await;
    assert!(!reader.is_answered(), "it passed the upgrade");
    second.release().await.expect("it was held");
    let guard = upgrading.upgraded().await;
    assert!(!reader.is_answered(), "a reader beside a writer");
    assert!(
        rwlock.try_read().unfair().await.expect("busy is no error").is_none(),
        "a reader beside a writer"
    );
    guard.release().await.expect("it was held");
    reader.granted().await.release().await.expect("it was held");
    stage.assert_free("lock").await;
}

pub(super) async fn unfair_claims_are_refused_where_the_engine_has_none(stage: Stage) {
    let (client, claims) = stage.counted().await;
    let (mutex, set) = (client.mutex("lock"), client.multi(["lock", "other"]));
    let (mutex, set) = (mutex.expect("a good name"), set.expect("good names"));
    if client.capabilities().barging {
        mutex.lock().unfair().await.expect("it is free").release().await.expect("it was held");
        set.lock().unfair().await.expect("they are free").release().await.expect("they were held");
        return;
    }
    for error in [
        mutex.lock().unfair().await.map(drop).expect_err("the engine cannot"),
        mutex.try_lock().unfair().await.map(drop).expect_err("the engine cannot"),
        set.lock().unfair().await.map(drop).expect_err("the engine cannot"),
        set.try_lock().unfair().await.map(drop).expect_err("the engine cannot"),
    ] {
        assert!(error.is_unsupported(), "{error}");
    }
    assert_eq!(claims.count(), 0, "a request was sent");
}

pub(super) async fn fairness_can_be_required(stage: Stage) {
    let can = stage.client().await.capabilities().clone();
    let fair = stage.refusable(Client::builder().ttl(LONG).require_fair()).await;
    let fair = match fair {
        Ok(client) => client,
        Err(error) => {
            assert!(error.is_unsupported() && !can.fair, "{error}");
            return;
        }
    };
    assert!(can.fair, "the engine is not fair");
    let guard = lock(&fair, "lock", X).await.expect("it is free");
    let error = fair.mutex("lock").expect("a good name").try_lock().unfair().await.expect_err("it is fair");
    assert!(error.is_invalid(), "{error}");
    guard.release().await.expect("it was held");
    if can.permits {
        let error = fair.semaphore("permits", 2).err();
        assert_eq!(error.as_ref().map(|error| error.is_unsupported()), (!can.fair_permits).then_some(true));
    }
}
