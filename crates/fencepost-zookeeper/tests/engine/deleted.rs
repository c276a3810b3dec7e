//! Nodes that an operator takes away from a holder.

use fencepost_testkit::needs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fencepost_core::{
    Attempt, BackendUrl, Claim, ClaimId, Clock, Eviction, Guard, HolderInfo, How, Loss, Mode, Name, Registry,
    Want,
};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::zookeeper::{Config, Proxied, ZooKeeper, word};
use tokio::time::timeout;
use zookeeper_client::{Acl, Acls, AuthId, Permission};

use crate::kit::{
    LASTING, SOON, address, bare, bare_at, client, client_of, eventually, near, nodes, path, requests,
};

/// No renewal comes before the end of a test.
const LONG: Duration = Duration::from_secs(1_200);

/// Waits until so many nodes below `path` are watched. Returns how many requests that took.
async fn watched(server: SocketAddr, path: &str, count: usize) -> u64 {
    let mut looks = 0;
    eventually("the nodes are watched", || {
        looks += 1;
        let all = word(server, "wchp").expect("the server answers");
        all.lines().filter(|line| line.starts_with(path) && line.contains("_c_")).count() == count
    })
    .await;
    looks
}

async fn told(guard: &Guard, node: &str) {
    assert_eq!(timeout(SOON, guard.lost()).await.expect("the holder is told"), Loss::Deleted);
    let text = guard.ensure_held().expect_err("it is lost").to_string();
    assert!(text.contains(&format!("its node {node} was deleted")), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_is_told_that_its_node_was_deleted() {
    needs!(ZOOKEEPER);
    let server = ZooKeeper::start(&Config::new()).expect("a server starts");
    let locks = client(&format!("{}/held?{LASTING}", server.url())).await;
    let bare = bare_at(server.address()).await;
    let guard = locks.mutex("lock").expect("a good name").lock().ttl(LONG).await.expect("it is free");
    let other = locks.mutex("other").expect("a good name").lock().ttl(LONG).await.expect("it is free");
    let three = locks.semaphore("three", 3).expect("a good name");
    let two = three.acquire_many(2).ttl(LONG).await.expect("they are free");
    watched(server.address(), "/held/", 4).await;
    let of = |name: &str| {
        let all = nodes(server.address(), &format!("/held/{name}"));
        all.last().expect("it is held").clone()
    };
    for (guard, node) in [(&guard, of("lock")), (&two, of("three"))] {
        let start = Instant::now();
        bare.delete(&node, None).await.expect("it was there");
        told(guard, &node).await;
        println!("told after {:?}", start.elapsed());
        assert!(guard.last_renewal_error().is_none());
    }
    other.ensure_held().expect("nobody deleted it");
    for guard in [guard, two] {
        assert!(guard.release().await.expect_err("it was lost").is_lost());
    }
    // A watch ends with its node, for every way in which the node goes.
    watched(server.address(), "/held/", 1).await;
    other.release().await.expect("it was held");
    watched(server.address(), "/held/", 0).await;
    locks.close().await;
}

/// The notice of the eviction takes it several answers, and the deletion of its node one. The mark in its node comes before both.
#[tokio::test(flavor = "multi_thread")]
async fn a_far_holder_that_is_evicted_at_once_is_told_of_that_and_not_of_a_deletion() {
    needs!(ZOOKEEPER);
    let mut server = Proxied::start(&Config::new()).expect("a server starts");
    let far = client(&format!("{}/held?{LASTING}", server.url())).await;
    let near = client(&format!("{}/held?{LASTING}", server.direct_url())).await;
    let guard = far.mutex("lock").expect("a good name").lock().ttl(LONG).await.expect("it is free");
    let three = far.semaphore("three", 3).expect("a good name");
    let two = three.acquire_many(2).ttl(LONG).await.expect("they are free");
    watched(server.address(), "/held/", 3).await;
    server.delay(Duration::from_millis(200)).expect("the network can be slow");
    for guard in [&guard, &two] {
        let how = Eviction::new(true).because("moved");
        near.evict(guard.name().as_str(), guard.token(), &how).await.expect("it holds");
        assert_eq!(timeout(SOON, guard.lost()).await.expect("the holder is told"), Loss::Evicted);
        let is_known = || guard.loss_detail().is_some_and(|detail| detail.contains("moved"));
        eventually("the reason is added", is_known).await;
    }
    server.mend().expect("the network can be mended");
    drop((guard, two));
    far.close().await;
    near.close().await;
}

/// It asks for the watch while the notice is on its way.
#[tokio::test(flavor = "multi_thread")]
async fn a_far_holder_that_is_evicted_before_its_node_is_watched_is_told_of_that_and_not_of_a_deletion() {
    needs!(ZOOKEEPER);
    let mut server = Proxied::start(&Config::new()).expect("a server starts");
    let far = client(&format!("{}/held?{LASTING}", server.url())).await;
    let near = client(&format!("{}/held?{LASTING}", server.direct_url())).await;
    let guard = far.mutex("lock").expect("a good name").lock().ttl(LONG).await.expect("it is free");
    server.delay(Duration::from_millis(700)).expect("the network can be slow");
    let how = Eviction::new(true).because("moved");
    let (evicted, loss) = tokio::join!(near.evict("lock", guard.token(), &how), timeout(SOON, guard.lost()));
    evicted.expect("it holds");
    assert_eq!(loss.expect("the holder is told"), Loss::Evicted);
    server.mend().expect("the network can be mended");
    drop(guard);
    far.close().await;
    near.close().await;
}

/// Nobody has written into its node, so the holder looks for a notice, and its answer would take longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_far_holder_whose_node_was_deleted_is_told_before_it_knows_whether_it_was_evicted() {
    needs!(ZOOKEEPER);
    let mut server = Proxied::start(&Config::new()).expect("a server starts");
    let locks = client(&format!("{}/held?{LASTING}", server.url())).await;
    let bare = bare_at(server.address()).await;
    let (delay, begun) = (Duration::from_secs(1), Instant::now());
    loop {
        let guard = locks.mutex("lock").expect("a good name").lock().ttl(LONG).await.expect("it is free");
        watched(server.address(), "/held/", 1).await;
        server.delay(delay).expect("the network can be slow");
        let node = nodes(server.address(), "/held/lock").pop().expect("it is held");
        let start = Instant::now();
        bare.delete(&node, None).await.expect("it was there");
        told(&guard, &node).await;
        let took = start.elapsed();
        server.mend().expect("the network can be mended");
        drop(guard);
        if took < delay * 2 {
            break;
        }
        // A busy machine may hold it up.
        assert!(
            begun.elapsed() < SOON,
            "told after {took:?}: the event takes {delay:?}, and an answer twice as long"
        );
    }
    locks.close().await;
}

/// It has made its lease, and so does the next one in the queue: neither may wait for the other's.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_for_a_permit_whose_node_was_deleted_queues_again() {
    needs!(ZOOKEEPER);
    let path = path();
    let (locks, bare) = (near(&path).await, bare().await);
    let semaphore = locks.semaphore("job", 1).expect("a good name");
    let guard = semaphore.acquire().await.expect("it is free");
    let listed = |folder: &str| nodes(address(), &format!("{path}/job/{folder}"));
    let wait = || {
        let semaphore = semaphore.clone();
        tokio::spawn(async move { semaphore.acquire().await?.release().await })
    };
    let second = wait();
    eventually("the second has its lease", || listed("leases").len() == 2).await;
    let node = listed("locks").pop().expect("it is in the queue");
    let third = wait();
    eventually("the third waits", || listed("locks").len() == 2).await;
    bare.delete(&node, None).await.expect("it was there");
    eventually("the third has its turn, and the second waits", || {
        listed("locks").len() == 2 && listed("leases").len() == 2
    })
    .await;
    guard.release().await.expect("it was held");
    for waiter in [second, third] {
        timeout(SOON, waiter).await.expect("it is granted").expect("no panic").expect("it held");
    }
    locks.close().await;
}

