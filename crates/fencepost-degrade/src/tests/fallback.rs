//! The policy with a second engine.

use std::sync::Arc;
use std::time::Duration;

use super::{Degrade, INTERVAL, LEASE, MS};
use crate::DegradeLayer;
use fencepost_core::testing::{self, TestClock, TestEngine};
use fencepost_core::{Backend, Client, Degraded, ErrorKind, Memory, Result, Runtime};

/// The primary, the fallback, and the runtime of clients of both.
struct Pair {
    clock: TestClock,
    primary: TestEngine,
    fallback: TestEngine,
    runtime: Runtime,
}

impl Pair {
    /// `skew`: by how many microseconds the clock of the fallback is ahead.
    fn new(skew: i64) -> Pair {
        let (client, clock, _) = testing::client();
        let runtime = client.runtime().clone();
        let engine = |offset| {
            let memory = Memory::with_clock_tokens(offset);
            TestEngine::over(memory, runtime.clock().clone(), Arc::clone(runtime.spawner()))
        };
        Pair { clock, primary: engine(0), fallback: engine(skew), runtime }
    }

    fn client(&self) -> Client {
        self.client_with(LEASE, INTERVAL)
    }

    fn client_with(&self, lease: Duration, interval: Duration) -> Client {
        let degrade = Degrade::fallback("memory:").max_ttl(lease).probe_interval(interval);
        // The builder adds the time for probes only for a layer that it makes.
        let builder =
            Client::builder().ttl(lease).runtime(self.runtime.clone()).attempt_timeout(3 * interval);
        let (primary, fallback) = (self.primary.backend(), self.fallback.backend());
        let open = |runtime: &Runtime| -> Result<Arc<dyn Backend>> {
            Ok(Arc::new(DegradeLayer::with_fallback(primary, fallback, &degrade, runtime)?))
        };
        builder.open(open).unwrap()
    }

    /// Returns whether another program finds the lock free at each engine.
    async fn free(&self, name: &str) -> [bool; 2] {
        let mut free = [false; 2];
        for (engine, free) in [&self.primary, &self.fallback].into_iter().zip(&mut free) {
            let guard = engine.other().mutex(name).unwrap().try_lock().await.unwrap();
            *free = guard.is_some();
            drop(guard);
        }
        free
    }

    /// Until the primary alone decides.
    async fn settle(&self) {
        self.clock.advance(LEASE + 3 * INTERVAL).await;
    }
}

#[tokio::test]
async fn both_engines_grant_after_the_start_and_then_the_primary_alone() {
    let pair = Pair::new(0);
    let locks = pair.client();
    let (a, b) = (locks.mutex("a").unwrap(), locks.mutex("b").unwrap());
    let guard =
        tokio::join!(a.try_lock().into_future(), pair.clock.advance(2 * INTERVAL)).0.unwrap().unwrap();
    assert_eq!((pair.free("a").await, guard.degraded()), ([false, false], None));
    pair.fallback.fail_all(ErrorKind::Unreachable);
    let failed = tokio::join!(b.try_lock().into_future(), pair.clock.advance(INTERVAL)).0;
    assert!(failed.unwrap_err().is_unreachable(), "it needs both");
    pair.fallback.heal_all();
    pair.settle().await;
    pair.fallback.fail_all(ErrorKind::Unreachable);
    pair.clock.advance(3 * LEASE).await;
    guard.ensure_held().expect("it rests on the primary alone now");
    assert_eq!(pair.free("a").await, [false, true]);
    let other = b.try_lock().await.unwrap().unwrap();
    assert_eq!(pair.free("b").await, [false, true]);
    other.release().await.unwrap();
    guard.release().await.unwrap();
}

