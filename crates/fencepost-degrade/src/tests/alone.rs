//! Policies without a second engine.

use super::{Degrade, INTERVAL, LEASE, MS, client};
use crate::engines::Stand;
use crate::layer::DegradeLayer;
use crate::primary::Opener;

use fencepost_core::{
    Backend, Client, Degraded, Error, ErrorKind, Loss, Memory, Need, Registry, Result, Runtime, State,
    Tokens,
    testing::{self, TestEngine},
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

fn policies() -> [(Degrade, Degraded); 2] {
    [
        (Degrade::local_only().probe_interval(INTERVAL), Degraded::LocalOnly),
        (Degrade::fail_open().probe_interval(INTERVAL), Degraded::Unprotected),
    ]
}

#[tokio::test]
async fn an_engine_that_refuses_is_done_without_until_it_is_back() {
    for (degrade, degraded) in policies() {
        let (locks, clock, engine) = client(degrade);
        let guard = locks.mutex("a").unwrap().lock().await.unwrap();
        assert_eq!(guard.degraded(), None);
        guard.release().await.unwrap();
        engine.fail_all(ErrorKind::Unreachable);
        let guard = {
            let mutex = locks.mutex("a").unwrap();
            let attempt = tokio::spawn(async move { mutex.lock().wait(5 * INTERVAL).await });
            clock.advance(INTERVAL).await;
            attempt.await.unwrap().unwrap()
        };
        assert_eq!(guard.degraded(), Some(degraded));
        clock.advance(3 * LEASE).await;
        guard.ensure_held().unwrap();
        guard.release().await.unwrap();
        let guard = locks.mutex("a").unwrap().try_lock().await.unwrap().unwrap();
        assert_eq!(guard.degraded(), Some(degraded));
        engine.heal_all();
        clock.advance(INTERVAL).await;
        let other = locks.mutex("b").unwrap().try_lock().await.unwrap().unwrap();
        assert_eq!(other.degraded(), None, "the engine is back");
        assert_eq!(guard.degraded(), Some(degraded), "that grant stays what it was");
        clock.advance(3 * LEASE).await;
        guard.release().await.unwrap();
        other.release().await.unwrap();
    }
}

#[tokio::test]
async fn what_a_policy_takes_away_is_refused_in_its_name() {
    for (degrade, _) in policies() {
        let builder = Client::builder().require_fair().layer(degrade.clone());
        // While the engine is away, each process has a queue of its own.
        let unfair = builder.connect(&Registry::new(), "memory:").await.unwrap_err();
        let (policy, (locks, ..)) = (degrade.name(), client(degrade));
        let semaphore = locks.semaphore("a", 2).unwrap();
        let refused = [
            unfair,
            locks.require(Need::Detach).unwrap_err(),
            locks.require(Need::Tokens(Tokens::ClockBounded)).unwrap_err(),
            semaphore.set_permits(3).await.unwrap_err(),
            semaphore.acquire().unfair().await.unwrap_err(),
        ];
        for error in refused {
            assert!(error.is_unsupported() && error.to_string().contains(policy), "{error}");
        }
    }
}

#[tokio::test]
async fn a_call_returns_in_time_while_the_engine_hangs() {
    for (degrade, degraded) in policies() {
        let (locks, clock, engine) = client(degrade);
        engine.slow_all(Duration::MAX);
        let begin = clock.now();
        let wait = |wait: Duration| {
            let mutex = locks.mutex(&format!("{wait:?}")).unwrap();
            tokio::spawn(async move { mutex.lock().wait(wait).await })
        };
        // The breaker opens after two probes: the first begins after half an interval, and each lasts for that.
        let (short, long) = (wait(Duration::ZERO), wait(2 * INTERVAL));
        clock.advance(INTERVAL).await;
        let error = short.await.unwrap().unwrap_err();
        assert!(
            error.is_unreachable() && clock.now() == begin + INTERVAL,
            "the attempt limit is 1 s: {error}"
        );
        clock.advance(INTERVAL).await;
        let guard = long.await.unwrap().unwrap();
        assert_eq!(guard.degraded(), Some(degraded));
        let guard = locks.mutex("c").unwrap().try_lock().await.unwrap().unwrap();
        assert_eq!(guard.degraded(), Some(degraded), "nothing is waited for any more");
    }
}

#[tokio::test]
async fn a_grant_of_the_engine_lasts_as_long_as_its_lease() {
    for (degrade, _) in policies() {
        let (locks, clock, engine) = client(degrade);
        let guard = locks.mutex("a").unwrap().lock().await.unwrap();
        engine.fail_all(ErrorKind::Unreachable);
        clock.advance(LEASE - 300 * MS).await;
        assert_eq!((guard.state(), guard.degraded()), (State::Suspect, None));
        clock.advance(300 * MS).await;
        assert_eq!(guard.state(), State::Lost(Loss::Expired));
    }
}

#[tokio::test]
async fn a_renewal_that_hangs_costs_no_other_claim_its_lease() {
    for (degrade, _) in policies() {
        let (locks, clock, engine) = client(degrade);
        let hung = locks.mutex("a").unwrap().lock().await.unwrap();
        let other = locks.mutex("b").unwrap().lock().await.unwrap();
        engine.slow("a", Duration::MAX);
        clock.advance(2 * LEASE).await;
        assert_eq!(hung.state(), State::Lost(Loss::Expired));
        other.ensure_held().expect("the engine has renewed it all the time");
    }
}

#[tokio::test]
async fn local_only_excludes_within_the_client_all_the_time() {
    let (locks, clock, engine) = client(Degrade::local_only().probe_interval(INTERVAL));
    let mutex = locks.mutex("a").unwrap();
    let before = mutex.lock().await.unwrap();
    engine.fail_all(ErrorKind::Unreachable);
    clock.advance(INTERVAL).await;
    assert!(mutex.try_lock().await.unwrap().is_none(), "it is held by this client");
    clock.advance(LEASE).await;
    assert!(before.ensure_held().is_err());
    drop(before);
    let during = mutex.try_lock().await.unwrap().unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none());
    engine.heal_all();
    clock.advance(INTERVAL).await;
    assert!(mutex.try_lock().await.unwrap().is_none(), "also after the engine's return");
    assert!(engine.other().mutex("a").unwrap().try_lock().await.unwrap().is_some(), "but not others");
    during.release().await.unwrap();
}