/// The answer to the request that made them is lost, and one is deleted before the claim looks for them.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_finds_some_of_its_nodes_holds_no_more_permits_than_nodes() {
    needs!(ZOOKEEPER);
    let mut server = Proxied::start(&Config::new()).expect("a server starts");
    // A request takes several answers of 1.4 s each. With the usual limit of 5 s, it fails on a busy machine before its nodes are seen.
    let locks = client(&format!("{}/held?session=60s&timeout=60s", server.url())).await;
    let bare = bare_at(server.address()).await;
    let three = locks.semaphore("three", 3).expect("a good name");
    three.acquire().await.expect("it is free").release().await.expect("it was held");
    // The claim has all answers three such times after its nodes are made.
    server.delay(Duration::from_millis(700)).expect("the network can be slow");
    let asks = tokio::spawn(async move { three.acquire_many(2).await });
    let address = server.address();
    let leases = || nodes(address, "/held/three/leases");
    eventually("its nodes are made", || leases().len() == 2).await;
    bare.delete(&leases()[0], None).await.expect("it was there");
    server.cut().expect("the network can be cut");
    server.mend().expect("the network can be mended");
    match timeout(SOON, asks).await.expect("it is answered").expect("no panic") {
        Ok(two) if leases().len() == 2 => two.release().await.expect("it was held"),
        // On a busy machine it was granted before the deletion, and is told.
        Ok(two) => assert_eq!(timeout(SOON, two.lost()).await.expect("two by one node"), Loss::Deleted),
        // A claim whose answer was lost on a slow connection may also fail, and holds nothing then.
        Err(error) => {
            assert!(error.is_unreachable(), "{error}");
            eventually("nothing of it is left", || leases().is_empty()).await;
        }
    }
    locks.close().await;
}