/// Until then the fallback has to renew, and has done so shortly before.
#[tokio::test]
async fn a_fallback_that_hangs_costs_no_more_than_one_that_fails() {
    for early in 0..=16 {
        let mut outcomes = Vec::new();
        for hangs in [false, true] {
            let pair = Pair::new(0);
            let locks = pair.client();
            let (a, b) = (locks.mutex("a").unwrap(), locks.mutex("b").unwrap());
            let guard = tokio::join!(a.lock().into_future(), pair.clock.advance(2 * INTERVAL)).0.unwrap();
            pair.clock.advance(LEASE - early * INTERVAL / 2).await;
            match hangs {
                true => pair.fallback.slow_all(Duration::MAX),
                false => pair.fallback.fail_all(ErrorKind::Unreachable),
            }
            // It waits for the fallback, and has patience for longer than the rest of the time.
            let waits = tokio::spawn(async move { b.lock().await.map(drop) });
            pair.clock.advance(LEASE).await;
            let granted = waits.is_finished();
            pair.clock.advance(3 * LEASE).await;
            outcomes.push((guard.ensure_held().is_ok(), granted));
        }
        assert_eq!(outcomes[0], outcomes[1], "{early}");
        assert!(outcomes[0].0 || early > 10, "{early}");
    }
}

