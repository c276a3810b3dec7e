//! Many claims of one process for the same name at the same time.

use fencepost_testkit::needs;
use std::time::Duration;

use crate::kit::{SOON, connect, eventually, in_line, server};

/// The most keys in the queue: the waiters and the holder.
const MOST: usize = 65;

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_claims_are_granted_and_nobody_else_notices() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let (locks, other) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let own = locks.mutex("own").unwrap().lock().ttl(Duration::from_secs(3)).await.unwrap();
    let guard = locks.mutex("stock").unwrap().lock().await.unwrap();
    let mut asked = Vec::new();
    for _ in 0..2_000 {
        let mutex = locks.mutex("stock").unwrap();
        asked.push(tokio::spawn(async move { mutex.lock().await?.release().await }));
    }
    eventually("they wait in the queue", async || in_line(&other, "stock").await == MOST).await;
    assert!(locks.mutex("stock").unwrap().try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
    for asked in asked {
        tokio::time::timeout(SOON, asked).await.expect("it is its turn").unwrap().unwrap();
    }
    own.ensure_held().unwrap();
    own.release().await.unwrap();
    locks.close().await;
    other.close().await;
    assert!(etcd.look().keys("").is_empty());
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
