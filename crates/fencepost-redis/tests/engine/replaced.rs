//! A node of a Redlock whose data is replaced while it runs.

use std::time::Duration;

use fencepost_core::{Client, Guard};
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Masters, Redis};
use fencepost_testkit::wait::eventually;

use crate::kit::{connect, patient};

const WAIT: Duration = Duration::from_secs(20);

/// Makes `node` a copy of `of`, and then a master again.
async fn copy(node: &Redis, of: &Redis) {
    follow(node, of).await;
    node.look().ask::<()>(&["REPLICAOF", "NO", "ONE"]);
}

/// Makes `node` a replica of `of`, with all its data.
async fn follow(node: &Redis, of: &Redis) {
    let address = of.address();
    node.look().ask::<()>(&["REPLICAOF", &address.ip().to_string(), &address.port().to_string()]);
    eventually(WAIT, "the link is up", async || {
        node.look().ask::<String>(&["INFO", "replication"]).contains("master_link_status:up")
    })
    .await;
}

/// Takes the lock, and waits until each node has given its vote: one that has not has nothing to forget.
async fn held_at_all(locks: &Client, masters: &Masters) -> Guard {
    let guard = locks.mutex("lock").unwrap().lock().wait(WAIT).await.expect("it is free");
    for node in masters.nodes() {
        eventually(WAIT, "it has voted", async || node.look().ask::<u32>(&["HLEN", "fencepost:lock"]) == 3)
            .await;
    }
    guard
}

/// Until a replica is made a master, nothing shows that its run is to be another one than that of its old data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_made_while_the_node_was_a_replica_gets_no_vote_of_its_old_run() {
    needs!(REDIS);
    let masters = Masters::start(3, &Config::new()).expect("servers start");
    let url = format!("{}?max_ttl=20", masters.url());
    let ours = connect(&url, WAIT).await;
    fencepost_redis::redlock::vouch(&patient(&url), ours.runtime().clone())
        .await
        .expect("all nodes are there");
    ours.mutex("lock").unwrap().lock().wait(WAIT).await.expect("it is free").release().await.unwrap();
    let copies = [0, 1].map(|_| Redis::start(&Config::new()).expect("a server starts"));
    for (of, node) in masters.nodes().iter().zip(&copies) {
        copy(node, of).await;
    }
    let guard = held_at_all(&ours, &masters).await;
    for (node, of) in masters.nodes().iter().zip(&copies) {
        follow(node, of).await;
    }
    let late = connect(&url, WAIT).await;
    for node in &masters.nodes()[..2] {
        // The last command of a new connection is INFO.
        eventually(WAIT, "it is connected", async || {
            node.look().ask::<String>(&["CLIENT", "LIST"]).contains(" cmd=info ")
        })
        .await;
        node.look().ask::<()>(&["REPLICAOF", "NO", "ONE"]);
    }
    let error = late.mutex("lock").unwrap().try_lock().await.expect_err("two of three have forgotten it");
    assert!(error.is_unreachable() && error.to_string().contains("stays out"), "{error}");
    guard.ensure_held().expect("its lease is long");
    for locks in [ours, late] {
        locks.close().await;
    }
}

/// Neither those who were connected before nor those who come then are granted what another may hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_whose_data_is_replaced_by_an_older_copy_stays_out() {
    needs!(REDIS);
    let masters = Masters::start(3, &Config::new()).expect("servers start");
    let url = format!("{}?max_ttl=20", masters.url());
    let ours = connect(&url, WAIT).await;
    fencepost_redis::redlock::vouch(&patient(&url), ours.runtime().clone())
        .await
        .expect("all nodes are there");
    let other = connect(&url, WAIT).await;
    for locks in [&ours, &other] {
        let guard = locks.mutex("lock").unwrap().lock().wait(WAIT).await.expect("it is free");
        guard.release().await.expect("it was held");
        locks.mutex("other").unwrap().lock().wait(WAIT).await.expect("it is free").release().await.unwrap();
    }
    let copies = [0, 1].map(|_| Redis::start(&Config::new()).expect("a server starts"));
    for (of, node) in masters.nodes().iter().zip(&copies) {
        copy(node, of).await;
    }
    let guard = held_at_all(&ours, &masters).await;
    for (node, of) in masters.nodes().iter().zip(&copies) {
        copy(node, of).await;
        let mut fields: Vec<String> = node.look().ask(&["HKEYS", "fencepost:lock"]);
        fields.sort_unstable();
        assert_eq!(fields, ["e", "s"], "it is forgotten");
    }
    guard.ensure_held().expect("its lease is long");
    let late = connect(&url, WAIT).await;
    for locks in [&other, &late, &other, &late] {
        for name in ["lock", "other"] {
            let error =
                locks.mutex(name).unwrap().try_lock().await.expect_err("two of three have forgotten it");
            assert!(error.is_unreachable() && error.to_string().contains("stays out"), "{error}");
        }
    }
    let error = ours.inspect("lock").await.expect_err("nobody knows whether it is free");
    assert!(error.is_unreachable() && error.to_string().contains("stays out"), "{error}");
    // An operator who knows better may say so.
    drop(guard);
    fencepost_redis::redlock::vouch(&patient(&url), ours.runtime().clone())
        .await
        .expect("all nodes are there");
    for locks in [&late, &other] {
        let guard = locks.mutex("lock").unwrap().lock().wait(WAIT).await.expect("nobody holds it");
        guard.release().await.expect("it was held");
    }
    for locks in [ours, other, late] {
        locks.close().await;
    }
}
