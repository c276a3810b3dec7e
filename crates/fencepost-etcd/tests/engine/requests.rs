//! Counts the requests of each operation.

use fencepost_testkit::needs;
use std::collections::BTreeMap;

use crate::kit::{SHORT, connect, eventually, server, stand};
use fencepost_testkit::etcd::Etcd;

fn since(etcd: &Etcd, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let mut counts = etcd.requests().unwrap();
    for (method, count) in &mut counts {
        *count -= before.get(method).copied().unwrap_or(0);
    }
    counts.retain(|_, count| *count > 0);
    counts
}

#[tokio::test(flavor = "multi_thread")]
async fn an_uncontended_cycle_is_two_requests() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let locks = connect(&etcd.url()).await;
    let mutex = locks.mutex("stock").unwrap();
    mutex.lock().await.unwrap().release().await.unwrap();
    let before = etcd.requests().unwrap();
    for _ in 0..50 {
        mutex.lock().await.unwrap().release().await.unwrap();
    }
    let sent = since(&etcd, &before);
    assert_eq!(sent, BTreeMap::from([("DeleteRange".into(), 50), ("Txn".into(), 50)]));
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handoff_costs_no_request_of_its_own() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let locks = connect(&etcd.url()).await;
    let mutex = locks.mutex("stock").unwrap();
    let mut guard = mutex.lock().await.unwrap();
    // The queue is watched from now on.
    let waiting = stand(&locks, "stock", 2).await;
    guard.release().await.unwrap();
    guard = waiting.granted().await;
    let before = etcd.requests().unwrap();
    let (mut running, count) = (Vec::new(), 50);
    for _ in 0..count {
        let mutex = mutex.clone();
        running.push(tokio::spawn(async move { mutex.lock().await.unwrap().release().await.unwrap() }));
    }
    guard.release().await.unwrap();
    for task in running {
        task.await.unwrap();
    }
    let sent = since(&etcd, &before);
    let all: u64 = sent.values().sum();
    // One more release, and perhaps a periodic reading or renewal.
    assert!(all <= 2 * count + 4, "{sent:?}");
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn held_locks_cost_the_heartbeats_of_their_lease_and_nothing_else() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let locks = connect(&etcd.url()).await;
    let mut guards = Vec::new();
    for number in 0..200 {
        let mutex = locks.mutex(&format!("held-{number}")).unwrap();
        guards.push(mutex.lock().ttl(SHORT).await.unwrap());
    }
    // All of them are due at the same time from the first renewal on.
    let kept = |sent: &BTreeMap<String, u64>| sent.get("LeaseKeepAlive").copied().unwrap_or(0);
    let start = etcd.requests().unwrap();
    eventually("they are renewed", || async { kept(&since(&etcd, &start)) >= 1 }).await;
    // Each key has a watch on the client's one stream, and is read once for it, before the next renewal.
    eventually("they are watched", || async { etcd.watches().unwrap() == 201 }).await;
    let watched = etcd.requests().unwrap();
    eventually("they are renewed once more", || async { kept(&since(&etcd, &watched)) >= 2 }).await;
    let before = etcd.requests().unwrap();
    eventually("they are renewed again and again", || async { kept(&since(&etcd, &before)) >= 3 }).await;
    let sent = since(&etcd, &before);
    // A read follows each renewal and shows that the leader renewed the lease.
    let reads = sent.get("Range").copied().unwrap_or(0);
    assert!(sent.len() <= 2 && kept(&sent) <= 6 && reads <= kept(&sent) + 1, "{sent:?}");
    for guard in guards {
        guard.release().await.unwrap();
    }
    locks.close().await;
}
