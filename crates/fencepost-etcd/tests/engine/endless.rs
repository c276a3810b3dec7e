//! Keys without a lease in a lock's queue: put by hand, or by a program that does not use locks.

use fencepost_testkit::needs;
use std::time::Duration;

use crate::kit::{connect, server, stand};
use fencepost_core::{Client, Eviction, Page};

const NOW: Eviction = Eviction::new(true);

async fn told(locks: &Client) -> String {
    let report = locks.examine().await.expect("it answers");
    report.findings.iter().map(|finding| format!("{finding}\n")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_without_a_lease_is_listed_and_can_be_evicted() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let locks = connect(&format!("{}?prefix=locks/", etcd.url())).await;
    etcd.look().run(&["put", "locks/stock/by-hand", "ann was here"]);
    assert!(locks.mutex("stock").unwrap().try_lock().await.unwrap().is_none(), "it holds the lock");
    let listing = locks.list("", &Page::default()).await.unwrap();
    let info = listing.resources.first().expect("it is listed");
    let held = info.holders().next().unwrap();
    assert!(held.endless && held.expires_in.is_none(), "{held:?}");
    for word in ["unknown", "locks/stock/by-hand", "ann was here"] {
        assert!(held.holder.label.contains(word), "{held:?}");
    }
    let report = told(&locks).await;
    assert!(report.contains("locks/stock/by-hand"), "{report}");
    let token = held.token.unwrap();
    let error = locks.evict("stock", token, &Eviction::default()).await.unwrap_err();
    assert!(error.is_unsupported() && error.to_string().contains("deletes the key"), "{error}");
    let waiting = stand(&locks, "stock", 2).await;
    locks.evict("stock", token, &NOW).await.unwrap();
    let guard = waiting.granted().await;
    assert!(!locks.inspect("stock").await.unwrap().claims[0].endless);
    guard.release().await.unwrap();
    locks.close().await;
    // The examinations have left the record of a run.
    assert_eq!(etcd.look().keys(""), ["locks/%fencepost/run/fencepost%2Fdoctor"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_looks_like_one_of_ours_leaves_no_mark() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let locks = connect(&etcd.url()).await;
    let guard = locks.mutex("stock").unwrap().lock().await.unwrap();
    let key = etcd.look().keys("stock/").remove(0);
    let value = etcd.look().run(&["get", "--print-value-only", &key]);
    guard.release().await.unwrap();
    etcd.look().run(&["put", "stock/6b-9", value.trim()]);
    let info = locks.inspect("stock").await.unwrap();
    assert!(info.claims[0].endless, "{info:?}");
    locks.evict("stock", info.claims[0].token.unwrap(), &NOW).await.unwrap();
    locks.close().await;
    assert!(etcd.look().keys("").is_empty(), "{:?}", etcd.look().keys(""));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_others_is_no_list_of_locks() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let locks = connect(&etcd.url()).await;
    etcd.look().run(&["put", "config/port", "80"]);
    assert!(locks.list("", &Page::default()).await.unwrap().resources.is_empty());
    let report = told(&locks).await;
    assert!(report.contains("config/port") && report.contains("prefix="), "{report}");
    // With a waiter it is a lock.
    let waiting = stand(&locks, "config", 2).await;
    let listing = locks.list("", &Page::default()).await.unwrap();
    assert_eq!(listing.resources.len(), 1);
    assert!(told(&locks).await.contains("hold locks forever: config by config/port"));
    etcd.look().run(&["del", "config/port"]);
    waiting.granted().await.release().await.unwrap();
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_named_like_the_folder_is_reported() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let locks = connect(&format!("{}?prefix=locks/", etcd.url())).await;
    etcd.look().run(&["put", "locks/stock/", "a folder"]);
    let report = told(&locks).await;
    assert!(report.contains("hold locks forever: stock by locks/stock/"), "{report}");
    let waited = locks.mutex("stock").unwrap().lock().wait(Duration::from_secs(2)).await;
    let error = waited.unwrap_err().to_string();
    assert!(error.contains("by the key locks/stock/ without a lease"), "{error}");
    let listing = locks.list("", &Page::default()).await.unwrap();
    let held = listing.resources[0].holders().next().unwrap();
    locks.evict("stock", held.token.unwrap(), &NOW).await.unwrap();
    locks.mutex("stock").unwrap().try_lock().await.unwrap().expect("it is free").release().await.unwrap();
    locks.close().await;
    // Without a prefix it may be any key. Then the report names the lock that it would block.
    let locks = connect(&etcd.url()).await;
    etcd.look().run(&["put", "stock/", "a folder"]);
    let report = told(&locks).await;
    assert!(report.contains("stock by stock/") && report.contains("prefix="), "{report}");
    assert!(locks.list("", &Page::default()).await.unwrap().resources.is_empty());
    locks.close().await;
}
