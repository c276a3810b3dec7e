//! Grants, renewals and releases whose answers are late, lost or errors.

#[path = "../manual_time/mod.rs"]
mod manual_time;
mod overdue;
mod stage;

use std::time::Duration;

use fencepost_core::{Client, ClientBuilder, Guard, Kind, Loss, Result, State};
use fencepost_degrade::Degrade;
use tokio::task::JoinHandle;

use stage::{Answer, Stage};

const TTL: Duration = Duration::from_secs(30);

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// The lease expires before the process reads that it was granted. Somebody else may hold the lock by then.
#[tokio::test]
async fn a_grant_that_is_read_after_its_lease_is_none() {
    let stage = Stage::new();
    let locks = stage.client(Client::builder().ttl(TTL));
    let mutex = locks.mutex("lock").unwrap();
    stage.attempts([Answer::ThenPause(TTL * 2)]);
    let guard = mutex.lock().await.unwrap();
    assert_eq!(guard.state(), State::Held, "it asked again");
    guard.release().await.unwrap();
    stage.attempts([Answer::ThenPause(TTL * 2)]);
    let error = mutex.lock().wait(secs(1)).await.unwrap_err();
    assert!(error.is_timeout(), "{error}");
    assert!(locks.inspect("lock").await.unwrap().claims.is_empty(), "nothing of it is left");
    stage.attempts([Answer::ThenPause(TTL * 2)]);
    let guard = mutex.try_lock().await.unwrap().expect("it is free");
    assert_eq!(guard.state(), State::Held);
}

/// The process is paused for longer than the lease.
#[tokio::test]
async fn an_extension_of_what_is_lost_meanwhile_is_an_error() {
    let stage = Stage::new();
    let locks = stage.client(Client::builder());
    let mut guard = locks.mutex("lock").unwrap().lock().ttl(TTL).no_renewal().await.unwrap();
    stage.renewals([Answer::PauseThen(TTL * 2)]);
    let error = guard.extend(TTL).await.unwrap_err();
    assert!(error.is_lost(), "{error}");
    assert_eq!(guard.state(), State::Lost(Loss::Expired));
}

#[tokio::test]
async fn an_extension_that_fails_leaves_the_lease_as_long_as_it_was() {
    let stage = Stage::new();
    let locks = stage.client(Client::builder().ttl(TTL));
    let mut guard = locks.mutex("lock").unwrap().lock().await.unwrap();
    let until = guard.valid_until();
    stage.renewals([Answer::Fails]);
    let error = guard.extend(TTL * 10).await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    assert_eq!(guard.valid_until(), until);
    stage.pass(TTL / 2).await;
    assert_eq!(stage.asked(), [TTL * 10, TTL]);
    assert_eq!(guard.state(), State::Held);
}

#[tokio::test]
async fn a_failed_renewal_is_told_until_one_succeeds() {
    let stage = Stage::new();
    let guard = stage.client(Client::builder().ttl(TTL)).mutex("lock").unwrap().lock().await.unwrap();
    stage.renewals([Answer::Fails]);
    stage.pass(TTL / 3).await;
    assert_eq!(guard.state(), State::Suspect);
    let trouble = guard.last_renewal_error().expect("the renewal failed");
    assert!(trouble.contains("the engine is away"), "{trouble}");
    stage.pass(secs(1)).await;
    assert_eq!((guard.state(), guard.last_renewal_error()), (State::Held, None));
}

#[tokio::test]
async fn a_short_lease_outlives_renewals_that_fail_at_first() {
    let stage = Stage::new();
    let locks = stage.client(Client::builder().ttl(secs(1)));
    let guard = locks.mutex("lock").unwrap().lock().await.unwrap();
    stage.renewals([Answer::Fails, Answer::Fails]);
    stage.pass(secs(2)).await;
    assert_eq!(guard.state(), State::Held);
}

/// The holder's lease ends a margin before the engine's, which would renew it still.
#[tokio::test]
async fn a_lost_lock_is_renewed_no_more_and_somebody_else_gets_it() {
    let stage = Stage::new();
    let locks = stage.client(Client::builder().ttl(TTL));
    let lost = locks.mutex("lock").unwrap().lock().await.unwrap();
    stage.clock.advance_to(lost.valid_until());
    stage.pass(secs(5)).await;
    assert_eq!(stage.asked().len(), 1);
    let mutex = locks.mutex("lock").unwrap();
    let (next, ()) = tokio::join!(mutex.lock().wait(TTL * 2), stage.pass(TTL * 2));
    next.expect("the lost lock has ended at the engine").ensure_held().unwrap();
    assert_eq!(lost.state(), State::Lost(Loss::Expired));
}

