//! The server's counter of a folder's nodes, near its end.

use fencepost_testkit::needs;
use std::time::Duration;

use fencepost_core::{Kind, Severity};
use fencepost_testkit::zookeeper::{Config, ZooKeeper};
use zookeeper_client::{Acls, CreateMode};

use crate::kit::{LASTING, bare_at, client};

/// No claim is made from this number on.
const LAST: i32 = i32::MAX - (1 << 20) + 1;

/// A folder that stays although nobody claims its lock.
async fn keep(server: &ZooKeeper, folder: &str) {
    let bare = bare_at(server.address()).await;
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    bare.mkdir(&format!("{folder}/kept"), &options).await.expect("it is made");
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_near_the_end_of_the_counter_are_refused() {
    needs!(ZOOKEEPER);
    let mut server = ZooKeeper::start(&Config::new()).expect("a server starts");
    for folder in ["/count/lock", "/count/lock/locks", "/count/leases/leases"] {
        keep(&server, folder).await;
    }
    // Numbers are set by a restart, and after each restart there is a new client, because the driver of an old one may need as long as the
    // restart took until it has its connection again.
    let url = format!("{}/count?{LASTING}", server.url());
    server.set_counts(&[("/count/lock", LAST - 3)]).expect("it is set");
    let locks = client(&url).await;
    let mutex = locks.mutex("lock").expect("a good name");
    for _ in 0..3 {
        let guard = mutex.lock().await.expect("it is free");
        guard.release().await.expect("it was held");
    }
    for kind in [Kind::Mutex, Kind::Read, Kind::Write] {
        let multi = locks.multi(["lock"]).expect("a good name").kind(kind);
        let waiting =
            multi.lock().wait(Duration::from_secs(10)).await.map(drop).expect_err("it is near its end");
        let tried = multi.try_lock().await.map(drop).expect_err("it is near its end");
        for error in [waiting, tried] {
            let text = error.to_string();
            assert!(
                error.is_configuration() && text.contains("/count/lock") && text.contains("use another name"),
                "{text}"
            );
        }
    }
    locks.close().await;
    // Where all nodes tie, nobody is granted either.
    server.set_counts(&[("/count/lock", i32::MAX)]).expect("it is set");
    let locks = client(&url).await;
    let mutex = locks.mutex("lock").expect("a good name");
    let tied: Vec<_> = (0..20)
        .map(|_| {
            let mutex = mutex.clone();
            tokio::spawn(async move { mutex.lock().wait(Duration::from_secs(20)).await.map(drop) })
        })
        .collect();
    for claim in tied {
        let error = claim.await.expect("no panic").expect_err("it ties with the others");
        assert!(error.is_configuration(), "{error}");
    }
    drop(mutex);
    locks.close().await;
    // Permits have counters of their own.
    let counts = [("/count/lock", 7), ("/count/lock/locks", LAST), ("/count/leases/leases", LAST)];
    server.set_counts(&counts).expect("they are set");
    let locks = client(&url).await;
    for name in ["lock", "leases"] {
        let error = locks.semaphore(name, 3).expect("a good name").acquire_many(2).await.map(drop);
        assert!(error.expect_err("it is near its end").is_configuration());
    }
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_examination_warns_of_a_high_count() {
    needs!(ZOOKEEPER);
    let mut server = ZooKeeper::start(&Config::new()).expect("a server starts");
    for folder in ["/count/few", "/count/many", "/count/stock%2F42/leases"] {
        keep(&server, folder).await;
    }
    let counts =
        [("/count/few", (1 << 30) - 1), ("/count/many", 1 << 30), ("/count/stock%2F42/leases", LAST)];
    server.set_counts(&counts).expect("they are set");
    let locks = client(&format!("{}/count?{LASTING}", server.url())).await;
    let report = locks.examine().await.expect("it can look");
    let mut counters: Vec<_> =
        report.findings.iter().filter(|finding| finding.subject == "counter").collect();
    counters.sort_by_key(|finding| finding.says.clone());
    assert_eq!(counters.len(), 2, "{counters:?}");
    for (finding, part) in counters.into_iter().zip(["/count/many", "'stock/42'"]) {
        assert!(finding.severity == Severity::Warning && finding.says.contains(part), "{finding:?}");
    }
    locks.close().await;
}
