//! Counts the requests of each operation. The clients' clocks stand still, so that a slow machine causes no other requests.

use fencepost_testkit::needs;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::kit::{SOON, client_of, eventually, server, stand};
use fencepost_core::Clock;
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
    let locks = client_of(&Clock::manual(), &etcd.url()).await;
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
    let locks = client_of(&Clock::manual(), &etcd.url()).await;
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
    // One more release, and perhaps a reading of the queue.
    assert!(all <= 2 * count + 4, "{sent:?}");
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn held_locks_cost_the_heartbeats_of_their_lease_and_nothing_else() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let clock = Clock::manual();
    let locks = client_of(&clock, &etcd.url()).await;
    let mut guards = Vec::new();
    for number in 0..200 {
        let mutex = locks.mutex(&format!("held-{number}")).unwrap();
        guards.push(mutex.lock().ttl(2 * SOON).await.unwrap());
    }
    let start = etcd.requests().unwrap();
    // All of them are due at the same time.
    let renew_all = async || {
        clock.advance_to(clock.now() + SOON);
        for guard in &guards {
            eventually("they are renewed", async || {
                // A renewal that failed is repeated in a moment.
                clock.advance_to(clock.now() + Duration::from_millis(1));
                guard.remaining() > SOON
            })
            .await;
        }
    };
    renew_all().await;
    // Each key has a watch on the client's one stream, and is read once for it, 64 of them by one request.
    eventually("they are watched", || async { etcd.watches().unwrap() == 201 }).await;
    let reads = || since(&etcd, &start).get("Txn").copied();
    eventually("they are read", || async { reads() == Some(200_u64.div_ceil(64)) }).await;
    let before = etcd.requests().unwrap();
    for _ in 0..3 {
        renew_all().await;
    }
    // A read follows each renewal and shows that the leader renewed the lease.
    let sent = since(&etcd, &before);
    let [kept, reads] = ["LeaseKeepAlive", "Range"].map(|method| sent.get(method).copied().unwrap_or(0));
    assert!(sent.len() == 2 && (3..=6).contains(&kept) && reads <= kept, "{sent:?}");
    for guard in guards {
        guard.release().await.unwrap();
    }
    locks.close().await;
}
