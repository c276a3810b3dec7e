//! Barriers and firings whose requests take their time.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use fencepost_core::testing::{self, TestEngine};
use fencepost_core::{Client, ErrorKind, Firing, Holder, Page};
use fencepost_recipes::{Barrier, Election, Latch, StripedLock};

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
    let batch = Barrier::new(&locks, "batch", 1).unwrap();
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

/// The member that was seen inside leaves before the barrier is marked as open.
#[tokio::test]
async fn a_barrier_stays_closed_unless_all_are_inside_in_two_looks() {
    let (locks, clock, engine) = testing::client();
    engine.slow("batch#barrier0.open", millis(50));
    let permits = locks.semaphore("batch#barrier0", 2).unwrap();
    let other = permits.acquire().await.unwrap();
    let batch = Barrier::new(&locks, "batch", 2).unwrap().every(millis(10));
    let entering = tokio::spawn(async move { batch.enter(100 * SECOND).await });
    // The first look has found both, and the lock under which the mark is written is asked for.
    clock.advance(millis(20)).await;
    other.release().await.unwrap();
    clock.advance(10 * SECOND).await;
    assert!(!entering.is_finished(), "it was let in alone");
    let _other = permits.acquire().await.unwrap();
    clock.advance(SECOND).await;
    assert!(entering.is_finished(), "all are inside");
    drop(entering.await.unwrap().unwrap());
}

/// Its look at the mark lasts until its lease has ended and two others have opened the generation.
#[tokio::test]
async fn a_member_that_was_not_inside_when_the_barrier_opened_is_not_let_in() {
    let (locks, clock, engine) = testing::client();
    let enter = |locks: &Client| {
        let batch = Barrier::new(locks, "batch", 2).unwrap();
        tokio::spawn(async move { batch.enter(1_000 * SECOND).await })
    };
    let first = enter(&locks);
    clock.advance(millis(10)).await;
    assert_eq!(locks.inspect("batch#barrier0").await.unwrap().holders().count(), 1);
    engine.slow_all(40 * SECOND);
    clock.advance(35 * SECOND).await;
    let others = [engine.other(), engine.other()];
    let others = [enter(&others[0]), enter(&others[1])];
    clock.advance(SECOND).await;
    let mut inside = Vec::new();
    for other in others {
        assert!(other.is_finished());
        inside.push(other.await.unwrap().unwrap());
    }
    assert!(!first.is_finished());
    clock.advance(10 * SECOND).await;
    assert!(first.await.unwrap().is_err_and(|error| error.is_lost()));
    assert!(inside.iter().all(|member| member.guard().ensure_held().is_ok()));
}

/// It has held the lock to wait for the run of another start, which failed.
#[tokio::test]
async fn a_start_does_not_find_its_own_locks_busy() {
    let (locks, clock, engine) = testing::client();
    let job = locks.once("job", Duration::from_secs(3600)).unwrap().retry();
    let Some(Firing::First(first)) = job.try_begin().await.unwrap() else { panic!("it is free") };
    first.report(1);
    engine.slow("job", millis(500));
    engine.slow("job#once", millis(100));
    let begin = tokio::spawn(async move { job.try_begin().await });
    clock.advance(millis(10)).await;
    let release = tokio::spawn(first.release());
    clock.advance(millis(640)).await;
    release.await.unwrap().unwrap();
    // The release of the lock that the start has held is under way.
    engine.heal("job");
    clock.advance(2 * SECOND).await;
    let firing = begin.await.unwrap().unwrap();
    assert!(matches!(firing, Some(Firing::First(_))), "{firing:?}");
}

/// Users do not know the lock under which a start decides.
#[tokio::test]
async fn an_error_of_a_start_names_the_lock_of_the_user() {
    let (locks, _clock, engine) = testing::client();
    let job = locks.once("job", SECOND).unwrap();
    engine.fail("job#once", ErrorKind::Denied);
    let error = job.try_begin().await.unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("job: ") && !text.contains("#once"), "{text}");
    assert_eq!(error.resource(), Some("job"));
    let long = "x".repeat(252);
    let text = locks.once(&long, SECOND).unwrap_err().to_string();
    assert!(text.contains("250 bytes") && !text.contains("#once"), "{text}");
    drop(locks.once(&long[..250], SECOND).unwrap());
}