/// The same, where the claim cannot delete the node that is left when it finds it, and asks again.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_cannot_delete_the_rest_of_its_nodes_is_not_granted() {
    needs!(ZOOKEEPER);
    let mut server = Proxied::start(&Config::new()).expect("a server starts");
    let bare = bare_at(server.address()).await;
    let helper =
        fencepost_core::Client::builder().connect(&Registry::new(), "memory:").await.expect("it opens");
    let runtime = helper.runtime().clone();
    // The claim fails because its connection is cut, and never because the machine is busy.
    let url =
        BackendUrl::parse(&format!("{}/held?session=60s&timeout=60s", server.url())).expect("a good URL");
    let backend = fencepost_zookeeper::open(url, runtime.clone()).await.expect("it connects");
    let entry = |id: u128, n: u32| {
        let want = Want { name: Name::new("three").expect("a good name"), mode: Mode::Permits { n, of: 3 } };
        let (id, holder) = (ClaimId::from_u128(id), HolderInfo::labelled("test"));
        Arc::clone(&backend).entry(Arc::new(Claim::new(id, want, LONG, holder, runtime.clone())), How::Enter)
    };
    // The folders are there from now on.
    let mut first = entry(1, 1);
    assert!(matches!(first.attempt().await, Ok(Attempt::Granted(_))));
    first.withdraw().await.expect("it answers");
    let (folder, start, mut id) = ("/held/three/leases", Instant::now(), 1);
    let undeletable = Permission::READ | Permission::CREATE | Permission::ADMIN;
    let mut two = loop {
        id += 1;
        let mut two = entry(id, 2);
        server.delay(Duration::from_millis(700)).expect("the network can be slow");
        let asks = tokio::spawn(async move { (two.attempt().await, two) });
        eventually("its nodes are made", || nodes(server.address(), folder).len() == 2).await;
        server.cut().expect("the network can be cut");
        bare.delete(&nodes(server.address(), folder)[0], None).await.expect("it was there");
        bare.set_acl(folder, &[Acl::new(undeletable, AuthId::anyone())], None).await.expect("it is there");
        server.mend().expect("the network can be mended");
        let (answer, mut two) = asks.await.expect("no panic");
        let Ok(answer) = answer else { break two };
        // On a busy machine it had its answers before the cut.
        assert!(start.elapsed() < SOON, "{answer:?}, although its answer is lost");
        bare.set_acl(folder, &Acls::anyone_all(), None).await.expect("it is there");
        two.withdraw().await.expect("it answers");
    };
    let start = Instant::now();
    loop {
        let error = two.attempt().await.expect_err("it cannot delete the other node");
        if error.is_denied() {
            break;
        }
        assert!(start.elapsed() < SOON, "{error}");
    }
    bare.set_acl(folder, &Acls::anyone_all(), None).await.expect("it is there");
    let answer = two.attempt().await.expect("it answers");
    assert!(matches!(answer, Attempt::Gone), "{answer:?} with {:?}", nodes(server.address(), folder));
    assert!(nodes(server.address(), folder).is_empty(), "the other node is left");
    two.withdraw().await.expect("it answers");
    drop((first, two));
    backend.close().await;
    helper.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_deleted_in_an_outage_is_told_after_it() {
    needs!(ZOOKEEPER);
    let mut server = Proxied::start(&Config::new()).expect("a server starts");
    let locks = client(&format!("{}/held?{LASTING}", server.url())).await;
    let bare = bare_at(server.address()).await;
    let old = locks.mutex("old").expect("a good name").lock().ttl(LONG).await.expect("it is free");
    watched(server.address(), "/held/", 1).await;
    // This one is too young to be watched, perhaps.
    let young = locks.mutex("young").expect("a good name").lock().ttl(LONG).await.expect("it is free");
    let kept = locks.mutex("kept").expect("a good name").lock().ttl(LONG).await.expect("it is free");
    server.cut().expect("the network can be cut");
    for (name, guard) in [("old", &old), ("young", &young)] {
        let node = nodes(server.address(), &format!("/held/{name}")).pop().expect("it is held");
        bare.delete(&node, None).await.expect("it was there");
        assert!(guard.ensure_held().is_ok(), "nobody can tell it");
    }
    server.mend().expect("the network can be mended");
    for guard in [&old, &young] {
        assert_eq!(timeout(SOON, guard.lost()).await.expect("the holder is told"), Loss::Deleted);
        assert!(
            guard.loss_detail().is_some_and(|detail| detail.contains("/held/")),
            "{:?}",
            guard.loss_detail()
        );
    }
    kept.ensure_held().expect("nobody deleted it");
    // It is watched again.
    watched(server.address(), "/held/", 1).await;
    let node = nodes(server.address(), "/held/kept").pop().expect("it is held");
    bare.delete(&node, None).await.expect("it was there");
    told(&kept, &node).await;
    drop((old, young, kept));
    locks.close().await;
}