/// The answer to the renewal comes after the release.
#[tokio::test]
async fn a_lock_that_was_released_during_its_renewal_is_renewed_no_more() {
    let stage = Stage::new();
    let locks = stage.client(Client::builder().ttl(TTL));
    let guard = locks.mutex("lock").unwrap().lock().await.unwrap();
    stage.renewals([Answer::FailsAfter(secs(4))]);
    stage.pass(TTL / 3).await;
    assert_eq!(stage.asked().len(), 1);
    guard.release().await.unwrap();
    stage.pass(TTL).await;
    assert_eq!(stage.asked().len(), 1);
}

/// Returns a guard with a fixed lease, and the task of a waiter.
async fn waiting(stage: &Stage) -> (Guard, JoinHandle<Result<Guard>>) {
    waiting_with(stage, Client::builder()).await
}

async fn waiting_with(stage: &Stage, options: ClientBuilder) -> (Guard, JoinHandle<Result<Guard>>) {
    let locks = stage.client(options.ttl(TTL));
    let holder = locks.mutex("lock").unwrap().lock().ttl(TTL * 10).no_renewal().await.unwrap();
    let mutex = locks.mutex("lock").unwrap();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    stage.pass(Duration::ZERO).await;
    (holder, waiting)
}

#[tokio::test]
async fn a_place_in_the_queue_whose_renewals_have_no_answer_is_given_up() {
    for options in [Client::builder(), Client::builder().history(TTL)] {
        let stage = Stage::new();
        let (_holder, waiting) = waiting_with(&stage, options).await;
        stage.renewals([Answer::Never; 10]);
        stage.pass(TTL / 3 + secs(9)).await;
        assert!(!waiting.is_finished(), "an outage of 10 s does not end a wait");
        stage.pass(secs(2)).await;
        assert!(waiting.is_finished());
        let error = waiting.await.unwrap().unwrap_err();
        assert!(error.is_unreachable(), "{error}");
    }
}

/// Renewals fail from 10 s on. An answer that needs no request, as that of a queue in this process, does not count for the engine.
#[tokio::test]
async fn a_place_in_the_queue_that_cannot_be_renewed_is_asked_for_twice_before_it_is_given_up() {
    let stage = Stage::new();
    let start = stage.clock.now();
    let (_holder, waiting) = waiting_with(&stage, Client::builder().attempt_timeout(secs(8))).await;
    stage.renewals([Answer::Fails; 10]);
    stage.pass(TTL / 3 + secs(11)).await;
    assert_eq!(stage.attempted(start), [0, 0, 15, 20], "the holder, then the waiter");
    let error = waiting.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("position in the queue"), "{error}");
}

/// The attempt before its patience ends gets an answer, although renewals fail.
#[tokio::test]
async fn a_place_in_the_queue_that_the_engine_still_knows_is_not_given_up() {
    let stage = Stage::new();
    stage.attempts([Answer::AsMemory, Answer::AsMemory, Answer::After(secs(4))]);
    let (holder, waiting) = waiting_with(&stage, Client::builder().attempt_timeout(secs(8))).await;
    stage.renewals([Answer::Fails; 10]);
    stage.pass(TTL / 3 + secs(15)).await;
    assert!(!waiting.is_finished(), "the engine has answered 19 s after the beginning");
    holder.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn the_engine_is_asked_again_during_the_waiting_time_and_not_after_it() {
    for released in [true, false] {
        let stage = Stage::new();
        let (start, locks) = (stage.clock.now(), stage.client(Client::builder().ttl(TTL)));
        let mutex = locks.mutex("lock").unwrap();
        let mut holder = Some(mutex.lock().await.unwrap());
        stage.attempts([Answer::After(secs(1)); 3]);
        let waiting = tokio::spawn(async move { mutex.lock().wait(secs(5)).await });
        stage.pass(secs(3)).await;
        if let Some(holder) = holder.take_if(|_| released) {
            holder.release().await.unwrap();
        }
        stage.pass(secs(3)).await;
        let result = waiting.await.unwrap();
        if released {
            result.unwrap().release().await.unwrap();
            assert_eq!(stage.attempted(start), [0, 0, 3], "the holder, then the waiter");
        } else {
            let error = result.unwrap_err();
            assert!(error.is_timeout(), "{error}");
            assert_eq!(stage.attempted(start), [0, 0], "an answer after 5 s would be too late");
        }
        drop(holder);
    }
}

/// It is not asked again after an attempt without an answer.
#[tokio::test]
async fn a_place_in_the_queue_is_given_up_by_the_attempt_that_has_no_answer() {
    let stage = Stage::new();
    let (_holder, waiting) = waiting(&stage).await;
    stage.renewals([Answer::Never; 10]);
    stage.attempts([Answer::Never, Answer::Fails]);
    stage.pass(TTL / 3 + secs(11)).await;
    let error = waiting.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("position in the queue"), "{error}");
}

