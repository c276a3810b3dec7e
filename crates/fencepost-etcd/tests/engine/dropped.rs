//! An entry that is dropped while its request is under way.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{BackendUrl, Claim, ClaimId, Client, HolderInfo, Mode, Name, Registry, Want};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::server::Proxy;

use crate::kit::{SOON, eventually, server};

/// The request may reach the server behind the deletion of its key.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_may_still_arrive_finds_a_tombstone() {
    needs!(ETCD);
    let etcd = server();
    let mut proxy = Proxy::start(etcd.address()).unwrap();
    let helper = Client::builder().connect(&Registry::new(), "memory:").await.unwrap();
    let url = BackendUrl::parse(&format!("etcd://{}", proxy.address())).unwrap();
    let backend = fencepost_etcd::open(url, helper.runtime().clone()).await.unwrap();
    let claim = |id| {
        let want = Want { name: Name::new("stock").unwrap(), mode: Mode::Exclusive };
        let (holder, runtime) = (HolderInfo::labelled("test"), helper.runtime().clone());
        Arc::new(Claim::new(ClaimId::from_u128(id), want, SOON, holder, runtime))
    };
    // The lease is there from now on.
    let mut first = backend.enter(claim(1));
    first.attempt().await.unwrap();
    first.withdraw().await.unwrap();
    drop(first);
    proxy.silence().unwrap();
    let mut second = backend.enter(claim(2));
    let answer = tokio::time::timeout(Duration::from_millis(200), second.attempt()).await;
    answer.expect_err("the network is silent");
    drop(second);
    proxy.mend().unwrap();
    let tombstones = || etcd.look().keys("").iter().filter(|key| key.contains("left/")).count();
    eventually("the request finds a tombstone", || async { tombstones() == 1 }).await;
    assert!(etcd.look().keys("stock/").is_empty());
    backend.close().await;
    helper.close().await;
}
