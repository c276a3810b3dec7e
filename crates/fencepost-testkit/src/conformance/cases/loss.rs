//! Holders that lose their lock.

use crate::conformance::Stage;
use crate::conformance::stage::{LONG, RENEWED, SHORT, SOON, evict, lock, lock_fixed};
use crate::forked::in_child;
use crate::history::Mode;
use crate::wait::Stalls;
use fencepost_core::{Client, Eviction, Loss, Result};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

const X: Mode = Mode::Exclusive;

pub(super) async fn lost_when_renewals_fail(stage: Stage) {
    let ttl = SHORT.max(stage.client().await.capabilities().min_ttl);
    let deaf = stage.deaf(ttl).await;
    let start = Instant::now();
    let guard = lock(&deaf, "lock", X).await.expect("it is free");
    let waiting = stage.stand("lock", X).await;
    let lost = tokio::time::timeout(SOON + ttl, guard.lost()).await;
    assert_eq!(lost.expect("a holder whose renewals fail is told that it is lost"), Loss::Expired);
    let error = guard.ensure_held().expect_err("it is lost");
    assert!(error.is_lost() && error.loss() == Some(Loss::Expired), "{error}");
    let next = waiting.granted().await;
    // Its validity ended before any other grant began.
    assert!(start.elapsed() >= ttl, "the next one was granted within the lease");
    assert!(guard.run(std::future::pending::<()>()).await.expect_err("it is lost").is_lost());
    next.release().await.expect("it was held");
}

pub(super) async fn release_after_loss(stage: Stage) {
    let client = stage.client().await;
    let lease = SHORT.max(client.capabilities().min_ttl);
    let mutex = client.mutex("lock").expect("a good name");
    let guard = lock_fixed(&mutex, lease).await.expect("it is free");
    let next = stage.stand("lock", X).await.granted().await;
    let error = guard.release().await.expect_err("it was lost");
    assert!(error.is_lost(), "{error}");
    next.ensure_held().expect("a late release takes nothing from its successor");
    stage.assert_busy("lock").await;
    next.release().await.expect("it was held");
}

pub(super) async fn a_release_that_comes_too_late_says_so(stage: Stage) {
    let client = stage.client().await;
    let lease = SHORT.max(client.capabilities().min_ttl);
    let mutex = client.mutex("lock").expect("a good name");
    // Its lease has expired, and no claim has requested the lock since.
    let guard = lock_fixed(&mutex, lease).await.expect("it is free");
    guard.lost().await;
    let error = guard.release().await.expect_err("its lease has expired");
    assert!(error.is_lost() && error.loss() == Some(Loss::Expired), "{error}");
    stage.assert_free("lock").await;
    // Its renewals fail.
    let deaf = stage.deaf(lease).await;
    let guard = lock(&deaf, "lock", X).await.expect("it is free");
    guard.lost().await;
    let error = guard.release().await.expect_err("its renewals failed");
    assert!(error.is_lost() && error.loss() == Some(Loss::Expired), "{error}");
    stage.assert_free("lock").await;
    if !client.capabilities().evict {
        return;
    }
    for now in [false, true] {
        let holder = stage.client_of(RENEWED).await;
        let guard = lock(&holder, "lock", X).await.expect("it is free");
        let how = Eviction::new(now);
        evict(&client, "lock", guard.token(), &how).await.expect("it is held");
        let why = tokio::time::timeout(LONG, guard.lost()).await.expect("the holder is told");
        let error = guard.release().await.expect_err("it was evicted");
        assert!(error.is_lost() && error.loss() == Some(why), "{error}");
        assert!(now || why == Loss::Evicted, "{why}");
        // The release has removed the entry: it does not wait for the lease.
        stage.assert_free("lock").await;
    }
}

pub(super) async fn a_forked_child_releases_nothing(stage: Stage) {
    let ttl = Duration::from_secs(2).max(stage.client().await.capabilities().min_ttl);
    let client = stage.client_of(ttl).await;
    let mut stalls = Stalls::default();
    while stalls.spoilt(forks(&stage, &client).await) {}
    stage.assert_free("lock").await;
}

async fn forks(stage: &Stage, client: &Client) -> Result<()> {
    let mut guard = Some(lock(client, "lock", X).await?);
    in_child(|| {
        drop(guard.take());
        let mutex = client.mutex("another").expect("a good name");
        let mut asked = mutex.try_lock().into_future();
        let answer = Pin::new(&mut asked).poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(answer, Poll::Ready(Err(error)) if error.is_closed()), "a child has no client");
    });
    let guard = guard.expect("the child has another one");
    let renewed = guard.valid_until();
    let is_held = async || {
        let granted = stage.is_granted("lock").await;
        let held = guard.ensure_held();
        assert!(
            !granted || held.as_ref().is_err_and(|error| error.loss() == Some(Loss::Expired)),
            "{held:?}"
        );
        held
    };
    is_held().await?;
    let was_renewed = || guard.valid_until() > renewed || guard.ensure_held().is_err();
    stage.eventually("it is renewed", || async { was_renewed() }).await;
    is_held().await?;
    guard.release().await
}

