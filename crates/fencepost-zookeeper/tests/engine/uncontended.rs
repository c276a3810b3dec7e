//! Folders in which one client locks again and again, while other clients come and go.

use fencepost_testkit::needs;
use std::time::Duration;

use fencepost_testkit::faults::Faults;
use fencepost_testkit::zookeeper::{Config, Proxied, ZooKeeper, ephemerals};
use zookeeper_client::{Acls, Client, CreateMode, CreateSequence, Error};

use crate::kit::{LASTING, SOON, address, bare, bare_at, client, eventually, near, nodes, path, requests};

/// Makes a node as another library would, and its folder if the server has just removed the empty one.
async fn come(other: &Client, node: &str) -> CreateSequence {
    let acls = Acls::anyone_all();
    loop {
        match other.create(node, b"", &CreateMode::EphemeralSequential.with_acls(acls)).await {
            Ok((_, number)) => return number,
            Err(Error::NoNode) => {
                let (folder, _) = node.rsplit_once('/').expect("a node has a folder");
                match other.create(folder, b"", &CreateMode::Container.with_acls(acls)).await {
                    Ok(_) | Err(Error::NodeExists) => {}
                    Err(error) => panic!("a folder: {error}"),
                }
            }
            Err(error) => panic!("a node: {error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_uncontended_cycle_costs_three_requests() {
    needs!(ZOOKEEPER);
    // Requests are counted, so it is a server of its own.
    let server = ZooKeeper::start(&Config::new()).expect("a server starts");
    let locks = client(&format!("{}/own?{LASTING}", server.url())).await;
    let mutex = locks.mutex("lock").expect("a good name");
    let cycle = async || mutex.lock().await.expect("it is free").release().await.expect("it was held");
    for _ in 0..20 {
        cycle().await;
    }
    const CYCLES: u64 = 200;
    let before = requests(server.address());
    for _ in 0..CYCLES {
        cycle().await;
    }
    // The node is made, the folder listed in the same round trip, the node deleted. Pings and probes come on top.
    let sent = requests(server.address()) - before;
    assert!(sent < CYCLES * 7 / 2, "{sent} requests for {CYCLES} cycles");
    assert!(ephemerals(server.address()).expect("it answers").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_comes_in_between_holds_the_lock() {
    needs!(ZOOKEEPER);
    let path = path();
    let locks = near(&path).await;
    let mutex = locks.mutex("lock").expect("a good name");
    let other = bare().await;
    for round in 0..20 {
        for _ in 0..6 {
            mutex.lock().await.expect("it is free").release().await.expect("it was held");
        }
        let node = format!("{path}/lock/_c_0123-lock-");
        let number = come(&other, &node).await;
        let busy = mutex.lock().wait(Duration::from_millis(20 + round)).await;
        assert!(busy.expect_err("it is held").is_timeout());
        assert!(mutex.try_lock().await.expect("it answers").is_none());
        let waiting = tokio::spawn({
            let mutex = mutex.clone();
            async move { mutex.lock().wait(SOON).await }
        });
        eventually("it is in the queue", || nodes(address(), &path).len() == 2).await;
        assert!(!waiting.is_finished());
        other.delete(&format!("{node}{number}"), None).await.expect("it was there");
        let guard = waiting.await.expect("no panic").expect("its turn comes");
        guard.release().await.expect("it was held");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_came_while_the_connection_was_broken_holds_the_lock() {
    needs!(ZOOKEEPER);
    let mut server = Proxied::start(&Config::new()).expect("a server starts");
    let locks = client(&format!("{}/s?{LASTING}", server.url())).await;
    let mutex = locks.mutex("lock").expect("a good name");
    let other = bare_at(server.address()).await;
    for _ in 0..5 {
        for _ in 0..6 {
            mutex.lock().wait(SOON).await.expect("it is free").release().await.expect("it was held");
        }
        server.cut().expect("the network can be cut");
        let number = come(&other, "/s/lock/_c_0123-lock-").await;
        server.mend().expect("the network can be mended");
        let waiting = tokio::spawn({
            let mutex = mutex.clone();
            async move { mutex.lock().wait(SOON).await }
        });
        eventually("it is in the queue", || nodes(server.address(), "/s").len() == 2).await;
        assert!(!waiting.is_finished(), "two hold it");
        other.delete(&format!("/s/lock/_c_0123-lock-{number}"), None).await.expect("it was there");
        let guard = waiting.await.expect("no panic").expect("its turn comes");
        guard.release().await.expect("it was held");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_take_turns_exclude_each_other() {
    needs!(ZOOKEEPER);
    let path = path();
    let clients = [near(&path).await, near(&path).await, near(&path).await];
    let held = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let tasks: Vec<_> = clients
        .iter()
        .enumerate()
        .map(|(at, locks)| {
            let (mutex, held) = (locks.mutex("lock").expect("a good name"), std::sync::Arc::clone(&held));
            tokio::spawn(async move {
                for round in 0..40 {
                    // Each has the folder for itself for a while, and then not.
                    for _ in 0..5 {
                        let guard = mutex.lock().wait(SOON).await.expect("its turn comes");
                        assert!(!held.swap(true, std::sync::atomic::Ordering::SeqCst), "two hold it");
                        tokio::task::yield_now().await;
                        held.store(false, std::sync::atomic::Ordering::SeqCst);
                        guard.release().await.expect("it was held");
                    }
                    tokio::time::sleep(Duration::from_millis((at as u64 * 7 + round * 3) % 20)).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    eventually("nothing is left", || nodes(address(), &path).is_empty()).await;
}