/// The renewals get through again meanwhile, so it is not given up. Nothing else would wake it.
#[tokio::test]
async fn an_attempt_that_has_no_answer_is_repeated_when_the_place_is_renewed_again() {
    let stage = Stage::new();
    let start = stage.clock.now();
    let (holder, waiting) = waiting_with(&stage, Client::builder().attempt_timeout(secs(2))).await;
    // From 10 s to 18 s, when it is asked for once more.
    stage.renewals([Answer::Fails; 9]);
    stage.attempts([Answer::Never]);
    stage.pass(TTL / 3 + secs(9)).await;
    assert_eq!(stage.attempted(start), [0, 0, 18], "the holder, then the waiter");
    holder.release().await.unwrap();
    stage.pass(Duration::from_millis(900)).await;
    assert!(!waiting.is_finished(), "its attempt has no answer");
    stage.pass(secs(1)).await;
    assert!(waiting.is_finished(), "it waits for good");
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

/// The renewal of its position failed once, just before the reader was granted. That was long ago when it upgrades.
#[tokio::test]
async fn trouble_in_the_queue_does_not_end_the_patience_of_an_upgrade() {
    let stage = Stage::new();
    let locks = stage.client(Client::builder().ttl(TTL));
    let lock = locks.rwlock("lock").unwrap();
    let writer = lock.write().ttl(TTL * 10).no_renewal().await.unwrap();
    let reader = tokio::spawn({
        let lock = lock.clone();
        async move { lock.read().await }
    });
    stage.pass(Duration::ZERO).await;
    stage.renewals([Answer::Fails]);
    stage.pass(TTL / 3).await;
    writer.release().await.unwrap();
    stage.pass(Duration::ZERO).await;
    let mut reader = reader.await.unwrap().unwrap();
    stage.pass(secs(11)).await;
    reader.upgrade().await.unwrap();
    reader.release().await.unwrap();
}

#[tokio::test]
async fn an_answer_for_a_place_in_the_queue_is_waited_for() {
    let stage = Stage::new();
    let (holder, waiting) = waiting(&stage).await;
    stage.renewals([Answer::After(secs(4))]);
    stage.pass(TTL / 3 + secs(5)).await;
    assert_eq!(stage.asked(), [TTL], "it is asked for once");
    holder.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_place_in_the_queue_that_the_engine_has_forgotten_is_renewed_no_more() {
    let stage = Stage::new();
    let (_holder, waiting) = waiting(&stage).await;
    stage.renewals([Answer::Forgets]);
    stage.pass(TTL).await;
    assert_eq!(stage.asked(), [TTL]);
    waiting.abort();
}

#[tokio::test]
async fn a_failure_that_has_passed_is_not_the_cause_of_a_timeout() {
    let stage = Stage::new();
    let locks = stage.client(Client::builder().ttl(TTL));
    let _holder = locks.mutex("lock").unwrap().lock().await.unwrap();
    let mutex = locks.mutex("lock").unwrap();
    stage.attempts([Answer::Fails]);
    let (result, ()) = tokio::join!(mutex.lock().wait(secs(5)), stage.pass(secs(5)));
    let error = result.unwrap_err();
    assert!(error.is_timeout(), "{error}");
}

/// Each outage alone ends no wait.
#[tokio::test]
async fn failures_with_an_answer_between_them_are_no_long_outage() {
    let stage = Stage::new();
    stage.attempts([Answer::AsMemory, Answer::Fails]);
    let (holder, waiting) = waiting(&stage).await;
    stage.pass(TTL).await;
    stage.attempts([Answer::Fails]);
    holder.release().await.unwrap();
    stage.pass(secs(1)).await;
    assert!(waiting.is_finished());
    waiting.await.unwrap().expect("it asked again").release().await.unwrap();
}

#[tokio::test]
async fn what_is_left_of_a_lease_is_told() {
    let stage = Stage::new();
    let locks = stage.client(Client::builder());
    let guard = locks.mutex("lock").unwrap().lock().ttl(TTL).no_renewal().await.unwrap();
    // The margin is a fiftieth.
    assert_eq!(guard.remaining(), Duration::from_millis(29_400));
    stage.clock.advance_to(stage.clock.now() + secs(20));
    assert_eq!(guard.remaining(), Duration::from_millis(9_400));
    stage.clock.advance_to(guard.valid_until());
    assert_eq!(guard.remaining(), Duration::ZERO);
}

#[tokio::test]
async fn permits_are_refused_where_there_are_none() {
    let stage = Stage::new();
    stage.has_no_permits();
    let multi = stage.client(Client::builder()).multi(["a"]).unwrap().kind(Kind::Permits { n: 1, of: 2 });
    assert!(multi.try_lock().await.unwrap_err().is_unsupported());
}

#[tokio::test]
async fn a_try_that_is_busy_asks_the_engine_for_nothing_more() {
    let stage = Stage::new();
    let locks = stage.client(Client::builder());
    let guard = locks.mutex("lock").unwrap().lock().await.unwrap();
    assert!(locks.mutex("lock").unwrap().try_lock().await.unwrap().is_none());
    stage.pass(secs(1)).await;
    assert_eq!(stage.removals(), 0);
    guard.release().await.unwrap();
    assert_eq!(stage.removals(), 1);
}

#[tokio::test]
async fn a_release_that_fails_is_tried_again_with_longer_pauses() {
    let stage = Stage::new();
    let guard = stage.client(Client::builder()).mutex("lock").unwrap().lock().await.unwrap();
    stage.releases([Answer::Fails; 4]);
    let release = tokio::spawn(guard.release());
    // The pauses are 10, 20, 40 and 80 ms.
    stage.pass(Duration::from_millis(149)).await;
    assert_eq!((stage.removals(), release.is_finished()), (4, false));
    stage.pass(Duration::from_millis(1)).await;
    release.await.unwrap().expect("the engine is back");
    assert_eq!(stage.removals(), 5);
}

#[tokio::test]
async fn a_release_that_the_engine_refuses_is_not_tried_again_by_its_caller() {
    let stage = Stage::new();
    let guard = stage.client(Client::builder()).mutex("lock").unwrap().lock().await.unwrap();
    stage.releases([Answer::Refuses]);
    let (released, ()) = tokio::join!(guard.release(), stage.pass(secs(1)));
    assert!(released.unwrap_err().is_denied());
}

#[tokio::test]
async fn the_answer_to_a_release_is_waited_for() {
    let stage = Stage::new();
    let guard = stage.client(Client::builder()).mutex("lock").unwrap().lock().await.unwrap();
    stage.releases([Answer::After(secs(1))]);
    let (released, ()) = tokio::join!(guard.release(), stage.pass(secs(1)));
    released.expect("the engine has confirmed it");
    assert_eq!(stage.removals(), 1);
}

/// An engine may forget a position long before the lease would end.
#[tokio::test]
async fn a_place_in_the_queue_is_renewed_as_often_as_its_engine_wants_it() {
    for degrade in [Degrade::fail_closed(), Degrade::fail_open(), Degrade::local_only()] {
        let stage = Stage::new();
        stage.place(secs(3));
        let holder = stage.client(Client::builder());
        let held = holder.mutex("lock").unwrap().lock().ttl(TTL * 2).no_renewal().await.unwrap();
        let locks = stage.client(Client::builder().ttl(TTL).layer(degrade.clone()));
        let mutex = locks.mutex("lock").unwrap();
        let waiting = tokio::spawn(async move { mutex.lock().await });
        stage.pass(secs(10)).await;
        let renewals = stage.asked().len();
        assert!((9..=11).contains(&renewals), "{degrade:?}: {renewals} renewals in 10 s");
        held.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
    }
}