/// It waits for another holder at the fallback, which then is no more needed.
#[tokio::test]
async fn a_claim_that_waits_goes_on_when_the_primary_alone_decides() {
    for hangs in [false, true] {
        let pair = Pair::new(0);
        let (holder, waiter) = (pair.client().mutex("a").unwrap(), pair.client().mutex("a").unwrap());
        let guard = tokio::join!(holder.lock().into_future(), pair.clock.advance(2 * INTERVAL)).0.unwrap();
        let waits = tokio::spawn(async move { waiter.lock().await });
        pair.clock.advance(LEASE - 2 * INTERVAL).await;
        match hangs {
            true => pair.fallback.slow_all(Duration::MAX),
            false => pair.fallback.fail_all(ErrorKind::Unreachable),
        }
        pair.clock.advance(2 * LEASE).await;
        guard.ensure_held().unwrap();
        assert!(!waits.is_finished(), "{hangs}");
        guard.release().await.unwrap();
        pair.clock.advance(INTERVAL).await;
        assert!(waits.is_finished(), "{hangs}");
        waits.await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn the_fallback_grants_after_old_leases_and_its_grant_moves_to_the_primary() {
    let pair = Pair::new(0);
    let locks = pair.client();
    pair.settle().await;
    let mutex = locks.mutex("a").unwrap();
    let before = mutex.try_lock().await.unwrap().unwrap();
    pair.primary.fail_all(ErrorKind::Unreachable);
    let away = pair.clock.now();
    pair.clock.advance(2 * INTERVAL).await;
    let error = tokio::join!(mutex.try_lock().into_future(), pair.clock.advance(INTERVAL)).0.unwrap_err();
    assert!(error.is_unreachable() && error.to_string().contains("old leases"), "{error}");
    let waits = tokio::spawn(async move { mutex.lock().await });
    pair.clock.advance(LEASE - 3 * INTERVAL).await;
    assert!(before.ensure_held().is_err() && !waits.is_finished());
    pair.clock.advance(3 * INTERVAL).await;
    let guard = waits.await.unwrap().unwrap();
    assert!(pair.clock.now().since(away) > LEASE + INTERVAL);
    assert_eq!((guard.degraded(), guard.token() > before.token()), (Some(Degraded::Fallback), true));
    pair.clock.advance(3 * LEASE).await;
    guard.ensure_held().expect("the fallback renews it");
    pair.primary.heal_all();
    pair.clock.advance(LEASE / 2).await;
    assert_eq!((guard.degraded(), pair.free("a").await), (None, [false, false]));
    pair.clock.advance(3 * LEASE).await;
    assert_eq!(pair.free("a").await, [false, true]);
    let token = guard.token();
    guard.release().await.unwrap();
    assert_eq!(pair.free("a").await, [true, true]);
    let next = locks.mutex("a").unwrap().try_lock().await.unwrap().unwrap();
    assert!(next.token() > token);
}

#[tokio::test]
async fn a_wait_that_ends_before_the_fallback_grants_is_told_when_it_will() {
    let pair = Pair::new(0);
    let mutex = pair.client().mutex("a").unwrap();
    pair.settle().await;
    pair.primary.fail_all(ErrorKind::Unreachable);
    pair.clock.advance(2 * INTERVAL).await;
    let waits = mutex.lock().wait(3 * INTERVAL).into_future();
    let error = tokio::join!(waits, pair.clock.advance(3 * INTERVAL)).0.unwrap_err();
    assert!(error.is_unreachable() && error.to_string().contains("old leases"), "{error}");
}

#[tokio::test]
async fn a_grant_that_cannot_move_ends_before_the_primary_alone_decides() {
    let pair = Pair::new(0);
    let locks = pair.client();
    pair.settle().await;
    pair.primary.fail_all(ErrorKind::Unreachable);
    pair.settle().await;
    let guard = locks.mutex("a").unwrap().try_lock().await.unwrap().unwrap();
    assert_eq!(guard.degraded(), Some(Degraded::Fallback));
    let back = pair.clock.now();
    pair.primary.heal_all();
    // Another program, which knows no fallback.
    let other = pair.primary.busy("a").await.unwrap();
    pair.clock.advance(LEASE / 2).await;
    assert!(guard.valid_until().since(back) <= LEASE + INTERVAL);
    pair.clock.advance(LEASE).await;
    assert!(guard.ensure_held().is_err());
    other.release().await.unwrap();
}

#[tokio::test]
async fn clocks_that_are_apart_delay_a_grant_or_refuse_it() {
    for (skew, fits) in
        [(0, true), (500_000, true), (-500_000, true), (1_500_000, false), (-12_000_000, false)]
    {
        let pair = Pair::new(skew);
        let locks = pair.client();
        let mutex = locks.mutex("a").unwrap();
        let lock = tokio::join!(mutex.lock().into_future(), pair.clock.advance(3 * INTERVAL)).0;
        match lock {
            Ok(guard) => assert!(fits && guard.token().get() > 1_700_000_000_000_000, "{skew}"),
            Err(error) => assert!(!fits && error.is_configuration(), "{skew}: {error}"),
        }
        pair.clock.advance(2 * LEASE).await;
        assert_eq!(pair.free("a").await, [true, true], "{skew}: nothing is left");
    }
}

/// The switch back takes as long as the longest lease, so the clocks may be no more apart than that.
#[tokio::test]
async fn clocks_that_are_apart_by_a_short_lease_are_refused() {
    let (lease, interval) = (500 * MS, 100 * MS);
    let pair = Pair::new(900_000);
    let mutex = pair.client_with(lease, interval).mutex("a").unwrap();
    let lock = tokio::join!(mutex.lock().into_future(), pair.clock.advance(2 * lease)).0;
    assert!(lock.unwrap_err().is_configuration());
    // So nobody works with these tokens: that of the primary, which grants alone after an outage, is the smaller one.
    pair.primary.fail_all(ErrorKind::Unreachable);
    pair.clock.advance(3 * lease).await;
    let by_fallback = mutex.try_lock().await.unwrap().unwrap();
    let token = by_fallback.token();
    by_fallback.release().await.unwrap();
    pair.primary.heal_all();
    pair.clock.advance(lease + 3 * interval).await;
    assert!(mutex.try_lock().await.unwrap().unwrap().token() < token);
}

#[tokio::test]
async fn an_engine_without_clock_tokens_is_refused() {
    let pair = Pair::new(0);
    let degrade = Degrade::fallback("memory:");
    for (primary, fallback) in
        [(pair.primary.backend(), Memory::new() as _), (Memory::new() as _, pair.fallback.backend())]
    {
        let layer = DegradeLayer::with_fallback(primary, fallback, &degrade, &pair.runtime);
        let error = layer.err().expect("it is refused");
        assert!(error.is_unsupported() && error.to_string().contains("clock"), "{error}");
    }
    let wrong = Client::builder().runtime(pair.runtime.clone()).layer(degrade);
    assert!(wrong.open(|_| Ok(pair.primary.backend())).unwrap_err().is_invalid(), "it has no fallback");
    let zero = Degrade::fallback("memory:").max_ttl(Duration::from_millis(1)).probe_interval(10 * MS);
    let layer =
        DegradeLayer::with_fallback(pair.primary.backend(), pair.fallback.backend(), &zero, &pair.runtime);
    assert!(layer.is_err());
}

#[tokio::test]
async fn operators_see_each_claim_once() {
    let pair = Pair::new(0);
    let locks = pair.client();
    let mutex = locks.mutex("a").unwrap();
    let guard = tokio::join!(mutex.lock().into_future(), pair.clock.advance(2 * INTERVAL)).0.unwrap();
    let other = pair.fallback.busy("b").await.unwrap();
    assert_eq!(locks.inspect("a").await.unwrap().claims.len(), 1);
    assert_eq!(locks.inspect("b").await.unwrap().claims.len(), 1);
    let listing = locks.list("", &fencepost_core::Page::of(10)).await.unwrap();
    let names: Vec<_> = listing.resources.iter().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let one = locks.list("", &fencepost_core::Page::of(1)).await.unwrap();
    assert_eq!((one.resources.len(), one.next.map(|name| name.to_string())), (1, Some("a".to_owned())));
    locks.evict("a", guard.token(), &fencepost_core::Eviction::new(false)).await.unwrap();
    assert!(guard.ensure_held().is_err());
    other.release().await.unwrap();
}

/// The guard's token is the primary's. The claim has another one at the fallback.
#[tokio::test]
async fn an_eviction_ends_the_claim_at_both_engines_or_fails() {
    let how = fencepost_core::Eviction::new(true);
    for outage in [false, true] {
        let pair = Pair::new(0);
        let locks = pair.client();
        let mutex = locks.mutex("a").unwrap();
        let guard = tokio::join!(mutex.lock().into_future(), pair.clock.advance(2 * INTERVAL)).0.unwrap();
        if outage {
            pair.fallback.fail_all(ErrorKind::Unreachable);
            let failed = tokio::join!(locks.evict("a", guard.token(), &how), pair.clock.advance(INTERVAL)).0;
            assert!(failed.unwrap_err().is_unreachable(), "the claim is still at the fallback");
            pair.fallback.heal_all();
            assert_eq!(pair.free("a").await, [true, false]);
            let left = locks.inspect("a").await.unwrap().holders().next().unwrap().token.unwrap();
            locks.evict("a", left, &how).await.unwrap();
        } else {
            locks.evict("a", guard.token(), &how).await.unwrap();
        }
        assert_eq!(pair.free("a").await, [true, true]);
        assert!(guard.release().await.unwrap_err().is_lost());
    }
}

/// The claims of one process look alike. The first one is granted last at the primary.
#[tokio::test]
async fn an_eviction_of_one_permit_leaves_the_others_of_its_process() {
    let pair = Pair::new(0);
    let locks = pair.client();
    let permits = locks.semaphore("a", 2).unwrap();
    pair.clock.advance(2 * INTERVAL).await;
    pair.primary.slow("a", 100 * MS);
    let first = tokio::spawn({
        let permits = permits.clone();
        async move { permits.acquire().await }
    });
    pair.clock.advance(10 * MS).await;
    pair.primary.heal("a");
    let other = tokio::join!(permits.acquire().into_future(), pair.clock.advance(10 * MS)).0.unwrap();
    pair.clock.advance(100 * MS).await;
    let first = first.await.unwrap().unwrap();
    assert!(first.token() > other.token());
    assert_eq!(locks.inspect("a").await.unwrap().holders().count(), 2);
    locks.evict("a", first.token(), &fencepost_core::Eviction::new(true)).await.unwrap();
    other.ensure_held().expect("another claim was evicted");
    assert!(first.ensure_held().is_err());
    for engine in [&pair.primary, &pair.fallback] {
        assert_eq!(engine.other().inspect("a").await.unwrap().holders().count(), 1);
    }
    other.release().await.unwrap();
}

/// A clock that has stopped does not sleep, so what waits for a time would keep the thread.
#[test]
fn a_claim_that_waits_for_the_fallback_ends_with_its_client() {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let error = runtime.block_on(async {
            let pair = Pair::new(0);
            let locks = pair.client();
            pair.settle().await;
            pair.primary.fail_all(ErrorKind::Unreachable);
            pair.clock.advance(2 * INTERVAL).await;
            let mutex = locks.mutex("a").unwrap();
            let waits = tokio::spawn(async move { mutex.lock().await });
            pair.clock.advance(INTERVAL).await;
            assert!(!waits.is_finished());
            locks.close().await;
            pair.runtime.clock().stop();
            waits.await.unwrap().unwrap_err()
        });
        done.send(error.is_closed()).unwrap();
    });
    assert_eq!(ended.recv_timeout(Duration::from_secs(30)), Ok(true));
}
