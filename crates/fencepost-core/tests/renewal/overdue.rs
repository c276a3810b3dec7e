//! Claims that wait, and evict holders that are overdue.

use std::time::Duration;

use fencepost_core::{Client, Guard, Loss, Moment, Result};
use tokio::task::JoinHandle;

use crate::stage::Stage;
use crate::{TTL, secs};

/// A client whose program says how long it keeps a grant, and does not keep to it.
fn hung(stage: &Stage, max_hold: Duration) -> Client {
    stage.client(Client::builder().ttl(TTL).max_hold_hint(max_hold))
}

fn waits(locks: &Client) -> JoinHandle<Result<Guard>> {
    let mutex = locks.mutex("lock").unwrap();
    tokio::spawn(async move { mutex.lock().evict_overdue().await })
}

#[tokio::test]
async fn a_claim_that_waits_evicts_a_holder_once_it_is_overdue() {
    let stage = Stage::new();
    let (start, hung) = (stage.clock.now(), hung(&stage, secs(100)));
    let guard = hung.mutex("lock").unwrap().lock().await.unwrap();
    let waiting = waits(&stage.client(Client::builder()));
    stage.pass(secs(99)).await;
    guard.ensure_held().unwrap();
    assert_eq!(stage.looks(start), [1, 3, 7, 15, 31, 63]);
    stage.pass(secs(4)).await;
    assert_eq!(
        stage.looks(start)[6..],
        [102],
        "it looks when the time is over, and not before its next pause"
    );
    let error = guard.ensure_held().unwrap_err();
    assert_eq!(error.loss(), Some(Loss::Evicted));
    assert!(error.to_string().contains("overdue: held longer than its max_hold of 100s"), "{error}");
    assert!(!waiting.is_finished(), "the lease of the evicted has not ended");
    stage.pass(TTL).await;
    waiting.await.unwrap().unwrap().release().await.unwrap();
    drop(guard);
}

