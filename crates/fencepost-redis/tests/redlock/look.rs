//! What operators see while a node may have forgotten a grant.

use fencepost_core::{Eviction, Page};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Masters};
use fencepost_testkit::wait::eventually;

use super::{WAIT, client, lose, patient_client, vouch};

/// Three of five nodes grant a lease, and one of them loses it. Nobody can be given the lock, so nobody is told that it is free.
async fn shown(flushed: bool) {
    let mut masters = Masters::start(5, &Config::new()).expect("servers start");
    let url = masters.url();
    vouch(&url).await;
    let locks = client(&url).await;
    for down in [3, 4] {
        masters.node(down).kill().expect("it can be killed");
    }
    let guard = locks.mutex("lock").unwrap().lock().await.expect("a majority is there");
    // A lease has no client that asks the other nodes for their votes.
    guard.detach().await.expect("it is held");
    for down in [3, 4] {
        masters.node(down).restart().expect("it comes back");
    }
    vouch(&url).await;
    let looks = patient_client(&url).await;
    let info = looks.inspect("lock").await.expect("all nodes answer");
    assert!(info.holders().all(|holder| !holder.unconfirmed) && info.holders().count() == 1, "{info:?}");
    lose(masters.node(0), flushed);
    let info = looks.inspect("lock").await.expect("four nodes answer");
    assert!(info.holders().all(|holder| holder.unconfirmed) && info.holders().count() == 1, "{info:?}");
    let listing = looks.list("", &Page::default()).await.expect("four nodes answer");
    assert_eq!(listing.resources.len(), 1, "{listing:?}");
    assert_eq!(listing.resources[0].holders().count(), 1, "{listing:?}");
    let refused = looks.mutex("lock").unwrap().try_lock().await;
    assert!(!matches!(refused, Ok(Some(_))), "a second majority");
    locks.close().await;
    looks.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_a_node_forgot_when_it_restarted_is_shown() {
    needs!(REDIS);
    shown(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_a_node_forgot_when_it_was_flushed_is_shown() {
    needs!(REDIS);
    shown(true).await;
}

/// Nobody asks for a vote here, so the looks themselves begin the time for which new nodes stay out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looks_at_new_nodes_fail_no_longer_than_the_longest_lease() {
    needs!(REDIS);
    let masters = Masters::start(3, &Config::new()).expect("servers start");
    let looks = patient_client(&format!("{}?max_ttl=2", masters.url())).await;
    let error = looks.inspect("lock").await.expect_err("all nodes are new");
    assert!(error.is_unreachable() && error.to_string().contains("stays out"), "{error}");
    eventually(WAIT, "the nodes vote", async || looks.inspect("lock").await.is_ok()).await;
    looks.close().await;
}

/// Of the two nodes that have granted it one has forgotten it, and the other is down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eviction_is_not_told_that_a_grant_is_gone_which_nodes_may_have_forgotten() {
    needs!(REDIS);
    let mut masters = Masters::start(3, &Config::new()).expect("servers start");
    let url = masters.url();
    vouch(&url).await;
    let locks = client(&url).await;
    masters.node(2).kill().expect("it can be killed");
    let guard = locks.mutex("lock").unwrap().lock().await.expect("a majority is there");
    let token = guard.token();
    guard.detach().await.expect("it is held");
    masters.node(2).restart().expect("it comes back");
    vouch(&url).await;
    lose(masters.node(0), false);
    masters.node(1).kill().expect("it can be killed");
    let operator = client(&url).await;
    let error = operator.evict("lock", token, &Eviction::new(true)).await.expect_err("it may be held");
    assert!(error.is_unreachable(), "{error}");
    locks.close().await;
    operator.close().await;
}
