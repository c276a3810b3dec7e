//! Keys and leases of a holder that an operator deletes or revokes.

use fencepost_testkit::needs;
use std::time::Duration;

use crate::kit::{SOON, client_by, connect, connect_by, eventually};
use fencepost_core::{Client, Clock, Eviction, Guard, Loss};
use fencepost_testkit::etcd::{Config, Proxied};
use fencepost_testkit::faults::Faults;

/// No renewal comes before the end of the test.
const LONG: Duration = Duration::from_secs(1_200);

fn server() -> Proxied {
    Proxied::start(&Config::new()).unwrap()
}

async fn patient(url: &str) -> Client {
    connect_by(Client::builder().ttl(LONG), url).await
}

/// A client that searches for the cause of a loss for as long as that takes, because its clock stands still.
async fn thorough(clock: &Clock, url: &str) -> Client {
    client_by(Client::builder().ttl(LONG), clock, url).await
}

/// Lets the grants become old enough for watches.
fn age(clock: &Clock) {
    clock.advance_to(clock.now() + Duration::from_secs(2));
}

/// Waits until `count` watches exist: one for evictions, and one for each key.
async fn watched(etcd: &Proxied, count: u64) {
    eventually("the watches stand", async || etcd.watches().unwrap() == count).await;
}

async fn told(guard: &Guard) -> (Loss, String) {
    let why = tokio::time::timeout(SOON, guard.lost()).await.expect("the holder is told");
    let error = guard.ensure_held().unwrap_err();
    assert!(error.is_lost());
    (why, error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_is_told_that_its_key_was_deleted() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let clock = Clock::manual();
    let locks = thorough(&clock, &etcd.url()).await;
    let guard = locks.mutex("stock").unwrap().lock().await.unwrap();
    let other = locks.mutex("other").unwrap().lock().await.unwrap();
    age(&clock);
    watched(&etcd, 3).await;
    let key = &etcd.look().keys("stock/")[0];
    etcd.look().run(&["del", key]);
    let (why, text) = told(&guard).await;
    assert!(why == Loss::Deleted && text.contains(&format!("its key {key} was deleted")), "{why:?}: {text}");
    other.ensure_held().unwrap();
    assert!(guard.release().await.unwrap_err().is_lost());
    // A watch ends with its key, deleted or released.
    watched(&etcd, 2).await;
    other.release().await.unwrap();
    watched(&etcd, 1).await;
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_holders_are_told_that_their_lease_was_revoked() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let clock = Clock::manual();
    let locks = thorough(&clock, &etcd.url()).await;
    let guard = locks.mutex("stock").unwrap().lock().await.unwrap();
    age(&clock);
    watched(&etcd, 2).await;
    // This grant may be too recent to be watched. Its key has the same lease.
    let young = locks.mutex("young").unwrap().lock().await.unwrap();
    let lease = &etcd.look().leases()[0];
    etcd.look().run(&["lease", "revoke", lease]);
    for guard in [&guard, &young] {
        let (why, text) = told(guard).await;
        let names = text.contains(&format!("its lease {lease} was revoked"));
        assert!(why == Loss::SessionEnded && names, "{why:?}: {text}");
    }
    // The client uses another lease from now on.
    locks.mutex("stock").unwrap().lock().await.unwrap().release().await.unwrap();
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_stream_broke_is_told_what_was_deleted_meanwhile() {
    needs!(ETCD, ETCDCTL);
    let mut etcd = server();
    let locks = patient(&etcd.url()).await;
    let guard = locks.mutex("stock").unwrap().lock().await.unwrap();
    let other = locks.mutex("other").unwrap().lock().await.unwrap();
    watched(&etcd, 3).await;
    etcd.cut().unwrap();
    etcd.look().run(&["del", "--prefix", "stock/"]);
    etcd.mend().unwrap();
    assert_eq!(told(&guard).await.0, Loss::Deleted);
    // The watch of the other key has begun again.
    eventually("it stands", async || etcd.watches().unwrap() >= 2).await;
    etcd.look().run(&["del", "--prefix", "other/"]);
    assert_eq!(told(&other).await.0, Loss::Deleted);
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_evicted_at_once_is_told_so() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let clock = Clock::manual();
    let (locks, operator) = (thorough(&clock, &etcd.url()).await, connect(&etcd.direct_url()).await);
    for number in 0..10 {
        let guard = locks.mutex(&format!("stock{number}")).unwrap().lock().await.unwrap();
        age(&clock);
        watched(&etcd, 2).await;
        let now = Eviction::new(true);
        operator.evict(guard.name().as_str(), guard.token(), &now).await.unwrap();
        assert_eq!(told(&guard).await.0, Loss::Evicted);
        drop(guard);
        watched(&etcd, 1).await;
    }
    locks.close().await;
    operator.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attached_and_fixed_grants_are_watched_as_well() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let (locks, other) = (patient(&etcd.url()).await, patient(&etcd.direct_url()).await);
    let fixed = locks.mutex("fixed").unwrap().lock().ttl(LONG).no_renewal().await.unwrap();
    let lease = locks.mutex("detached").unwrap().lock().await.unwrap().detach().await.unwrap();
    let attached = other.attach(&lease).await.unwrap();
    watched(&etcd, 4).await;
    etcd.look().run(&["del", "--prefix", "fixed/"]);
    etcd.look().run(&["del", "--prefix", "detached/"]);
    assert_eq!((told(&fixed).await.0, told(&attached).await.0), (Loss::Deleted, Loss::Deleted));
    drop((fixed, attached));
    // A lock that is held for a short time has no watch.
    for _ in 0..20 {
        locks.mutex("short").unwrap().lock().await.unwrap().release().await.unwrap();
    }
    watched(&etcd, 2).await;
    locks.close().await;
    other.close().await;
}