#[tokio::test]
async fn a_claim_in_the_queue_goes_on_when_the_engine_goes_away() {
    for (degrade, degraded) in policies() {
        let (locks, clock, engine) = client(degrade);
        let other = engine.busy("a").await.unwrap();
        let mutex = locks.mutex("a").unwrap();
        let waits = tokio::spawn(async move { mutex.lock().await });
        clock.advance(LEASE).await;
        assert!(!waits.is_finished());
        engine.fail_all(ErrorKind::Unreachable);
        let probe = locks.mutex("b").unwrap();
        let fails = tokio::spawn(async move { probe.lock().wait(INTERVAL).await });
        clock.advance(INTERVAL).await;
        drop(fails.await.unwrap().unwrap());
        let guard = waits.await.unwrap().unwrap();
        assert_eq!(guard.degraded(), Some(degraded));
        engine.heal_all();
        clock.advance(LEASE).await;
        other.release().await.unwrap();
        guard.release().await.unwrap();
        clock.advance(2 * LEASE).await;
        let info = engine.other().inspect("a").await.unwrap();
        assert!(info.claims.is_empty(), "nothing is left at the engine: {info:?}");
    }
}

#[tokio::test]
async fn dropped_at_any_poll_nothing_is_left() {
    for (degrade, _) in policies() {
        for polls in 0..6 {
            let (locks, clock, engine) = client(degrade.clone());
            engine.slow_all(10 * MS);
            let mutex = locks.mutex("a").unwrap();
            let mut call = Box::pin(std::future::IntoFuture::into_future(mutex.lock()));
            for _ in 0..polls {
                let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
                if call.as_mut().poll(&mut cx).is_ready() {
                    break;
                }
                clock.advance(5 * MS).await;
            }
            drop(call);
            clock.advance(LEASE).await;
            engine.heal_all();
            assert!(mutex.try_lock().await.unwrap().is_some(), "{polls}");
        }
    }
}

/// Each probe has half an interval.
#[tokio::test]
async fn an_engine_that_was_away_at_the_start_may_take_longer_to_connect_than_a_probe() {
    let (other, clock, engine) = testing::client();
    let opening = Arc::new(AtomicUsize::new(0));
    let opener: Opener = Box::new({
        let (runtime, opening) = (other.runtime().clone(), Arc::clone(&opening));
        move || {
            let (runtime, engine, opening) = (runtime.clone(), engine.backend(), Arc::clone(&opening));
            Box::pin(async move {
                let _under_way = UnderWay::new(&opening);
                runtime.clock().sleep_until(runtime.clock().now() + 3 * INTERVAL).await;
                Ok(engine)
            })
        }
    });
    let degrade = Degrade::local_only().probe_interval(INTERVAL);
    let open = |runtime: &Runtime| -> Result<Arc<dyn Backend>> {
        let stand = Stand::Local(Memory::new());
        Ok(Arc::new(DegradeLayer::new(Err(("memory", opener)), stand, &degrade, runtime)?))
    };
    let locks = Client::builder().runtime(other.runtime().clone()).open(open).unwrap();
    let mutex = locks.mutex("a").unwrap();
    let guard = mutex.try_lock().await.unwrap().unwrap();
    assert_eq!(guard.degraded(), Some(Degraded::LocalOnly));
    guard.release().await.unwrap();
    for _ in 0..8 {
        clock.advance(INTERVAL / 2).await;
        assert!(opening.load(Ordering::SeqCst) <= 2, "attempts pile up");
    }
    let guard = mutex.try_lock().await.unwrap().unwrap();
    assert_eq!(guard.degraded(), None, "it is back");
    guard.release().await.unwrap();
    assert_eq!(opening.load(Ordering::SeqCst), 0);
}

