//! A lock with more claims than one call of a script reads.

use fencepost_testkit::needs;
use std::future::IntoFuture;
use std::time::Duration;

use fencepost_core::{Client, Guard};
use fencepost_testkit::redis::{Config, Redis};
use futures_util::future::join_all;

use crate::kit::{LONG, SOON, connect, eventually, within};

const READERS: usize = 1_500;
/// A lease that ends within a test, and is longer than a busy machine takes to grant it to all readers.
const BRIEF: Duration = Duration::from_secs(10);

/// The number of claims that hold the lock together.
async fn readers(locks: &Client, lease: Duration) -> Vec<Guard> {
    let book = locks.rwlock("book").expect("a name");
    let mut guards = Vec::with_capacity(READERS);
    while guards.len() < READERS {
        // Few at once: a busy machine answers them in time.
        let some = join_all((0..50).map(|_| book.read().ttl(lease).no_renewal().into_future())).await;
        guards.extend(some.into_iter().map(|guard| guard.expect("nobody writes")));
    }
    guards
}

#[tokio::test(flavor = "multi_thread")]
async fn all_holders_are_listed_and_each_can_be_evicted() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new()).unwrap();
    let locks = connect(&redis.url(), LONG).await;
    let guards = readers(&locks, LONG).await;
    let info = locks.inspect("book").await.unwrap();
    let mut tokens: Vec<_> = info.claims.iter().filter_map(|claim| claim.token).collect();
    let mut held: Vec<_> = guards.iter().map(|guard| guard.token()).collect();
    tokens.sort_unstable();
    held.sort_unstable();
    assert_eq!(tokens, held);
    assert_eq!(info.last_token, held.last().copied());
    for guard in [&guards[0], &guards[READERS / 2], &guards[READERS - 1]] {
        locks.evict("book", guard.token(), &Default::default()).await.unwrap();
        within(SOON, guard.lost()).await;
    }
    let unknown = locks.evict("book", fencepost_core::Token::new(1), &Default::default()).await;
    assert!(unknown.is_err_and(|error| error.to_string().contains("no grant has token 1")));
    drop(guards);
    within(3 * SOON, locks.close()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_does_not_wait_gets_a_lock_whose_holders_are_all_dead() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new()).unwrap();
    let locks = connect(&redis.url(), LONG).await;
    let guards = readers(&locks, BRIEF).await;
    // A look changes nothing, so that all of them are still to be cleared away.
    fencepost_testkit::wait::eventually(BRIEF + SOON, "their leases end", async || {
        !locks.inspect("book").await.unwrap().claims.iter().any(|claim| claim.holds())
    })
    .await;
    let writer = locks.rwlock("book").unwrap().try_write().await.unwrap().expect("nobody holds it");
    writer.release().await.unwrap();
    drop(guards);
    eventually("nothing of them is left", async || redis.look().ask::<i64>(&["HLEN", "fencepost:book"]) == 1)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_readers_than_one_call_renews_are_all_renewed() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new()).unwrap();
    let locks = connect(&redis.url(), Duration::from_secs(9)).await;
    let book = locks.rwlock("book").expect("a name");
    let guards = join_all((0..300).map(|_| book.read().into_future())).await;
    let guards: Vec<Guard> = guards.into_iter().map(|guard| guard.expect("nobody writes")).collect();
    let first: Vec<_> = guards.iter().map(|guard| guard.valid_until()).collect();
    eventually("each is renewed", async || {
        guards.iter().zip(&first).all(|(guard, first)| guard.valid_until() > *first)
    })
    .await;
    drop(guards);
    within(3 * SOON, locks.close()).await;
}
