//! Work that is run again after a loss.

use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost_core::{Eviction, GuardView, Loss, Moment, State, Token};

use crate::stage::{Ends, Stage, TTL, settle};

#[tokio::test]
async fn work_that_keeps_its_lock_runs_once() {
    let mut stage = Stage::new();
    let locks = stage.client();
    let mutex = locks.mutex("lock").unwrap();
    let clock = stage.clock.clone();
    let mut runs = 0;
    let work = mutex.lock().run_until_done(|held| {
        runs += 1;
        // Longer than the lease: it is renewed.
        let (clock, end) = (clock.clone(), clock.now() + TTL * 3);
        async move {
            clock.sleep_until(end).await;
            held.token()
        }
    });
    let (token, ()) = tokio::join!(work, stage.pass(TTL * 4));
    assert!(token.unwrap() > Token::default());
    assert_eq!(runs, 1);
    assert!(locks.inspect("lock").await.unwrap().claims.is_empty(), "it is released");
}

#[tokio::test]
async fn an_eviction_stops_the_work_before_the_next_one_holds_and_it_stands_in_the_queue_again() {
    let mut stage = Stage::new();
    let (ours, other) = (stage.client(), stage.client());
    let (tokens, stopped) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
    let mutex = ours.mutex("lock").unwrap();
    let ended = tokio::spawn({
        let (tokens, stopped) = (Arc::clone(&tokens), Arc::clone(&stopped));
        async move {
            let work = mutex.lock().run_until_done(|held| {
                let first = tokens.lock().unwrap().is_empty();
                tokens.lock().unwrap().push(held.token());
                let ends = Ends(Arc::clone(&stopped));
                async move {
                    let _ends = ends;
                    if first {
                        pending::<()>().await;
                    }
                    "done"
                }
            });
            work.await.unwrap()
        }
    });
    settle().await;
    let first = tokens.lock().unwrap()[0];
    let next = tokio::spawn(async move { other.mutex("lock").unwrap().lock().await.unwrap() });
    settle().await;
    ours.evict("lock", first, &Eviction::default()).await.unwrap();
    let guard = next.await.unwrap();
    assert!(stopped.load(Ordering::SeqCst), "two at work at the same time");
    settle().await;
    assert_eq!(ours.inspect("lock").await.unwrap().waiters().count(), 1, "it is in the queue again");
    assert_eq!(tokens.lock().unwrap().len(), 1, "it runs under no lock");
    let second = guard.token();
    guard.release().await.unwrap();
    assert_eq!(ended.await.unwrap(), "done");
    let tokens = tokens.lock().unwrap();
    assert!(tokens.len() == 2 && first < second && second < tokens[1], "{first} {second} {tokens:?}");
}

#[tokio::test]
async fn a_lease_that_runs_out_stops_the_work_and_it_begins_anew() {
    let mut stage = Stage::new();
    let locks = stage.client();
    let mutex = locks.mutex("lock").unwrap();
    let clock = stage.clock.clone();
    let (mut runs, start) = (0, clock.now());
    // A fixed lease, too short for the first run.
    let work = mutex.lock().ttl(TTL).no_renewal().run_until_done(|_| {
        runs += 1;
        let clock = &clock;
        async move {
            clock.sleep_until(start + TTL * 3 / 2).await;
            clock.now()
        }
    });
    let (ended, ()) = tokio::join!(work, stage.pass(TTL * 2));
    assert_eq!(ended.unwrap(), start + TTL * 3 / 2);
    assert_eq!(runs, 2);
}

/// Work that checks by itself may notice the loss first. Its last step may have come too late.
#[tokio::test]
async fn a_run_that_ends_after_the_loss_does_not_count() {
    let mut stage = Stage::new();
    let locks = stage.client();
    let clock = stage.clock.clone();
    let mut runs = 0;
    let mutex = locks.mutex("lock").unwrap();
    let ended = mutex.lock().run_until_done(|held| {
        runs += 1;
        let (clock, run) = (&clock, runs);
        async move {
            if run == 1 {
                // Paused past its lease.
                clock.advance_to(clock.now() + TTL * 2);
            }
            held.ensure_held().map(|()| run)
        }
    });
    assert_eq!(ended.await.unwrap().unwrap(), 2);
}

#[tokio::test]
async fn a_run_whose_lock_is_gone_at_the_release_does_not_count() {
    let mut stage = Stage::new();
    let (ours, other) = (stage.client(), stage.client());
    let mut runs = 0;
    let mutex = ours.mutex("lock").unwrap();
    let ended = mutex.lock().run_until_done(|held| {
        runs += 1;
        let (other, run) = (&other, runs);
        async move {
            if run == 1 {
                // Nothing is awaited after that.
                let now = Eviction::new(true);
                other.evict("lock", held.token(), &now).await.unwrap();
            }
            run
        }
    });
    assert_eq!(ended.await.unwrap(), 2);
}

