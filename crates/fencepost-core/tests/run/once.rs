//! Work that runs once.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_core::Eviction;

use crate::stage::{Ends, Stage, TTL};

#[tokio::test]
async fn run_acquires_works_and_releases() {
    let mut stage = Stage::new();
    let locks = stage.client();
    let mutex = locks.mutex("lock").unwrap();
    let inside = locks.mutex("lock").unwrap();
    let token = mutex.lock().run(|lock| async move {
        assert!(inside.try_lock().run(|_| async {}).await.unwrap().is_none(), "it is busy");
        lock.token()
    });
    let token = token.await.unwrap();
    let next = mutex.try_lock().run(|lock| async move { lock.token() }).await.unwrap();
    assert!(next.expect("it was released") > token);
    let both = locks.multi(["a", "b"]).unwrap();
    assert_eq!(both.lock().run(|held| async move { held.len() }).await.unwrap(), 2);
    assert_eq!(both.try_lock().run(|held| async move { held.len() }).await.unwrap(), Some(2));
}

#[tokio::test]
async fn run_drops_its_work_when_the_lock_is_lost_and_says_so() {
    let mut stage = Stage::new();
    let (locks, operator) = (stage.client(), stage.client());
    let mutex = locks.mutex("lock").unwrap();
    let (begun, begins) = tokio::sync::oneshot::channel();
    let ended = Arc::new(AtomicBool::new(false));
    let ends = Ends(Arc::clone(&ended));
    let work = tokio::spawn(async move {
        mutex
            .lock()
            .run(|lock| async move {
                let _ends = ends;
                begun.send(lock.token()).unwrap();
                pending::<()>().await;
            })
            .await
    });
    let token = begins.await.unwrap();
    operator.evict("lock", token, &Eviction::new(true)).await.unwrap();
    stage.pass(TTL).await;
    let error = work.await.unwrap().unwrap_err();
    assert!(error.is_lost(), "{error}");
    assert!(ended.load(Ordering::SeqCst), "the work was dropped");
}

#[tokio::test]
async fn the_result_of_work_that_outlived_its_lock_does_not_count() {
    let mut stage = Stage::new();
    let locks = stage.client();
    let mutex = locks.mutex("lock").unwrap();
    let clock = stage.clock.clone();
    // The process is paused for longer than the lease during the last step.
    let result = mutex.lock().run(|_| async move { clock.advance_to(clock.now() + TTL) }).await;
    assert!(result.unwrap_err().is_lost());
}

#[tokio::test]
async fn the_time_left_is_compared_with_the_time_needed() {
    let mut stage = Stage::new();
    let locks = stage.client();
    let guard = locks.mutex("lock").unwrap().lock().no_renewal().await.unwrap();
    guard.ensure_held_for(TTL / 2).unwrap();
    stage.pass(TTL * 2 / 3).await;
    assert!(guard.ensure_held_for(TTL / 2).unwrap_err().is_timeout());
    guard.ensure_held_for(TTL / 10).unwrap();
    stage.pass(TTL).await;
    assert!(guard.ensure_held_for(Duration::ZERO).unwrap_err().is_lost());
}

fn assert_send<T: Send>(value: T) -> T {
    value
}

#[tokio::test]
async fn the_future_of_run_is_send_if_the_work_is() {
    let locks = Stage::new().client();
    let mutex = locks.mutex("lock").unwrap();
    assert_send(mutex.lock().run(|_| async {})).await.unwrap();
    assert_send(mutex.try_lock().run(|_| async {})).await.unwrap();
    assert_send(mutex.lock().run_until_done(|_| async {})).await.unwrap();
}