/// `after`: how long it takes to refuse. Each probe has half an interval.
async fn refuses(after: Duration, has_fallback: bool) {
    let (other, clock, _) = testing::client();
    let with_clock_tokens = || {
        let memory = Memory::with_clock_tokens(0);
        TestEngine::over(memory, other.runtime().clock().clone(), Arc::clone(other.runtime().spawner()))
    };
    let (engine, fallback) = (with_clock_tokens(), with_clock_tokens());
    let wrong = Arc::new(AtomicBool::new(true));
    let opener: Opener = Box::new({
        let (wrong, clock) = (Arc::clone(&wrong), other.runtime().clock().clone());
        move || {
            let refused = Error::new(ErrorKind::Denied, "the password is wrong").on("memory");
            let opened = if wrong.load(Ordering::SeqCst) { Err(refused) } else { Ok(engine.backend()) };
            let clock = clock.clone();
            Box::pin(async move {
                if after > Duration::ZERO {
                    clock.sleep_until(clock.now() + after).await;
                }
                opened
            })
        }
    });
    let (degrade, stand) = match has_fallback {
        true => (Degrade::fallback("memory:").max_ttl(LEASE), Stand::Fallback(fallback.backend())),
        false => (Degrade::local_only(), Stand::Local(Memory::new())),
    };
    let degrade = degrade.probe_interval(INTERVAL);
    let open = |runtime: &Runtime| -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(DegradeLayer::new(Err(("memory", opener)), stand, &degrade, runtime)?))
    };
    let builder = Client::builder().ttl(LEASE).runtime(other.runtime().clone());
    let locks = builder.attempt_timeout(4 * INTERVAL).open(open).unwrap();
    let pass = async |time: Duration| {
        let until = clock.now() + time;
        while clock.now() < until {
            clock.advance(INTERVAL / 4).await;
        }
    };
    pass(2 * INTERVAL).await;
    let mutex = locks.mutex("a").unwrap();
    let claim = tokio::spawn(async move { mutex.try_lock().await.map(|guard| guard.is_some()) });
    pass(4 * INTERVAL).await;
    let claim = claim.await.unwrap().unwrap_err();
    let look = locks.inspect("a").await.unwrap_err();
    for error in [claim, look] {
        assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("password"), "{error}");
    }
    wrong.store(false, Ordering::SeqCst);
    pass(LEASE + 6 * INTERVAL).await;
    let guard = locks.mutex("a").unwrap().try_lock().await.unwrap().unwrap();
    assert_eq!(guard.degraded(), None, "it is back");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn an_engine_that_was_away_at_the_start_and_then_refuses_is_named_with_its_reason() {
    for has_fallback in [false, true] {
        for after in [Duration::ZERO, INTERVAL * 3 / 4, INTERVAL * 3 / 2] {
            refuses(after, has_fallback).await;
        }
    }
}

/// Counts an attempt to connect.
struct UnderWay(Arc<AtomicUsize>);

impl UnderWay {
    fn new(count: &Arc<AtomicUsize>) -> UnderWay {
        count.fetch_add(1, Ordering::SeqCst);
        UnderWay(Arc::clone(count))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_lease_that_is_too_long_is_refused() {
    let (locks, _, _) = client(Degrade::fail_open().max_ttl(LEASE));
    let error = locks.mutex("a").unwrap().lock().ttl(LEASE + MS).await.unwrap_err();
    assert!(error.is_invalid(), "{error}");
    let (other, _, engine) = fencepost_core::testing::client();
    let builder = Client::builder().runtime(other.runtime().clone());
    let wrong = builder.layer(Degrade::fail_open().probe_interval(MS)).open(|_| Ok(engine.backend()));
    assert!(wrong.unwrap_err().to_string().contains("probe interval"));
}

#[tokio::test]
async fn the_longest_lease_may_have_any_length() {
    for (degrade, _) in policies() {
        let (locks, _, _) = client(degrade.max_ttl(Duration::MAX));
        locks.mutex("a").unwrap().lock().await.unwrap().release().await.unwrap();
    }
}