#[tokio::test]
async fn every_stay_in_the_queue_is_bounded_by_the_waiting_time() {
    let mut stage = Stage::new();
    let (ours, other) = (stage.client(), stage.client());
    let mutex = ours.mutex("lock").unwrap();
    let runs = Arc::new(AtomicU32::new(0));
    let ended = tokio::spawn({
        let runs = Arc::clone(&runs);
        async move {
            let work = mutex.lock().wait(TTL / 3).run_until_done(|_| {
                runs.fetch_add(1, Ordering::SeqCst);
                pending::<()>()
            });
            work.await.unwrap_err()
        }
    });
    settle().await;
    // The first wait is long over: it counts from the loss.
    stage.pass(TTL).await;
    let next = tokio::spawn(async move { other.mutex("lock").unwrap().lock().await.unwrap() });
    settle().await;
    let token = ours.inspect("lock").await.unwrap().holders().next().unwrap().token.unwrap();
    ours.evict("lock", token, &Eviction::default()).await.unwrap();
    let _held = next.await.unwrap();
    stage.pass(TTL / 2).await;
    let error = ended.await.unwrap();
    assert!(error.is_timeout(), "{error}");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn dropped_it_drops_the_work_and_then_the_lock() {
    let mut stage = Stage::new();
    let locks = stage.client();
    let mutex = locks.mutex("lock").unwrap();
    let stopped = Arc::new(AtomicBool::new(false));
    let task = tokio::spawn({
        let stopped = Arc::clone(&stopped);
        async move {
            let work = mutex.lock().run_until_done(|_| {
                let ends = Ends(Arc::clone(&stopped));
                async move {
                    let _ends = ends;
                    pending::<()>().await;
                }
            });
            work.await.unwrap();
        }
    });
    settle().await;
    assert_eq!(locks.inspect("lock").await.unwrap().holders().count(), 1);
    task.abort();
    settle().await;
    assert!(stopped.load(Ordering::SeqCst));
    assert!(locks.inspect("lock").await.unwrap().claims.is_empty());
}

#[tokio::test]
async fn several_are_lost_and_got_back_together() {
    let mut stage = Stage::new();
    let locks = stage.client();
    let both = locks.multi(["one", "two"]).unwrap();
    let mut runs = 0;
    let ended = both.lock().run_until_done(|held| {
        runs += 1;
        let (locks, run) = (&locks, runs);
        async move {
            if run == 1 {
                locks.evict("two", held[1].token(), &Eviction::default()).await.unwrap();
                pending::<()>().await;
            }
            held.len()
        }
    });
    assert_eq!(ended.await.unwrap(), 2);
    assert_eq!(runs, 2);
    for name in ["one", "two"] {
        assert!(locks.inspect(name).await.unwrap().claims.is_empty(), "'{name}' is released");
    }
}

/// A task that watches a view, and the reason that it was told.
fn watcher(held: &GuardView) -> tokio::task::JoinHandle<Loss> {
    let held = held.clone();
    tokio::spawn(async move { held.lost().await })
}

fn is_over(held: &GuardView) {
    assert_eq!(held.state(), State::Lost(Loss::Released));
    assert_eq!((held.remaining(), held.valid_until()), (Duration::ZERO, Moment::ZERO));
    let error = held.ensure_held().unwrap_err();
    assert!(error.is_lost() && error.to_string().contains("released"), "{error}");
}

#[tokio::test]
async fn a_view_that_outlives_the_work_knows_that_the_lock_was_given_back() {
    let mut stage = Stage::new();
    let (locks, other) = (stage.client(), stage.client());
    let mutex = locks.mutex("lock").unwrap();
    let next = Mutex::new(None);
    let (held, watching) = mutex
        .lock()
        .run_until_done(|held| {
            let mutex = other.mutex("lock").unwrap();
            *next.lock().unwrap() = Some(tokio::spawn(async move { mutex.lock().await.unwrap() }));
            async move {
                let watching = watcher(&held);
                settle().await;
                assert!(!watching.is_finished() && held.ensure_held().is_ok());
                (held, watching)
            }
        })
        .await
        .unwrap();
    is_over(&held);
    // No time passes: it is told.
    assert_eq!(watching.await.unwrap(), Loss::Released);
    let next = next.lock().unwrap().take().unwrap();
    next.await.unwrap().release().await.unwrap();
    is_over(&held);
}

#[tokio::test]
async fn so_does_one_of_work_that_was_dropped() {
    let mut stage = Stage::new();
    let locks = stage.client();
    let both = locks.multi(["one", "two"]).unwrap();
    let views = Arc::new(Mutex::new(Vec::new()));
    let task = tokio::spawn({
        let views = Arc::clone(&views);
        async move {
            both.lock()
                .run_until_done(|held| {
                    *views.lock().unwrap() = held;
                    pending::<()>()
                })
                .await
        }
    });
    settle().await;
    let held: Vec<GuardView> = views.lock().unwrap().drain(..).collect();
    let watching: Vec<_> = held.iter().map(watcher).collect();
    settle().await;
    held.iter().for_each(|held| held.ensure_held().unwrap());
    task.abort();
    settle().await;
    held.iter().for_each(is_over);
    assert_eq!(watching.len(), 2);
    for watching in watching {
        assert_eq!(watching.await.unwrap(), Loss::Released);
    }
}

#[tokio::test]
async fn a_view_keeps_the_reason_of_a_loss_that_came_first() {
    let mut stage = Stage::new();
    let locks = stage.client();
    let mutex = locks.mutex("lock").unwrap();
    let mut first = None;
    mutex
        .lock()
        .run_until_done(|held| {
            let again = first.is_some();
            first.get_or_insert_with(|| held.clone());
            let locks = &locks;
            async move {
                if !again {
                    locks.evict("lock", held.token(), &Eviction::default()).await.unwrap();
                    pending::<()>().await;
                }
            }
        })
        .await
        .unwrap();
    assert_eq!(first.unwrap().state(), State::Lost(Loss::Evicted));
}
