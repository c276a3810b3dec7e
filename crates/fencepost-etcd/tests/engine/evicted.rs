//! Evictions: how the holder is told, and when its lock becomes free.

use fencepost_testkit::needs;
use std::time::Duration;

use crate::kit::{SHORT, SOON, client_of, connect, connect_by, eventually, stand};
use fencepost_core::{Client, Clock, Eviction, Guard, Loss};
use fencepost_testkit::etcd::{Config, Proxied};
use fencepost_testkit::faults::Faults;

async fn with_ttl(url: &str, ttl: Duration) -> Client {
    connect_by(Client::builder().ttl(ttl), url).await
}

async fn told(guard: &Guard) -> Loss {
    tokio::time::timeout(SOON, guard.lost()).await.expect("the holder is told")
}

fn notes(etcd: &Proxied) -> Vec<String> {
    etcd.look().keys("%fencepost/evicted/")
}

async fn evict(operator: &Client, guard: &Guard) {
    operator.evict(guard.name().as_str(), guard.token(), &Eviction::new(false)).await.unwrap();
}

/// The client that detached the lock goes on, and its watch sees the note of the eviction, too.
#[tokio::test(flavor = "multi_thread")]
async fn an_attached_holder_without_a_stream_is_told_by_the_note() {
    needs!(ETCD, ETCDCTL);
    let mut etcd = Proxied::start(&Config::new()).unwrap();
    // No renewal comes before the end of the test.
    let (near, far) = (with_ttl(&etcd.direct_url(), SOON * 40).await, with_ttl(&etcd.url(), SOON * 40).await);
    let lease = near.mutex("stock").unwrap().lock().await.unwrap().detach().await.unwrap();
    let other = near.mutex("other").unwrap().lock().await.unwrap();
    let attached = far.attach(&lease).await.unwrap();
    etcd.cut().unwrap();
    evict(&near, &attached).await;
    // Its client has read the first note before it deletes the second one.
    evict(&near, &other).await;
    eventually("its own note is deleted", async || notes(&etcd).len() <= 1).await;
    etcd.mend().unwrap();
    assert_eq!(told(&attached).await, Loss::Evicted);
    eventually("no note is left", async || notes(&etcd).is_empty()).await;
    near.close().await;
    far.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_note_is_gone_is_told_by_its_record() {
    needs!(ETCD, ETCDCTL);
    let mut etcd = Proxied::start(&Config::new()).unwrap();
    let (near, far) = (connect(&etcd.direct_url()).await, with_ttl(&etcd.url(), SOON / 2).await);
    let lease = near.mutex("stock").unwrap().lock().await.unwrap().detach().await.unwrap();
    let attached = far.attach(&lease).await.unwrap();
    etcd.cut().unwrap();
    evict(&near, &attached).await;
    etcd.look().run(&["del", "--prefix", "%fencepost/evicted/"]);
    etcd.mend().unwrap();
    // Its next renewal reads the record, because other programs may know the lease.
    assert_eq!(told(&attached).await, Loss::Evicted);
    near.close().await;
    far.close().await;
}

/// Nobody could tell the program that takes it up.
#[tokio::test(flavor = "multi_thread")]
async fn an_evicted_lock_whose_note_is_gone_is_not_detached() {
    needs!(ETCD, ETCDCTL);
    let mut etcd = Proxied::start(&Config::new()).unwrap();
    let (near, far) = (connect(&etcd.direct_url()).await, with_ttl(&etcd.url(), SOON * 40).await);
    let guard = far.mutex("stock").unwrap().lock().await.unwrap();
    etcd.cut().unwrap();
    evict(&near, &guard).await;
    etcd.look().run(&["del", "--prefix", "%fencepost/evicted/"]);
    etcd.mend().unwrap();
    let error = guard.detach().await.unwrap_err();
    assert_eq!(error.loss(), Some(Loss::Evicted), "{error}");
    let info = near.inspect("stock").await.unwrap();
    assert!(info.holders().all(|holder| holder.evicted && !holder.detached), "{info:?}");
    near.close().await;
    far.close().await;
}

/// The extension is under way when the holder is told, and would move the key to a lease that other guards renew.
#[tokio::test(flavor = "multi_thread")]
async fn an_extension_under_way_keeps_no_evicted_holders_lock() {
    needs!(ETCD, ETCDCTL);
    let mut etcd = Proxied::start(&Config::new()).unwrap();
    // The holder's clock stands still, so that only the server ends its lease.
    let (near, far) = (connect(&etcd.direct_url()).await, client_of(&Clock::manual(), &etcd.url()).await);
    let mut guard = far.mutex("stock").unwrap().lock().ttl(SHORT * 3).await.unwrap();
    let waiting = stand(&near, "stock", 2).await;
    etcd.delay(Duration::from_millis(300)).unwrap();
    evict(&near, &guard).await;
    // Its requests take longer than those of the eviction.
    assert!(guard.extend(SOON).await.unwrap_err().is_lost());
    assert_eq!(told(&guard).await, Loss::Evicted);
    let other = far.mutex("other").unwrap().lock().ttl(SOON).await.unwrap();
    waiting.granted().await.release().await.unwrap();
    drop(guard);
    other.release().await.unwrap();
    near.close().await;
    far.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_eviction_lengthens_no_lease() {
    needs!(ETCD, ETCDCTL);
    let etcd = Proxied::start(&Config::new()).unwrap();
    let locks = connect(&etcd.direct_url()).await;
    let ttl = 4 * SOON;
    let fixed = locks.mutex("fixed").unwrap().lock().ttl(ttl).no_renewal().await.unwrap();
    let renewed = locks.mutex("renewed").unwrap().lock().ttl(ttl).await.unwrap();
    let left = async |name| {
        let info = locks.inspect(name).await.unwrap();
        info.holders().next().and_then(|holder| holder.expires_in).unwrap_or_default()
    };
    // A third of the lease passes until the renewal. The store tells whole seconds.
    let most = ttl - Duration::from_secs(3);
    for guard in [&fixed, &renewed] {
        let name = guard.name().as_str();
        eventually("some of the lease has passed", async || left(name).await < most).await;
        evict(&locks, guard).await;
        assert_eq!(told(guard).await, Loss::Evicted);
        eventually("the key has its last lease", async || notes(&etcd).is_empty()).await;
        let left = left(name).await;
        assert!(left <= most, "{name}: {left:?}");
    }
    locks.close().await;
}
