//! Many claims of one process for the same name at the same time.

use fencepost_testkit::needs;
use std::time::{Duration, Instant};

use crate::kit::{SOON, connect, eventually, in_line, server};
use fencepost_core::Client;

/// The most keys in the queue: the waiters and the holder.
const MOST: usize = 65;

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_claims_are_granted_and_nobody_else_notices() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let (locks, other) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let start = Instant::now();
    // A busy machine holds up the renewals of both of these locks, and a burst only those of its own client.
    while !burst(&locks, &other).await {
        assert!(start.elapsed() < 3 * SOON, "the machine is too slow");
    }
    locks.close().await;
    other.close().await;
    assert!(etcd.look().keys("").is_empty());
}

/// Makes two thousand claims of a client beside a lock of it and one of another client. `false`: both were lost.
async fn burst(locks: &Client, other: &Client) -> bool {
    let short = async |locks: &Client, name| {
        locks.mutex(name).unwrap().lock().ttl(Duration::from_secs(9)).await.unwrap()
    };
    let (own, others) = (short(locks, "own").await, short(other, "others").await);
    let guard = locks.mutex("stock").unwrap().lock().await.unwrap();
    let mut asked = Vec::new();
    for _ in 0..2_000 {
        let mutex = locks.mutex("stock").unwrap();
        asked.push(tokio::spawn(async move { mutex.lock().await?.release().await }));
    }
    eventually("they wait in the queue", async || in_line(other, "stock").await == MOST).await;
    assert!(locks.mutex("stock").unwrap().try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
    for asked in asked {
        tokio::time::timeout(SOON, asked).await.expect("it is its turn").unwrap().unwrap();
    }
    let (own, others) = (own.release().await, others.release().await);
    if own.is_err() && others.is_err() {
        return false;
    }
    own.unwrap();
    true
}

#[tokio::test]
async fn claims_of_a_process_come_in_the_order_of_their_calls() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let (locks, other) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let guard = other.mutex("stock").unwrap().lock().await.unwrap();
    let ask = |_| {
        let mutex = locks.mutex("stock").unwrap();
        tokio::spawn(async move { mutex.lock().await.unwrap() })
    };
    let asked: Vec<_> = (0..300).map(ask).collect();
    eventually("they wait in the queue", async || in_line(&other, "stock").await == MOST).await;
    let mut last = guard.token();
    guard.release().await.unwrap();
    for asked in asked {
        let guard = tokio::time::timeout(SOON, asked).await.expect("it is its turn").unwrap();
        assert!(guard.token() > last, "a later one was granted before");
        last = guard.token();
        guard.release().await.unwrap();
    }
    locks.close().await;
    other.close().await;
}
