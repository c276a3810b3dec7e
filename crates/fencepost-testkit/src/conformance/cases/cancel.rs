//! A future that is dropped at any await leaves nothing at the engine.

use crate::chaos::Odds;
use crate::conformance::Stage;
use crate::conformance::stage::{LONG, SOON, lock};
use crate::history::Mode;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

const X: Mode = Mode::Exclusive;

/// Polls `work` at most `most` times, each time when it is woken, and then drops it. `None` means that it was
/// not done.
pub(super) async fn polled<F: Future>(most: u32, work: F) -> Option<F::Output> {
    let mut work = pin!(work);
    let mut polls = 0;
    poll_fn(|cx| {
        if polls == most {
            return Poll::Ready(None);
        }
        polls += 1;
        match work.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            // After the last poll the future is dropped at once.
            Poll::Pending if polls == most => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

pub(super) async fn cancel_at_every_await(stage: Stage) {
    // With a delay of each answer, every request has an await of its own in each engine.
    let slow = Odds { late_request: 1000, late_reply: 1000, delay: Duration::from_millis(4), ..Odds::NONE };
    for client in [stage.client().await, stage.troubled(slow, LONG).await] {
        let mut done = false;
        for most in 0..50 {
            let mutex = client.mutex("lock").expect("a good name");
            let request = polled(most, async { mutex.lock().await.expect("it is free") });
            let answer = tokio::time::timeout(SOON, request).await.expect("it is free");
            done = answer.is_some();
            drop(answer);
            stage.assert_free("lock").await;
            if done {
                break;
            }
        }
        assert!(done, "an uncontended lock has more than 50 awaits");
    }
}

/// Polls `work` once, and keeps it: it is neither polled nor dropped.
async fn polled_once<F: Future>(mut work: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// A caller need not poll its request, and nobody waits for that: other requests of the client are answered.
pub(super) async fn a_request_that_is_not_polled_holds_up_no_other(stage: Stage) {
    let client = stage.client().await;
    let mutex = client.mutex("lock").expect("a good name");
    {
        let mut idle = pin!(mutex.lock().into_future());
        let guard = polled_once(idle.as_mut()).await;
        let tried = tokio::time::timeout(SOON, mutex.try_lock().into_future()).await;
        let tried = tried.expect("it is answered at once").expect("busy is no error");
        assert!(guard.is_none() || tried.is_none(), "both hold");
    }
    stage.eventually("nothing is left", || async { stage.is_granted("lock").await }).await;
    if !client.capabilities().permits {
        return;
    }
    let pool = client.semaphore("pool", 3).expect("a good name");
    {
        let mut idle = pin!(pool.acquire().into_future());
        let guard = polled_once(idle.as_mut()).await;
        let other = tokio::time::timeout(SOON, pool.acquire().into_future()).await;
        let other = other.expect("permits are free").expect("permits are free");
        let tried = tokio::time::timeout(SOON, pool.try_acquire().into_future()).await;
        tried.expect("it is answered at once").expect("busy is no error");
        other.release().await.expect("it was held");
        drop(guard);
    }
    let all = tokio::time::timeout(SOON, pool.acquire_many(3).into_future()).await;
    all.expect("permits are free").expect("permits are free").release().await.expect("it was held");
}

pub(super) async fn cancel_in_the_queue(stage: Stage) {
    let client = stage.client().await;
    // Dropped while it waits: the next waiter is granted.
    let guard = lock(&client, "lock", X).await.expect("it is free");
    let first = stage.stand("lock", X).await;
    let second = stage.stand("lock", X).await;
    first.give_up().await;
    guard.release().await.expect("it was held");
    second.granted().await.release().await.expect("it was held");
    // Dropped just when it is granted: the next waiter is granted.
    for _ in 0..20 {
        let guard = lock(&client, "lock", X).await.expect("it is free");
        let first = stage.stand("lock", X).await;
        let second = stage.stand("lock", X).await;
        let (released, ()) = tokio::join!(guard.release(), first.give_up());
        released.expect("it was held");
        second.granted().await.release().await.expect("it was held");
    }
    // All of them are dropped.
    let guard = lock(&client, "lock", X).await.expect("it is free");
    let mut line = Vec::new();
    for _ in 0..5 {
        line.push(stage.stand("lock", X).await);
    }
    for waiting in line {
        waiting.give_up().await;
    }
    guard.release().await.expect("it was held");
    stage.assert_free("lock").await;
}

pub(super) async fn cancel_of_release(stage: Stage) {
    let slow = Odds { late_request: 1000, late_reply: 1000, delay: Duration::from_millis(4), ..Odds::NONE };
    for client in [stage.client().await, stage.troubled(slow, LONG).await] {
        let mut done = false;
        for most in 0..50 {
            let guard = lock(&client, "lock", X).await.expect("it is free");
            done =
                tokio::time::timeout(SOON, polled(most, guard.release())).await.expect("it comes").is_some();
            stage.assert_free("lock").await;
            if done {
                break;
            }
        }
        assert!(done, "a release has more than 50 awaits");
    }
}
