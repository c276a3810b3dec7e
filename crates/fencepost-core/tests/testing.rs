//! The client for tests of programs.

use std::future::IntoFuture;
use std::time::Duration;

use fencepost_core::{Client, ErrorKind, Loss, State, testing};

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[tokio::test]
async fn a_fault_concerns_its_lock_alone() {
    let (locks, clock, engine) = testing::client();
    let [sick, well] = ["sick", "well"].map(|name| locks.mutex(name).unwrap());
    let (sick_guard, well_guard) = (sick.lock().await.unwrap(), well.lock().await.unwrap());
    engine.fail("sick", ErrorKind::Unreachable);
    clock.advance(secs(20)).await;
    assert_eq!(sick_guard.state(), State::Suspect);
    assert_eq!(well_guard.state(), State::Held);
    engine.heal("sick");
    clock.advance(secs(2)).await;
    assert_eq!(sick_guard.state(), State::Held, "the renewals are repeated");
}

#[tokio::test(start_paused = true)]
async fn a_slow_release_of_a_dropped_guard_ends_with_its_delay() {
    let (locks, clock, engine) = testing::client();
    let guard = locks.mutex("a").unwrap().lock().await.unwrap();
    engine.slow("a", secs(3));
    drop(guard);
    let other = engine.other();
    clock.advance(secs(2)).await;
    assert!(other.mutex("a").unwrap().try_lock().await.unwrap().is_none());
    clock.advance(secs(1)).await;
    assert!(other.mutex("a").unwrap().try_lock().await.unwrap().is_some());
    assert_eq!(locks.backlog(), 0);
    locks.close().await;
}

#[tokio::test]
async fn a_lock_that_is_lost_goes_to_the_next_waiter() {
    let (locks, _, engine) = testing::client();
    let mutex = engine.client().mutex("a").unwrap();
    let guard = locks.mutex("a").unwrap().lock().await.unwrap();
    let lost = async {
        assert_eq!(engine.lose("a"), 1);
        assert_eq!(guard.lost().await, Loss::Deleted);
    };
    let (next, ()) = tokio::join!(mutex.lock().into_future(), lost);
    assert!(next.unwrap().token() > guard.token());
    assert!(guard.release().await.unwrap_err().is_lost());
    assert_eq!(engine.lose("no\nname"), 0);
}

#[tokio::test]
async fn a_jump_is_a_pause_of_the_process() {
    let (locks, clock, _) = testing::client();
    let guard = locks.mutex("a").unwrap().lock().ttl(secs(30)).await.unwrap();
    clock.advance(secs(3_600)).await;
    assert_eq!(guard.state(), State::Held);
    clock.jump(secs(31));
    assert_eq!(guard.state(), State::Lost(Loss::Expired));
}

#[tokio::test]
async fn a_lease_is_in_doubt_at_half_of_its_time() {
    let (locks, clock, _engine) = testing::client();
    let start = clock.now();
    let guard = locks.mutex("feed").unwrap().lock().ttl(secs(30)).no_renewal().await.unwrap();
    let warned = async { (guard.suspect().await, clock.now().since(start)) };
    let (warned, ()) = tokio::join!(warned, clock.advance(secs(30)));
    assert_eq!(warned, (State::Suspect, secs(15)));
}

#[tokio::test]
async fn an_engine_in_real_time_has_tokens_of_the_clock_and_fails_on_demand() {
    let engine = testing::TestEngine::in_real_time().unwrap();
    let locks = Client::builder().open(|_| Ok(engine.backend())).unwrap();
    assert!(locks.capabilities().clock_tokens);
    let (stock, of_another) = (locks.mutex("stock").unwrap(), engine.other().mutex("stock").unwrap());
    let first = stock.lock().await.unwrap();
    assert!(of_another.try_lock().await.unwrap().is_none());
    let token = first.token();
    first.release().await.unwrap();

    engine.fail_all(ErrorKind::Unreachable);
    assert!(stock.try_lock().await.is_err_and(|error| error.is_unreachable()));
    assert!(of_another.try_lock().await.unwrap().is_some_and(|second| second.token() > token));
    engine.heal_all();
    stock.lock().await.unwrap().release().await.unwrap();
    locks.close().await;
}