/// Nobody moves the clock.
#[tokio::test]
async fn a_close_ends_what_looks_again_and_again() {
    const PAUSES: [Duration; 2] = [SECOND, Duration::MAX];
    for pause in PAUSES {
        let (locks, _clock, _engine) = testing::client();
        let (latch, election) =
            (Latch::new(&locks, "loaded", 1).unwrap().every(pause), Election::new(&locks, "a").unwrap());
        let waiting = tokio::spawn(async move { latch.wait(Duration::MAX).await });
        let observing = tokio::spawn(async move {
            let mut leaders = election.observe(pause);
            assert!(leaders.next().await.unwrap().is_none());
            leaders.next().await
        });
        tokio::task::yield_now().await;
        locks.close().await;
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(waiting.is_finished() && observing.is_finished(), "{pause:?}");
        assert!(waiting.await.unwrap().unwrap_err().is_closed());
        assert!(observing.await.unwrap().unwrap_err().is_closed());
    }
}

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The calls that are dropped midway, by their number.
fn call(number: usize, locks: &Client) -> Option<Call> {
    let locks = locks.clone();
    Some(match number {
        0 => Box::pin(async move { Latch::new(&locks, "a", 1).unwrap().count_down().await.unwrap() }),
        1 => Box::pin(async move {
            let inside = Barrier::new(&locks, "a", 1).unwrap().enter(10 * SECOND).await.unwrap();
            inside.leave(10 * SECOND).await.unwrap();
        }),
        2 => Box::pin(async move { drop(locks.once("a", SECOND).unwrap().try_begin().await.unwrap()) }),
        3 => Box::pin(async move {
            locks.multi(["a", "b"]).unwrap().lock().await.unwrap().release().await.unwrap();
        }),
        4 => Box::pin(async move {
            let striped = StripedLock::new(&locks, "a", 2).unwrap();
            let mut walk = striped.free_first();
            while let Some((_, guard)) = walk.next().await.unwrap() {
                guard.release().await.unwrap();
            }
        }),
        5 => Box::pin(async move {
            let (holder, mutex) = (Holder::new(), locks.mutex("a").unwrap());
            let outer = mutex.lock().holder(&holder).reentrant().await.unwrap();
            let inner = mutex.lock().holder(&holder).reentrant().await.unwrap();
            outer.release().await.unwrap();
            inner.release().await.unwrap();
        }),
        6 => Box::pin(async move {
            let mut guard = locks.rwlock("a").unwrap().read().max_hold(60 * SECOND).await.unwrap();
            guard.upgrade().evict_overdue().await.unwrap();
            guard.downgrade().await.unwrap();
            guard.release().await.unwrap();
        }),
        7 => Box::pin(async move {
            let guard = locks.semaphore("a", 3).unwrap().acquire_many(2).await.unwrap();
            let lease = guard.detach().await.unwrap();
            locks.release(&lease).await.unwrap();
        }),
        _ => return None,
    })
}

/// A call goes on by each step of the clock. It is dropped after each number of them.
#[tokio::test]
async fn dropped_at_any_await_nothing_is_left() {
    const NAMES: [&str; 8] = ["a", "b", "a#0", "a#1", "a#latch0", "a#barrier0", "a#barrier0.open", "a#once"];
    let slow = |engine: &TestEngine| NAMES.iter().for_each(|name| engine.slow(name, millis(10)));
    for number in 0.. {
        for steps in 0.. {
            let (locks, clock, engine) = testing::client();
            slow(&engine);
            let Some(mut running) = call(number, &locks) else { return };
            let mut done = false;
            for _ in 0..=steps {
                done = running.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
                if done {
                    break;
                }
                clock.advance(millis(5)).await;
            }
            drop(running);
            clock.advance(SECOND).await;
            let listing = locks.list("", &Page::of(100)).await.unwrap();
            for claim in listing.resources.iter().flat_map(|info| &info.claims) {
                // The mark of a latch or a barrier is made whole, or not at all.
                assert!(claim.detached && number < 2, "call {number} after {steps} steps: {claim:?}");
            }
            assert_eq!(locks.backlog(), 0);
            if done {
                assert!(steps > 2, "call {number} ended after {steps} steps");
                break;
            }
        }
    }
}