#[tokio::test]
async fn other_holders_stay_and_are_looked_at_seldom() {
    let stage = Stage::new();
    let (start, hung) = (stage.clock.now(), hung(&stage, secs(1_000)));
    let guards = [
        stage.client(Client::builder()).rwlock("lock").unwrap().read().await.unwrap(),
        hung.rwlock("lock").unwrap().read().await.unwrap(),
    ];
    let waiting = waits(&stage.client(Client::builder()));
    stage.pass(secs(130)).await;
    guards.iter().for_each(|guard| guard.ensure_held().unwrap());
    assert_eq!(stage.looks(start), [1, 3, 7, 15, 31, 63, 123]);
    drop(guards);
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_claim_that_is_granted_at_once_looks_at_nobody() {
    let stage = Stage::new();
    let locks = stage.client(Client::builder());
    let mutex = locks.mutex("lock").unwrap();
    mutex.lock().evict_overdue().await.unwrap().release().await.unwrap();
    mutex.try_lock().wait(secs(1)).evict_overdue().await.unwrap().unwrap().release().await.unwrap();
    let all = locks.multi(["lock", "other"]).unwrap();
    all.lock().evict_overdue().await.unwrap().release().await.unwrap();
    assert_eq!(stage.looks(Moment::ZERO), [0; 0]);
}

/// The holders are named in the error.
#[tokio::test]
async fn a_wait_that_is_over_has_looked_once() {
    let stage = Stage::new();
    let (start, locks) = (stage.clock.now(), stage.client(Client::builder()));
    let guard = locks.mutex("lock").unwrap().lock().await.unwrap();
    let mutex = locks.mutex("lock").unwrap();
    let waiting = tokio::spawn(async move { mutex.lock().wait(secs(10)).await });
    stage.pass(secs(11)).await;
    assert_eq!(waiting.await.unwrap().unwrap_err().holders().len(), 1);
    assert_eq!(stage.looks(start).len(), 1);
    drop(guard);
}

#[tokio::test]
async fn a_look_that_fails_does_not_end_the_wait() {
    let stage = Stage::new();
    let (start, hung) = (stage.clock.now(), hung(&stage, secs(5)));
    let guard = hung.mutex("lock").unwrap().lock().await.unwrap();
    stage.blind(true);
    let waiting = waits(&stage.client(Client::builder()));
    stage.pass(secs(10)).await;
    assert_eq!(stage.looks(start), [1, 3, 7]);
    guard.ensure_held().unwrap();
    stage.blind(false);
    stage.pass(secs(6)).await;
    assert_eq!(guard.lost().await, Loss::Evicted);
    drop(guard);
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn each_name_that_is_waited_for_is_looked_at() {
    let stage = Stage::new();
    let hung = hung(&stage, secs(5));
    let guard = hung.mutex("lock").unwrap().lock().await.unwrap();
    let all = stage.client(Client::builder()).multi(["a", "lock"]).unwrap();
    let waiting = tokio::spawn(async move { all.lock().evict_overdue().await });
    stage.pass(secs(8)).await;
    assert_eq!(guard.lost().await, Loss::Evicted);
    drop(guard);
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

/// The reader that upgrades is itself past the limit that its program has announced.
#[tokio::test]
async fn an_upgrade_evicts_the_other_readers_that_are_overdue() {
    let stage = Stage::new();
    let (hung, upgrades) = (hung(&stage, secs(5)), stage.client(Client::builder().max_hold_hint(secs(1))));
    let other = hung.rwlock("lock").unwrap().read().await.unwrap();
    let mut guard = upgrades.rwlock("lock").unwrap().read().await.unwrap();
    let token = guard.token();
    let upgrading = tokio::spawn(async move { (guard.upgrade().evict_overdue().await, guard) });
    stage.pass(secs(6)).await;
    other.ensure_held().unwrap();
    stage.pass(secs(2)).await;
    assert_eq!(other.ensure_held().unwrap_err().loss(), Some(Loss::Evicted));
    drop(other);
    let (upgraded, guard) = upgrading.await.unwrap();
    upgraded.unwrap();
    assert!(guard.token() > token);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn an_upgrade_evicts_nobody_unless_it_says_so() {
    let stage = Stage::new();
    let (start, hung) = (stage.clock.now(), hung(&stage, secs(5)));
    let other = hung.rwlock("lock").unwrap().read().await.unwrap();
    let mut guard = stage.client(Client::builder()).rwlock("lock").unwrap().read().await.unwrap();
    let upgrading = tokio::spawn(async move { guard.upgrade().wait(secs(60)).await.map(drop) });
    stage.pass(secs(50)).await;
    other.ensure_held().unwrap();
    assert_eq!(stage.looks(start), [0; 0]);
    drop(other);
    upgrading.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_request_that_does_not_wait_is_refused() {
    let stage = Stage::new();
    let locks = stage.client(Client::builder());
    let error = locks.mutex("lock").unwrap().try_lock().evict_overdue().await.unwrap_err();
    assert!(error.is_invalid() && error.to_string().contains("waiting time"), "{error}");
    let error = locks.multi(["a", "lock"]).unwrap().try_lock().evict_overdue().await.unwrap_err();
    assert!(error.is_invalid() && error.resource() == Some("a"), "{error}");
    let once = locks.once("lock", secs(60)).unwrap();
    let error = once.try_begin().evict_overdue().await.unwrap_err();
    assert!(error.is_invalid(), "{error}");
    assert_eq!(stage.looks(Moment::ZERO), [0; 0]);
}

/// Nothing is sent.
#[tokio::test]
async fn an_engine_that_cannot_evict_is_refused() {
    let stage = Stage::new();
    for (inspect, evict) in [(true, false), (false, true)] {
        stage.can(inspect, evict);
        let locks = stage.client(Client::builder());
        let error = locks.mutex("lock").unwrap().lock().evict_overdue().await.unwrap_err();
        assert!(error.is_unsupported() && error.to_string().contains("evict"), "{error}");
        let error = locks.multi(["a", "lock"]).unwrap().lock().evict_overdue().await.unwrap_err();
        assert!(error.is_unsupported() && error.resource() == Some("a"), "{error}");
        let mut guard = locks.rwlock("read").unwrap().read().await.unwrap();
        let error = guard.upgrade().evict_overdue().await.unwrap_err();
        assert!(error.is_unsupported() && error.resource() == Some("read"), "{error}");
        guard.release().await.unwrap();
    }
    assert_eq!(stage.attempted(Moment::ZERO).len(), 2, "only the readers");
}
