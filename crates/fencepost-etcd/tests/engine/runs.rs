//! Records of runs whose time is over.

use std::time::Duration;

use fencepost_core::Client;
use fencepost_testkit::needs;

use crate::kit::{eventually, registry, server};

/// A record ends with a lease, so nobody has to delete it.
#[tokio::test(flavor = "multi_thread")]
async fn old_runs_are_deleted() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let builder = Client::builder().history(Duration::from_millis(1));
    let locks = builder.connect(&registry(), &etcd.url()).await.unwrap();
    let records = || etcd.look().keys("").into_iter().filter(|key| key.contains("old")).count();
    locks.mutex("old").unwrap().lock().await.unwrap().release().await.unwrap();
    assert_eq!(records(), 1);
    locks.close().await;
    eventually("the record is deleted", async || records() == 0).await;
}
