//! Processes that stop or die while they wait or hold.

use crate::kit::{
    LONG, Other, SOON, TRIES, Waiting, connect, eventually, granted, line_of, lock, wait, within,
};
use fencepost_core::Client;
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis};
use std::time::{Duration, Instant};

/// Fails unless `attempt` costs less than `limit`. It begins anew on a machine that is too slow: then it costs more, or shows nothing.
async fn assert_costs_less(limit: Duration, attempt: impl AsyncFn() -> Option<Duration>) {
    let mut costs = Vec::new();
    for _ in 0..TRIES {
        costs.push(attempt().await);
        if costs.last().is_some_and(|cost| cost.is_some_and(|cost| cost < limit)) {
            return;
        }
    }
    panic!("it cost {costs:?}");
}

/// Has this client wait for a lock that is held with a short lease. `None`: that lease has ended already.
async fn wait_for_short(locks: &Client) -> Option<Waiting> {
    let own = locks.clone();
    let waiting = tokio::spawn(async move { own.mutex("lock")?.lock().await });
    eventually("it waits in the queue", async || {
        waiting.is_finished() || locks.inspect("lock").await.is_ok_and(|info| info.waiters().count() == 1)
    })
    .await;
    (!waiting.is_finished()).then_some(waiting)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_winner_that_is_stopped_while_its_message_waits_does_not_hold_beside_its_successor() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new()).unwrap();
    let locks = connect(&redis.url(), LONG).await;
    let first = lock(&locks, "lock").await;
    let winner = Other::waits(&redis.url(), 1, LONG);
    line_of(&locks, "lock", 1).await;
    let behind = wait(&locks, "lock", 2).await;
    winner.stop();
    first.release().await.unwrap();
    // The message lies in the socket of the one that is stopped, and its unconfirmed grant ends.
    let next = granted(behind, SOON).await;
    winner.cont();
    tokio::time::timeout(Duration::from_secs(3), next.lost()).await.expect_err("it is its own");
    next.ensure_held().expect("it is its own");
    let released = Instant::now();
    next.release().await.unwrap();
    let held = winner.heard("held").expect("its lease is long");
    assert!(held >= released, "it held {:?} before its successor's release", released - held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_with_many_waiters_costs_those_behind_it_two_seconds() {
    needs!(REDIS);
    assert_costs_less(Duration::from_secs(3), kill_a_crowd).await;
}

async fn kill_a_crowd() -> Option<Duration> {
    let redis = Redis::start(&Config::new()).unwrap();
    let locks = connect(&redis.url(), LONG).await;
    let first = lock(&locks, "lock").await;
    let mut crowd = Other::waits(&redis.url(), 250, LONG);
    line_of(&locks, "lock", 250).await;
    let behind = wait(&locks, "lock", 251).await;
    crowd.kill();
    let killed = Instant::now();
    first.release().await.unwrap();
    let next = granted(behind, SOON).await;
    let cost = killed.elapsed();
    next.release().await.unwrap();
    Some(cost)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_killed_while_it_is_handed_the_lock_costs_two_seconds() {
    needs!(REDIS);
    assert_costs_less(Duration::from_secs(3), kill_a_winner).await;
}

async fn kill_a_winner() -> Option<Duration> {
    let redis = Redis::start(&Config::new()).unwrap();
    let locks = connect(&redis.url(), LONG).await;
    let first = lock(&locks, "lock").await;
    let mut winner = Other::waits(&redis.url(), 1, LONG);
    line_of(&locks, "lock", 1).await;
    let behind = wait(&locks, "lock", 2).await;
    // Stopped it takes messages and answers nothing, so that it dies between its turn and its word.
    winner.stop();
    first.release().await.unwrap();
    winner.kill();
    let killed = Instant::now();
    let next = granted(behind, SOON).await;
    let cost = killed.elapsed();
    next.release().await.unwrap();
    Some(cost)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_holder_costs_its_lease_and_a_second() {
    needs!(REDIS);
    let ttl = Duration::from_secs(2);
    assert_costs_less(ttl + Duration::from_secs(2), async || kill_a_holder(ttl).await).await;
}

async fn kill_a_holder(ttl: Duration) -> Option<Duration> {
    let redis = Redis::start(&Config::new()).unwrap();
    let locks = connect(&redis.url(), LONG).await;
    let mut holder = Other::waits(&redis.url(), 1, ttl);
    tokio::task::block_in_place(|| holder.heard("held"))?;
    let waiting = wait_for_short(&locks).await?;
    holder.kill();
    let killed = Instant::now();
    granted(waiting, ttl + SOON).await.release().await.unwrap();
    Some(killed.elapsed())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_stopped_past_its_lease_knows_at_once_when_it_wakes() {
    needs!(REDIS);
    assert_costs_less(Duration::from_secs(1), wake_a_holder).await;
}

async fn wake_a_holder() -> Option<Duration> {
    let redis = Redis::start(&Config::new()).unwrap();
    let locks = connect(&redis.url(), LONG).await;
    let holder = Other::waits(&redis.url(), 1, Duration::from_secs(1));
    tokio::task::block_in_place(|| holder.heard("held"))?;
    let waiting = wait_for_short(&locks).await?;
    holder.stop();
    if waiting.is_finished() {
        return None;
    }
    let next = granted(waiting, SOON).await;
    let woken = Instant::now();
    holder.cont();
    // It asserts that `ensure_held` fails with it.
    let told = tokio::task::block_in_place(|| holder.heard("lost"))?;
    next.ensure_held().unwrap();
    next.release().await.unwrap();
    Some(told - woken)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_after_the_lease_has_ended_leaves_the_lock_free() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new()).unwrap();
    let locks = connect(&redis.url(), LONG).await;
    let mutex = locks.mutex("lock").unwrap();
    let late = mutex.lock().ttl(Duration::from_millis(300)).no_renewal().await.unwrap();
    late.lost().await;
    // A look changes nothing, so that the release is the first to clear the grant away.
    eventually("its lease ends", async || {
        !locks.inspect("lock").await.unwrap().claims.iter().any(|claim| claim.holds())
    })
    .await;
    assert!(late.release().await.unwrap_err().is_lost());
    let next = mutex.try_lock().await.unwrap().expect("nobody holds it");
    next.release().await.unwrap();
}

/// Lua takes no more than 8,000 values at once.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_short_leases_on_one_lock_are_renewed() {
    needs!(REDIS);
    const READERS: usize = 4_200;
    let ttl = Duration::from_secs(12);
    let redis = Redis::start(&Config::new()).unwrap();
    let locks = connect(&redis.url(), ttl).await;
    let readers: Vec<_> = (0..READERS)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move { locks.rwlock("book")?.read().wait(LONG).await })
        })
        .collect();
    let mut guards = Vec::with_capacity(READERS);
    for reader in readers {
        guards.push(reader.await.expect("no panic").expect("nobody writes"));
    }
    let granted = guards.iter().map(|guard| guard.valid_until()).max().expect("there are some");
    // Each was renewed when each is valid for longer than any was at first.
    eventually("all are renewed", async || guards.iter().all(|guard| guard.valid_until() > granted)).await;
    guards.iter().for_each(|guard| guard.ensure_held().expect("it was renewed in time"));
    drop(guards);
    within(SOON, locks.close()).await;
}
