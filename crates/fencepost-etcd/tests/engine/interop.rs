//! Locks together with `etcdctl`, which uses the same package as programs in Go: one queue for all.

use crate::kit::{Ctl, SHORT, SOON, Waiting, connect, eventually, in_line, server, stand};
use fencepost_core::Eviction;
use fencepost_testkit::conformance::{Elsewhere, Holder};
use fencepost_testkit::needs;
use std::time::Instant;

/// Short, for a test that waits for its end.
const LEASE: &str = "--ttl=2";
/// Longer than any wait in these tests.
const LONG: &str = "--ttl=120";

#[tokio::test(flavor = "multi_thread")]
async fn who_is_held_off_by_etcdctl_is_woken_by_its_end() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let locks = connect(&etcd.url()).await;
    for command in [&["lock", LONG, "stock"][..], &["elect", "stock", "me"]] {
        let mut ctl = Ctl::start(&etcd.look(), command);
        let key = ctl.held().await;
        assert!(key.starts_with("stock/"), "{key}");
        assert!(locks.mutex("stock").unwrap().try_lock().await.unwrap().is_none(), "two hold it");
        assert!(locks.rwlock("stock").unwrap().try_read().await.unwrap().is_none(), "others are exclusive");
        let waiting = stand(&locks, "stock", 2).await;
        let info = locks.inspect("stock").await.unwrap();
        assert_eq!((info.holders().count(), info.waiters().count()), (1, 1), "{info:?}");
        assert!(!waiting.is_answered());
        ctl.end();
        let guard = waiting.granted().await;
        guard.release().await.unwrap();
    }
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcdctl_that_is_killed_frees_its_lock_with_its_lease() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let locks = connect(&etcd.url()).await;
    let start = Instant::now();
    loop {
        let mut ctl = Ctl::start(&etcd.look(), &["lock", LEASE, "stock"]);
        ctl.held().await;
        let waiting = Waiting::ask(&locks, "stock");
        let waits = async || waiting.is_answered() || in_line(&locks, "stock").await == 2;
        eventually("it waits in the queue", waits).await;
        let is_early = waiting.is_answered();
        ctl.kill();
        waiting.within(SHORT + SOON).await.release().await.unwrap();
        if !is_early {
            break;
        }
        // A busy machine has not renewed the lease of etcdctl.
        assert!(start.elapsed() < SOON, "two hold it");
    }
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_cannot_be_told_that_it_is_evicted_and_is_evicted_at_once() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let locks = connect(&etcd.url()).await;
    let mut ctl = Ctl::start(&etcd.look(), &["lock", LONG, "stock"]);
    let key = ctl.held().await;
    let token = locks.inspect("stock").await.unwrap().holders().next().unwrap().token.unwrap();
    let waiting = stand(&locks, "stock", 2).await;
    let error = locks.evict("stock", token, &Eviction::default()).await.unwrap_err();
    assert!(error.is_unsupported() && error.to_string().contains("--now"), "{error}");
    assert_eq!(etcd.look().keys(&key).len(), 1, "nothing has happened to it");
    locks.evict("stock", token, &Eviction::new(true)).await.unwrap();
    waiting.granted().await.release().await.unwrap();
    assert!(locks.evict("stock", token, &Eviction::default()).await.unwrap_err().is_mismatch());
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_waits_in_line_for_ours() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let locks = connect(&etcd.url()).await;
    let guard = locks.mutex("stock").unwrap().lock().await.unwrap();
    let mut ctl = Ctl::start(&etcd.look(), &["lock", LONG, "stock"]);
    eventually("it waits in the queue", || async { in_line(&locks, "stock").await == 2 }).await;
    let behind = stand(&locks, "stock", 3).await;
    guard.release().await.unwrap();
    assert!(ctl.held().await.starts_with("stock/"));
    assert!(!behind.is_answered(), "it overtook etcdctl");
    ctl.end();
    behind.granted().await.release().await.unwrap();
    locks.close().await;
    assert!(etcd.look().keys("").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_gets_the_lock_of_a_process_of_ours_that_is_killed() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let mut ours = Holder::start(&etcd.url(), "stock", SHORT);
    let mut ctl = Ctl::start(&etcd.look(), &["lock", LONG, "stock"]);
    ours.kill();
    ctl.held().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_go_below_ours_is_none_of_ours() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let locks = connect(&etcd.url()).await;
    let mut ctl = Ctl::start(&etcd.look(), &["lock", LONG, "a/b"]);
    ctl.held().await;
    for name in ["a", "a/b"] {
        let guard = locks.mutex(name).unwrap().try_lock().await.unwrap();
        guard.unwrap_or_else(|| panic!("{name} is held by nobody")).release().await.unwrap();
    }
    // Its key has the prefix of the queue of `a`, but is not shown.
    assert_eq!(in_line(&locks, "a").await, 0);
    locks.close().await;
}