pub(super) async fn crash_frees(stage: Stage) {
    let ttl = Duration::from_secs(3).max(stage.client().await.capabilities().min_ttl);
    for _ in 0..2 {
        let (mut other, waiting) = loop {
            let mut other = stage.elsewhere("lock", ttl).expect("the engine outlives a process");
            let granted = stage.is_granted("lock").await;
            let waiting = stage.stand("lock", X).await;
            if !granted && !waiting.is_answered() {
                break (other, waiting);
            }
            // A process that stalls for longer than its lease has lost it.
            assert!(other.has_lost(), "another process holds it");
            waiting.give_up().await;
        };
        let start = Instant::now();
        other.kill();
        let guard = tokio::time::timeout(stage.crash_bound(ttl) + SOON, waiting.granted_at_last()).await;
        let guard = guard.expect("a killed holder frees its lock");
        assert!(start.elapsed() < stage.crash_bound(ttl) + SOON);
        guard.release().await.expect("it was held");
    }
    stage.assert_free("lock").await;
}

pub(super) async fn stop_and_continue(stage: Stage) {
    let ttl = Duration::from_secs(1).max(stage.client().await.capabilities().min_ttl);
    let mut other = stage.elsewhere("lock", ttl).expect("the engine outlives a process");
    let waiting = stage.stand("lock", X).await;
    other.stop();
    // Its renewals stop. Its lease expires, or its session where the holder keeps leases itself.
    let bound = stage.crash_bound(ttl) + SOON;
    let guard = tokio::time::timeout(bound, waiting.granted_at_last()).await.expect("its lease ends");
    other.cont();
    // After it runs again it must neither renew nor release a lock that it has lost.
    let until = Instant::now() + ttl + ttl / 2;
    while Instant::now() < until {
        guard.ensure_held().expect("the one that was stopped took it back");
        stage.assert_busy("lock").await;
        tokio::time::sleep(ttl / 10).await;
    }
    guard.release().await.expect("it was held");
    other.kill();
    assert!(LONG > ttl);
    stage.assert_free("lock").await;
}

pub(super) async fn engine_out_of_reach(stage: Stage) {
    let mut faults = stage.faults().expect("the engine has hooks");
    let ttl = Duration::from_secs(1).max(stage.client().await.capabilities().min_ttl);
    let client = stage.hasty(ttl).await;
    let guard = lock(&client, "lock", X).await.expect("it is free");
    let token = guard.token();
    let pool = client.semaphore("pool", 1).ok();
    let permit = match &pool {
        Some(pool) if client.capabilities().permits => Some(pool.acquire().await.expect("it is free")),
        _ => None,
    };
    faults.cut().expect("the network can be cut");
    // A timeout holds for every engine.
    let wait = Duration::from_millis(300);
    let start = Instant::now();
    let mutex = client.mutex("another").expect("a good name");
    let error = mutex.lock().wait(wait).await.expect_err("the engine cannot be reached");
    assert!(error.is_unreachable(), "busy is what the engine says, and it said nothing: {error}");
    assert!(start.elapsed() >= wait && start.elapsed() < wait + SOON, "it waited {:?}", start.elapsed());
    let start = Instant::now();
    let error = mutex.lock().wait(Duration::ZERO).await.expect_err("the engine cannot be reached");
    assert!(error.is_unreachable() && start.elapsed() < SOON, "after {:?}: {error}", start.elapsed());
    let error = mutex.try_lock().wait(Duration::ZERO).await.expect_err("the engine cannot be reached");
    assert!(error.is_unreachable() && start.elapsed() < 2 * SOON, "after {:?}: {error}", start.elapsed());
    let error = mutex.try_lock().await.expect_err("the engine cannot be reached");
    assert!(error.is_unreachable(), "{error}");
    // The holder detects its loss by its own clock.
    for guard in [Some(&guard), permit.as_ref()].into_iter().flatten() {
        tokio::time::timeout(ttl + SOON, guard.lost()).await.expect("the holder is told");
        assert!(guard.ensure_held().expect_err("it is lost").is_lost());
    }
    faults.mend().expect("the network can be mended");
    for name in ["lock", "another"] {
        stage.assert_free(name).await;
    }
    // The lost guards are still there, and keep their own client from nothing.
    let mutex = client.mutex("lock").expect("a good name");
    let next = mutex.lock().ttl(LONG).await.expect("it is free");
    assert!(next.token() > token || token == fencepost_core::Token::default());
    next.release().await.expect("it was held");
    let tried = mutex.try_lock().wait(SOON).ttl(LONG).await.expect("busy is no error").expect("it is free");
    tried.release().await.expect("it was held");
    if let (Some(_lost), Some(pool)) = (permit, &pool) {
        let next = tokio::time::timeout(ttl + SOON, pool.acquire().ttl(LONG).into_future()).await;
        next.expect("it is free").expect("it is free").release().await.expect("it was held");
    }
    drop(guard);
}

pub(super) async fn who_waits_hears_of_an_outage(stage: Stage) {
    let mut faults = stage.faults().expect("the engine has hooks");
    let ttl = Duration::from_secs(2).max(stage.client().await.capabilities().min_ttl);
    // The holder keeps its lock if the machine stalls.
    let (holding, impatient) = (stage.client().await, stage.impatient(ttl, Duration::from_secs(1)).await);
    let guard = lock(&holding, "lock", X).await.expect("it is free");
    let mutex = impatient.mutex("lock").expect("a good name");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    stage
        .eventually("it waits in the queue", || async {
            let info = holding.inspect("lock").await;
            info.is_ok_and(|info| info.waiters().next().is_some())
        })
        .await;
    faults.cut().expect("the network can be cut");
    // It has no timeout, and only its own renewals ask the engine. Where a session keeps its place, the
    // session expires first.
    let answer = tokio::time::timeout(LONG + SOON, waiting).await.expect("it is told").expect("no panic");
    let error = answer.expect_err("the engine cannot be reached");
    assert!(error.is_unreachable(), "{error}");
    faults.mend().expect("the network can be mended");
    drop(guard);
    stage.assert_free("lock").await;
}
