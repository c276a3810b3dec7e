//! Records of runs whose time is over.

use std::time::Duration;

use fencepost_core::{Client, Clock};
use fencepost_testkit::needs;

use crate::kit::{client_by, eventually, server};

/// Clients delete old records beside their own writes, also if all writes have the same rhythm. A run has no lease, because each process would
/// leave one.
#[tokio::test(flavor = "multi_thread")]
async fn old_runs_are_deleted_and_leave_no_lease() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let builder = Client::builder().history(Duration::from_secs(31 * 86_400)).ttl(Duration::from_secs(600));
    // By its clock the server always answers the close in time.
    let locks = client_by(builder, &Clock::manual(), &etcd.url()).await;
    let mutex = locks.mutex("new").unwrap();
    let records = || etcd.look().keys("").into_iter().filter(|key| key.contains("old")).count();
    // A cycle makes four revisions. Each round shifts the next ones by one.
    for round in 0..4 {
        etcd.look().run(&["put", "x", &round.to_string()]);
        etcd.look().run(&["put", "%fencepost/run/old", r#"{"fencepost":1,"keep_until":1}"#]);
        assert_eq!(records(), 1);
        eventually("the record is deleted", async || {
            for _ in 0..100 {
                mutex.lock().await.unwrap().release().await.unwrap();
            }
            records() == 0
        })
        .await;
    }
    locks.close().await;
    let leases = etcd.look().run(&["lease", "list"]);
    assert!(leases.contains("found 0 leases"), "{leases}");
}
