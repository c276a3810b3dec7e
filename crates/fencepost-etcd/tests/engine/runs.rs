//! Records of runs whose time is over.

use std::time::Duration;

use fencepost_core::Client;
use fencepost_testkit::needs;

use crate::kit::{eventually, registry, server};

/// Clients delete old records beside their own writes, also if all writes have the same rhythm.
#[tokio::test(flavor = "multi_thread")]
async fn old_runs_are_deleted() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let builder = Client::builder().history(Duration::from_millis(1));
    let locks = builder.connect(&registry(), &etcd.url()).await.unwrap();
    let records = || etcd.look().keys("").into_iter().filter(|key| key.contains("old")).count();
    let mutex = locks.mutex("new").unwrap();
    // A cycle makes four revisions. Each round shifts the next ones by one.
    for round in 0..4 {
        etcd.look().run(&["put", "x", &round.to_string()]);
        locks.mutex("old").unwrap().lock().await.unwrap().release().await.unwrap();
        assert!(round > 0 || records() == 1);
        eventually("the record is deleted", async || {
            for _ in 0..100 {
                mutex.lock().await.unwrap().release().await.unwrap();
            }
            records() == 0
        })
        .await;
    }
    locks.close().await;
}
