//! A slot of a cluster that is being moved.

use crate::kit::{LONG, SOON, connect, eventually, granted, lock, wait};
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Cluster, Config};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_can_be_moved_while_it_is_used() {
    needs!(REDIS);
    let cluster = Cluster::start(&Config::new()).unwrap();
    let locks = connect(&cluster.url(), LONG).await;
    let key = "fencepost:lock";
    let slot = cluster.slot(key);
    let to = (cluster.master_of(slot) + 1) % 3;
    let mut guard = lock(&locks, "lock").await;
    let waiting = wait(&locks, "lock", 1).await;
    // Announced, with the key where it was.
    cluster.begin_moving(slot, to);
    guard.extend(LONG).await.expect("a lock can be renewed");
    let token = guard.token();
    guard.release().await.expect("it was held");
    let guard = granted(waiting, SOON).await;
    assert!(guard.token() > token, "a handoff while the slot moves");
    let (token, waiting) = (guard.token(), wait(&locks, "lock", 1).await);
    // Moved, with the slot where it was.
    cluster.move_key(key, to);
    let mut guard = guard;
    guard.extend(LONG).await.expect("a lock can be renewed");
    guard.release().await.expect("it was held");
    let guard = granted(waiting, SOON).await;
    assert!(guard.token() > token, "a handoff after the key has moved");
    let (token, waiting) = (guard.token(), wait(&locks, "lock", 1).await);
    cluster.end_moving(slot, to);
    guard.release().await.expect("it was held");
    assert!(granted(waiting, SOON).await.token() > token, "a handoff after the slot has moved");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_lock_of_a_slot_on_the_move_is_one_lock() {
    needs!(REDIS);
    let cluster = Cluster::start(&Config::new()).unwrap();
    let (one, two) = (connect(&cluster.url(), LONG).await, connect(&cluster.url(), LONG).await);
    let slot = cluster.slot("fencepost:fresh");
    let to = (cluster.master_of(slot) + 1) % 3;
    cluster.begin_moving(slot, to);
    // Its key is nowhere yet, so it comes into being at the new place.
    let guard = lock(&one, "fresh").await;
    assert!(two.mutex("fresh").unwrap().try_lock().await.unwrap().is_none());
    let waiting = wait(&two, "fresh", 1).await;
    guard.release().await.unwrap();
    let guard = granted(waiting, SOON).await;
    cluster.end_moving(slot, to);
    guard.ensure_held().unwrap();
    assert!(one.mutex("fresh").unwrap().try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_one_slot_are_renewed_while_only_some_have_moved() {
    needs!(REDIS);
    let cluster = Cluster::start(&Config::new()).unwrap();
    let ttl = Duration::from_secs(12);
    let locks = connect(&cluster.url(), ttl).await;
    // Two names whose keys fall into one slot.
    let slot = cluster.slot("fencepost:{tag}a");
    let names: Vec<String> = ["{tag}a", "{tag}b", "{tag}c"].map(str::to_owned).into();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(lock(&locks, name).await);
    }
    let from = cluster.master_of(slot);
    let mut look = cluster.nodes()[from].look();
    let keys: Vec<String> = look.ask(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "10"]);
    assert_eq!(keys.len(), 3, "the three share a slot: {keys:?}");
    let to = (from + 1) % 3;
    cluster.begin_moving(slot, to);
    cluster.move_key(&keys[0], to);
    let first: Vec<_> = guards.iter().map(|guard| guard.valid_until()).collect();
    eventually("each is renewed wherever it is", async || {
        guards.iter().for_each(|guard| guard.ensure_held().expect("it is renewed wherever it is"));
        guards.iter().zip(&first).all(|(guard, first)| guard.valid_until() > *first)
    })
    .await;
    cluster.end_moving(slot, to);
    for guard in guards {
        guard.release().await.expect("it was held");
    }
}