/// After a reconnection the driver sets all watches again, and loses the session if they don't fit into one request of 128 KiB. The paths
/// of these nodes do not, because their names are long.
#[tokio::test(flavor = "multi_thread")]
async fn held_locks_whose_paths_fill_no_request_outlive_a_broken_connection() {
    needs!(ZOOKEEPER);
    let mut server = Proxied::start(&Config::new()).expect("a server starts");
    // Each guard shows that the connection is mended with the next probe of the session, which comes after a sixth of its time.
    let locks = client(&format!("{}/held?session=30s&timeout=20s", server.url())).await;
    let mut guards = Vec::new();
    for number in 0..600 {
        let lock = locks.mutex(&format!("{number:0>200}")).expect("a good name");
        guards.push(lock.lock().ttl(LONG).await.expect("it is free"));
    }
    eventually("many are watched", || {
        word(server.address(), "wchp").is_ok_and(|all| all.matches("_c_").count() > 200)
    })
    .await;
    server.cut().expect("the network can be cut");
    let suspect = |guard: &Guard| guard.last_renewal_error().is_some();
    eventually("the connection is broken", || guards.iter().all(suspect)).await;
    server.mend().expect("the network can be mended");
    eventually("it is mended", || !guards.iter().any(suspect)).await;
    assert!(guards.iter().all(|guard| guard.ensure_held().is_ok()));
    guards.clear();
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_held_for_less_than_a_second_pays_nothing() {
    needs!(ZOOKEEPER);
    let server = ZooKeeper::start(&Config::new()).expect("a server starts");
    // No lock is held for long by its clock, which stands still, however busy the machine is.
    let clock = Clock::manual();
    let locks = client_of(&clock, &format!("{}/held?{LASTING}", server.url())).await;
    let mutex = locks.mutex("lock").expect("a good name");
    mutex.lock().await.expect("it is free").release().await.expect("it was held");
    let before = requests(server.address());
    for _ in 0..50 {
        mutex.lock().await.expect("it is free").release().await.expect("it was held");
    }
    // On a slow machine the server removes the empty folder a few times. A watch would cost two requests for each cycle.
    let sent = requests(server.address()) - before;
    assert!(sent < 50 * 4, "{sent} requests for 50 cycles");
    clock.advance_to(clock.now() + Duration::from_secs(2));
    watched(server.address(), "/held/", 0).await;
    locks.close().await;
}

/// The holder's clock stands still while the nodes are watched, so that each answer is a fast one.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_with_a_fast_answer_is_one_request() {
    needs!(ZOOKEEPER);
    let server = ZooKeeper::start(&Config::new()).expect("a server starts");
    let clock = Clock::manual();
    let locks = client_of(&clock, &format!("{}/held?{LASTING}", server.url())).await;
    let many = locks.semaphore("many", 50).expect("a good name");
    let guard = many.acquire_many(50).ttl(LONG).await.expect("they are free");
    let before = requests(server.address());
    clock.advance_to(clock.now() + Duration::from_secs(2));
    let looks = watched(server.address(), "/held/", 50).await;
    // The requests for the counts are no client's.
    let sent = requests(server.address()) - before - looks;
    assert!((50..=60).contains(&sent), "{sent} requests for 50 nodes");
    guard.release().await.expect("it was held");
    locks.close().await;
}
