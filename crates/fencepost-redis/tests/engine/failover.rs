//! A replica takes its master's place.

use crate::kit::{Fenced, LONG, SOON, connect, counter, eventually, granted, lock, registry, wait, within};
use fencepost_core::Client;
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Cluster, Config, Redis, Sentinel};
use std::time::Duration;

/// Redis breaks its promise here, and the page on it says so: what holds is the token.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_lags_loses_the_grant_but_not_the_order_of_tokens() {
    needs!(REDIS);
    let mut sentinel = Sentinel::start(1, &Config::new()).unwrap();
    let (one, two) = (connect(&sentinel.url(), LONG).await, connect(&sentinel.url(), LONG).await);
    let mut look = sentinel.master().look();
    lock(&one, "lock").await.release().await.unwrap();
    counter(&mut look);
    let copied: u32 = look.ask(&["WAIT", "1", "5000"]);
    assert_eq!(copied, 1, "the replica has it so far");
    sentinel.cut_replica().unwrap();
    let stale = lock(&one, "lock").await;
    let counted = counter(&mut sentinel.master().look());
    sentinel.fail_over().unwrap();
    let mutex = two.mutex("lock").unwrap();
    let fresh = within(SOON + SOON, mutex.lock()).await.expect("the client follows the failover");
    assert!(stale.ensure_held().is_ok(), "nothing could tell it yet: the two overlap");
    let recounted = counter(&mut sentinel.master().look());
    assert!(recounted <= counted, "a counter repeats its value: this is what the clock in a token is for");
    assert!(fresh.token() > stale.token());
    let mut resource = Fenced::default();
    assert!(resource.write(fresh.token()));
    assert!(!resource.write(stale.token()), "the stale writer is stopped");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_kept_up_keeps_grants_and_places() {
    needs!(REDIS);
    let mut sentinel = Sentinel::start(3, &Config::new()).unwrap();
    let locks = connect(&sentinel.url(), LONG).await;
    let guard = lock(&locks, "lock").await;
    let waiting = wait(&locks, "lock", 1).await;
    let mut look = sentinel.master().look();
    look.ask::<()>(&["SET", "mark", "1"]);
    let copied: u32 = look.ask(&["WAIT", "1", "5000"]);
    assert_eq!(copied, 1, "the replica has it all");
    sentinel.fail_over().unwrap();
    guard.ensure_held().unwrap();
    assert!(!waiting.is_finished());
    let token = guard.token();
    within(SOON + SOON, guard.release()).await.expect("it was still held");
    assert!(granted(waiting, SOON + SOON).await.token() > token);
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_follow_a_failover() {
    needs!(REDIS);
    let mut sentinel = Sentinel::start(1, &Config::new()).unwrap();
    // A failover takes seconds on a busy machine.
    let locks = connect(&sentinel.url(), Duration::from_secs(24)).await;
    let guard = lock(&locks, "lock").await;
    let mut look = sentinel.master().look();
    look.ask::<()>(&["SET", "mark", "1"]);
    assert_eq!(look.ask::<u32>(&["WAIT", "1", "5000"]), 1);
    sentinel.fail_over().unwrap();
    let before = guard.valid_until();
    eventually("it is renewed at the new master", async || {
        guard.ensure_held().expect("it is renewed at the new master");
        guard.valid_until() > before
    })
    .await;
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_replaces_a_master() {
    needs!(REDIS);
    let mut cluster = Cluster::start(&Config::new().line("cluster-node-timeout 1500")).unwrap();
    let locks = connect(&cluster.url(), LONG).await;
    let guard = lock(&locks, "lock").await;
    let waiting = wait(&locks, "lock", 1).await;
    let slot = cluster.slot("fencepost:lock");
    let mut look = cluster.nodes()[cluster.master_of(slot)].look();
    look.ask::<()>(&["HSET", "fencepost:lock", "mark", "1"]);
    assert_eq!(look.ask::<u32>(&["WAIT", "1", "5000"]), 1, "the replica has it all");
    look.ask::<()>(&["HDEL", "fencepost:lock", "mark"]);
    assert_eq!(look.ask::<u32>(&["WAIT", "1", "5000"]), 1, "the replica has it all");
    cluster.fail_over(slot).unwrap();
    let token = guard.token();
    within(SOON + SOON, guard.release()).await.expect("it was still held");
    assert!(granted(waiting, SOON + SOON).await.token() > token);
    lock(&locks, "another").await.release().await.unwrap();
}

/// The server may never become a master: a caller gets the error soon, not after the whole time of an outage.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_never_a_master_is_refused_soon() {
    needs!(REDIS);
    let sentinel = Sentinel::start(1, &Config::new()).unwrap();
    let builder = Client::builder().ttl(LONG).connect_wait(SOON).outage(12 * SOON);
    let locks = builder.connect(&registry(), &sentinel.replica().url()).await.unwrap();
    let mutex = locks.mutex("lock").unwrap();
    for error in [
        within(SOON, mutex.try_lock()).await.unwrap_err(),
        within(SOON, mutex.lock().wait(LONG)).await.unwrap_err(),
    ] {
        let text = error.to_string();
        assert!(error.is_configuration() && text.contains("name the master"), "{text}");
    }
}

/// At one address, too, a failover may be under way.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_becomes_a_replica_is_waited_for() {
    needs!(REDIS);
    let (server, other) = (Redis::start(&Config::new()).unwrap(), Redis::start(&Config::new()).unwrap());
    let locks = connect(&format!("{}?timeout=100ms", server.url()), LONG).await;
    lock(&locks, "lock").await.release().await.unwrap();
    let mut look = server.look();
    look.ask::<()>(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    look.ask::<()>(&["CONFIG", "RESETSTAT"]);
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.mutex("lock")?.lock().wait(LONG).await }
    });
    // Longer than the time of a call.
    eventually("it is refused again and again", async || {
        let refused = server.look().info("errorstat_READONLY");
        refused.trim_start_matches("count=").parse().unwrap_or(0) >= 6
    })
    .await;
    look.ask::<()>(&["REPLICAOF", "NO", "ONE"]);
    granted(waiting, SOON + SOON).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_promoted_by_hand_is_reported_as_such() {
    needs!(REDIS);
    let sentinel = Sentinel::start(1, &Config::new()).unwrap();
    let (mut master, mut replica) = (sentinel.master().look(), sentinel.replica().look());
    let port = sentinel.replica().port().to_string();
    replica.ask::<()>(&["REPLICAOF", "NO", "ONE"]);
    master.ask::<()>(&["REPLICAOF", "127.0.0.1", &port]);
    let error =
        Client::builder().connect(&registry(), &sentinel.url()).await.expect_err("no master is there");
    assert!(error.is_configuration(), "{error}");
    let message = error.to_string();
    assert!(message.contains("promoted by hand") && !message.contains("redis+sentinel:"), "{message}");
}
