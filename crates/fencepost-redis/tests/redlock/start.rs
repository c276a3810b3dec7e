//! A client comes while not all nodes answer.

use fencepost_core::{Client, Registry};
use fencepost_testkit::needs;
use std::future::ready;
use std::time::{Duration, Instant};

use fencepost_testkit::faults::Faults;
use fencepost_testkit::redis::{Config, Masters};
use fencepost_testkit::wait::eventually;

use super::{TRIES, WAIT, client, cycle, five, grow, patient_client, vouch};

/// Nodes that are far away or busy answer late. A client that expects it waits for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_answer_late_are_waited_for() {
    needs!(REDIS);
    let (mut masters, url) = five().await;
    let (hasty, patient) = (client(&url).await, client(&format!("{url}?node_timeout=20s&timeout=20s")).await);
    let lease = patient.mutex("lock").unwrap().lock().await.unwrap().detach().await.unwrap();
    for node in 0..5 {
        masters.node(node).stop().expect("it can be stopped");
    }
    let ttl = Duration::from_secs(40);
    let late = async {
        let late = hasty.extend(&lease, ttl).await;
        for node in 0..5 {
            masters.node(node).cont().expect("it goes on");
        }
        late
    };
    // The patient one is the first to ask.
    let (extended, late) = tokio::join!(patient.extend(&lease, ttl), late);
    assert!(late.expect_err("it waits for 250 ms").is_unreachable());
    extended.expect("it waits for the nodes");
    patient.release(&lease).await.expect("it is held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_hangs_holds_up_no_new_client() {
    needs!(REDIS);
    let (mut masters, url) = five().await;
    masters.node(1).stop().expect("it can be stopped");
    let start = Instant::now();
    let locks = client(&format!("{url}?connect_timeout=60s")).await;
    let mut last = cycle(&locks).await;
    assert!(start.elapsed() < WAIT, "it waited for the node");
    masters.node(1).cont().expect("it goes on");
    grow(&locks, &mut last).await;
    locks.close().await;
}

/// A node takes connections and is silent. A client that waited for it would take half a second each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_node_delays_no_first_cycle() {
    needs!(REDIS);
    let (mut masters, url) = five().await;
    masters.node(1).stop().expect("it can be stopped");
    let mut quickest = WAIT;
    for _ in 0..10 {
        let start = Instant::now();
        let locks = client(&url).await;
        cycle(&locks).await;
        quickest = quickest.min(start.elapsed());
        locks.close().await;
    }
    assert!(quickest < Duration::from_millis(400), "the quickest of ten took {quickest:?}");
}

/// A new client's first claim may need more than the majority that its client has met.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_claim_of_a_client_gets_the_votes_of_all_nodes() {
    needs!(REDIS);
    let (_masters, url) = five().await;
    let mut slow = 0;
    for _ in 0..20 {
        let start = Instant::now();
        let locks = patient_client(&url).await;
        let permits = locks.semaphore("permits", 9).unwrap();
        match permits.try_acquire().await {
            Ok(permit) => permit.expect("nobody has one").release().await.expect("it was held"),
            // A busy machine may take longer to connect than a claim waits for that.
            Err(error) => {
                slow += 1;
                assert!(start.elapsed() >= Duration::from_millis(500) && slow <= TRIES, "{error}");
            }
        }
        locks.close().await;
    }
}

/// A claim that needs all nodes waits for one that was not there when its client came.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_asks_a_node_that_comes_after_it() {
    needs!(REDIS);
    let mut masters = Masters::start(3, &Config::new()).expect("servers start");
    vouch(&masters.url()).await;
    masters.node(2).kill().expect("it can be killed");
    let locks = client(&masters.url()).await;
    let mut look = masters.node(0).look();
    let before = look.calls("evalsha");
    let own = locks.clone();
    let waiting = tokio::spawn(async move { own.semaphore("permits", 2)?.acquire().wait(WAIT).await });
    eventually(WAIT, "it asks those who are there", || ready(look.calls("evalsha") > before)).await;
    masters.node(2).restart().expect("it comes back");
    vouch(&masters.url()).await;
    let permit = waiting.await.expect("no panic").expect("all nodes are there");
    permit.release().await.expect("it was held");
    locks.close().await;
}

/// The nodes that a new client has met do not speak for the one that it has not: the lease may be there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_released_although_one_of_its_nodes_is_not_met_yet() {
    needs!(REDIS);
    let mut masters = Masters::start(3, &Config::new()).expect("servers start");
    vouch(&masters.url()).await;
    masters.node(2).kill().expect("it can be killed");
    let holder = client(&masters.url()).await;
    let lease = holder.mutex("lock").unwrap().lock().await.unwrap().detach().await.unwrap();
    holder.close().await;
    masters.node(2).restart().expect("it comes back");
    masters.node(1).stop().expect("it can be stopped");
    let locks = client(&masters.url()).await;
    locks.release(&lease).await.expect("it is held by two of three nodes");
    masters.node(1).cont().expect("it goes on");
    // The node that restarted stays out, so the next grant needs both of those that held the lease.
    cycle(&locks).await;
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_a_minority_is_refused() {
    needs!(REDIS);
    let mut masters = Masters::start(3, &Config::new()).expect("servers start");
    vouch(&masters.url()).await;
    masters.node(1).kill().expect("it can be killed");
    client(&masters.url()).await.close().await;
    masters.node(2).kill().expect("it can be killed");
    let registry = Registry::new().with("redlock", fencepost_redis::redlock::open);
    let opened = Client::builder().connect(&registry, &masters.url()).await;
    let error = opened.map(drop).expect_err("one of three is no majority");
    assert!(error.is_unreachable(), "{error}");
}
