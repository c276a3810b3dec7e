//! Redlock on five real masters.

use fencepost_testkit::needs;
use std::time::{Duration, Instant};

use fencepost_core::{Client, Guard, Registry, Token};
use fencepost_quorum::Quorum;
use fencepost_testkit::faults::Faults;
use fencepost_testkit::redis::{Config, Look, Masters, Redis};
use fencepost_testkit::wait::eventually;

mod barrier;
mod look;
mod records;
mod rotated;
mod start;

const WAIT: Duration = Duration::from_secs(20);
/// How often a test begins anew on a machine that is too slow to show anything.
const TRIES: u32 = 5;

async fn client(url: &str) -> Client {
    let registry = Registry::new().with("redlock", fencepost_redis::redlock::open);
    let builder = Client::builder().release_timeout(WAIT);
    builder.connect(&registry, url).await.expect("a majority can be reached")
}

/// A client of nodes that all run. It waits for those that are late, as they may be by seconds on a busy machine.
async fn patient_client(url: &str) -> Client {
    let registry = Registry::new().with("redlock", fencepost_redis::redlock::open);
    let builder = Client::builder().attempt_timeout(WAIT).release_timeout(WAIT);
    let url = format!("{}&node_timeout=10s", patient(url));
    builder.connect(&registry, &url).await.expect("a majority can be reached")
}

/// Returns the URL with time limits of a request that a busy machine meets.
fn patient(url: &str) -> String {
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}timeout=10s&connect_timeout=10s")
}

async fn five() -> (Masters, String) {
    let masters = Masters::start(5, &Config::new()).expect("servers start");
    let url = masters.url();
    vouch(&url).await;
    (masters, url)
}

async fn vouch(url: &str) {
    // The runtime of a client that is there for that alone.
    let beside = Client::builder().connect(&Registry::new(), "memory:").await.expect("memory opens");
    let url = patient(url);
    fencepost_redis::redlock::vouch(&url, beside.runtime().clone()).await.expect("all nodes are there");
}

async fn cycle(locks: &Client) -> Token {
    let guard = locks.mutex("lock").unwrap().lock().wait(WAIT).await.expect("a majority is there");
    let token = guard.token();
    release(locks, guard).await;
    token
}

/// Releases what is held. On a busy machine a lease of a second may have ended before.
async fn release(locks: &Client, guard: Guard) {
    let until = guard.valid_until();
    let released = guard.release().await;
    assert!(released.is_ok() || locks.runtime().clock().now() >= until, "it was held: {released:?}");
}

/// A cycle whose token is greater than the last one.
async fn grow(locks: &Client, last: &mut Token) {
    let token = cycle(locks).await;
    assert!(token > *last, "token {token} after {last}");
    *last = token;
}

/// It loses all its data: it is flushed, or restarted without having saved any.
fn lose(node: &mut Redis, flushed: bool) {
    if flushed {
        node.look().ask::<String>(&["FLUSHALL"]);
    } else {
        node.kill().expect("it can be killed");
        node.restart().expect("it comes back");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_nobody_vouched_for_stay_out() {
    needs!(REDIS);
    let masters = Masters::start(3, &Config::new()).expect("servers start");
    let registry = Registry::new().with("redlock", fencepost_redis::redlock::open);
    let url = format!("{}?max_ttl=2", masters.url());
    let builder = Client::builder().ttl(Duration::from_secs(1));
    let locks = builder.connect(&registry, &url).await.expect("a majority can be reached");
    let start = Instant::now();
    let mutex = locks.mutex("lock").unwrap();
    let guard = mutex.lock().wait(WAIT).await.expect("they come in by themselves");
    assert!(
        start.elapsed() >= Duration::from_millis(1_900),
        "they granted before the longest lease had expired"
    );
    release(&locks, guard).await;
    locks.close().await;
}

/// A client whose leases are short enough for a deployment whose nodes stay out for two seconds.
async fn brief_client(url: &str) -> Client {
    let registry = Registry::new().with("redlock", fencepost_redis::redlock::open);
    let builder = Client::builder().ttl(Duration::from_secs(1));
    builder.connect(&registry, url).await.expect("a majority can be reached")
}

/// Of three one is stopped and one comes back: without that one there is no majority.
async fn comes_back(config: &Config) {
    let mut masters = Masters::start(3, config).expect("servers start");
    let url = format!("{}?max_ttl=2", masters.url());
    vouch(&url).await;
    let locks = brief_client(&url).await;
    let last = cycle(&locks).await;
    masters.node(0).kill().expect("it can be killed");
    let start = Instant::now();
    masters.node(0).restart().expect("it comes back");
    masters.node(1).stop().expect("it can be stopped");
    let mutex = locks.mutex("lock").unwrap();
    // Granted at once, the lock was granted by a node that may have forgotten a grant.
    let guard = match mutex.lock().wait(Duration::from_millis(500)).await {
        Ok(guard) => guard,
        Err(_) => mutex.lock().wait(WAIT).await.expect("it comes in by itself"),
    };
    assert!(
        start.elapsed() >= Duration::from_millis(1_900),
        "it granted before the longest lease had expired"
    );
    assert!(guard.token() > last);
    release(&locks, guard).await;
    masters.node(1).cont().expect("it goes on");
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_restarted_empty_stays_out() {
    needs!(REDIS);
    comes_back(&Config::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_restarted_with_all_its_data_stays_out_too() {
    needs!(REDIS);
    comes_back(&Config::new().durable()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_through_the_loss_of_all_data() {
    needs!(REDIS);
    let mut masters = Masters::start(3, &Config::new()).expect("servers start");
    let url = format!("{}?max_ttl=1", masters.url());
    vouch(&url).await;
    let locks = brief_client(&url).await;
    let mut last = cycle(&locks).await;
    for loss in 0..2 {
        for number in 0..3 {
            lose(masters.node(number), loss == 0);
        }
        grow(&locks, &mut last).await;
    }
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_five_killed_work() {
    needs!(REDIS);
    let (mut masters, url) = five().await;
    let locks = client(&url).await;
    let mut last = cycle(&locks).await;
    for down in [0, 3] {
        masters.node(down).kill().expect("it can be killed");
        for _ in 0..50 {
            grow(&locks, &mut last).await;
        }
    }
    locks.close().await;
    // A new client does without them, too.
    let late = client(&url).await;
    assert!(cycle(&late).await > last);
    late.close().await;
}

/// The release wakes the waiter: polling would take a second or two for each turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_wakes_the_oldest_at_once() {
    needs!(REDIS);
    let (_masters, url) = five().await;
    let clients = [patient_client(&url).await, patient_client(&url).await];
    let mut times = Vec::new();
    let mut guard = clients[0].mutex("lock").unwrap().lock().wait(WAIT).await.expect("it is free");
    for turn in 1..=40 {
        let locks = clients[turn % 2].clone();
        let next =
            tokio::spawn(
                async move { locks.mutex("lock").unwrap().lock().wait(WAIT).await.expect("its turn") },
            );
        while !clients[0].inspect("lock").await.is_ok_and(|info| info.waiters().count() > 0) {
            tokio::task::yield_now().await;
        }
        let start = Instant::now();
        guard.release().await.expect("it was held");
        guard = next.await.expect("no panic");
        times.push(start.elapsed());
    }
    // A busy machine delays some of them.
    times.sort_unstable();
    assert!(times[times.len() / 2] < Duration::from_millis(500), "they were not told: {times:?}");
    guard.release().await.expect("it was held");
    for locks in clients {
        locks.close().await;
    }
}

/// One vote and one release at each node, and nothing else; INFO costs a server more than the rest of a vote. Two of three are there, so that each grant and each release has their answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cycle_is_two_commands_for_each_node() {
    needs!(REDIS);
    let mut masters = Masters::start(3, &Config::new()).expect("servers start");
    vouch(&masters.url()).await;
    masters.node(2).stop().expect("it can be stopped");
    let mut looks = [masters.node(0).look(), masters.node(1).look()];
    for _ in 0..50 {
        let (calls, slowest) = calls_of_cycles(&masters.url(), &mut looks, 100).await;
        // A request that a node has not answered by then is sent again: a machine that stands still that long counts nothing.
        if slowest < Quorum::PATIENCE {
            // Looking is an INFO, too.
            return assert_eq!(calls, [(0, 200); 2]);
        }
    }
    panic!("the machine stood still in each of fifty runs");
}

/// How often INFO and EVALSHA were called at each node for so many cycles of a new client, and the time of its slowest one.
async fn calls_of_cycles(url: &str, looks: &mut [Look; 2], cycles: u32) -> ([(u64, u64); 2], Duration) {
    let locks = client(url).await;
    let mut slowest = Duration::ZERO;
    for number in 0..=cycles {
        let start = Instant::now();
        cycle(&locks).await;
        slowest = slowest.max(start.elapsed());
        if number == 0 {
            for look in looks.iter_mut() {
                look.ask::<String>(&["CONFIG", "RESETSTAT"]);
            }
        }
    }
    let calls = looks.each_mut().map(|look| (look.calls("info"), look.calls("evalsha")));
    // Nothing of it comes after that.
    locks.close().await;
    (calls, slowest)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_five_down_work_and_three_answer_with_an_error() {
    needs!(REDIS);
    let (mut masters, url) = five().await;
    let locks = client(&url).await;
    let mut last = cycle(&locks).await;
    for down in 0..2 {
        masters.node(down).stop().expect("it can be stopped");
        for _ in 0..50 {
            grow(&locks, &mut last).await;
        }
    }
    masters.node(2).stop().expect("it can be stopped");
    let (start, wait) = (Instant::now(), Duration::from_secs(2));
    let error =
        locks.mutex("lock").unwrap().lock().wait(wait).await.expect_err("two of five are no majority");
    assert!(error.is_unreachable(), "{error}");
    assert!(start.elapsed() < wait + WAIT);
    for down in 0..3 {
        masters.node(down).cont().expect("it goes on");
    }
    assert!(cycle(&locks).await > last);
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_through_flushes_and_restarts_of_a_minority() {
    needs!(REDIS);
    let (mut masters, url) = five().await;
    let locks = client(&url).await;
    let mut last = cycle(&locks).await;
    for down in 0..4 {
        lose(masters.node(down % 2), down < 2);
        for _ in 0..20 {
            grow(&locks, &mut last).await;
        }
    }
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contenders_leave_nothing_and_nobody_is_stuck() {
    needs!(REDIS);
    let (masters, url) = five().await;
    let clients = [client(&url).await, client(&url).await];
    let mut running = Vec::new();
    for task in 0..16 {
        let locks = clients[task % 2].clone();
        running.push(tokio::spawn(async move {
            for _ in 0..25 {
                cycle(&locks).await;
            }
        }));
    }
    for task in running {
        tokio::time::timeout(Duration::from_secs(60), task)
            .await
            .expect("nobody is stuck")
            .expect("no panic");
    }
    for locks in clients {
        locks.close().await;
    }
    for node in masters.nodes() {
        let mut look = node.look();
        for key in look.keys("*") {
            // The marker stays.
            assert!(
                key == "redlock:fencepost:" || look.ask::<i64>(&["PTTL", &key]) > 0,
                "{key} never expires"
            );
        }
        let registry = Registry::new().with("redis", fencepost_redis::open);
        let locks = Client::builder().connect(&registry, &node.url()).await.expect("it answers");
        // A lease is longer than this wait.
        eventually(WAIT, "nothing is left", async || {
            locks.inspect("lock").await.is_ok_and(|info| info.claims.is_empty())
        })
        .await;
        locks.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_under_several_names_is_no_quorum() {
    needs!(REDIS);
    let masters = Masters::start(1, &Config::new()).expect("a server starts");
    let port = masters.nodes()[0].port();
    let registry = Registry::new().with("redlock", fencepost_redis::redlock::open);
    for (url, kind) in [
        (
            format!(
                "redlock:redis://127.0.0.1:{port},redis://localhost:{port},{}",
                masters.nodes()[0].unix_url()
            ),
            false,
        ),
        (
            format!(
                "redlock:redis://127.0.0.1:{port}/0,redis://127.0.0.1:{port}/1,redis://127.0.0.1:{port}/2"
            ),
            true,
        ),
    ] {
        let error = Client::builder().connect(&registry, &url).await.expect_err("it is one server");
        assert_eq!((error.is_invalid(), error.is_configuration()), (kind, !kind), "{error}");
    }
}

/// A lock that is held gets its vote back at each node that restarted and votes again, so that all may restart one by one.
async fn outlives_restarts(nodes: usize, vouched: bool) {
    for _ in 0..TRIES {
        if hold_over_restarts(nodes, vouched).await {
            return;
        }
    }
    panic!("a lease of two seconds ended in each of {TRIES} runs");
}

/// Returns whether the lock was held all the time, for which a busy machine may be too slow. In no case has it a second holder.
async fn hold_over_restarts(nodes: usize, vouched: bool) -> bool {
    let mut masters = Masters::start(nodes, &Config::new()).expect("servers start");
    let url = format!("{}?max_ttl=2", masters.url());
    vouch(&url).await;
    let registry = Registry::new().with("redlock", fencepost_redis::redlock::open);
    let builder = Client::builder().ttl(Duration::from_secs(2));
    let locks = builder.connect(&registry, &url).await.expect("a majority can be reached");
    let guard = locks.mutex("lock").unwrap().lock().wait(WAIT).await.expect("a majority is there");
    let other = brief_client(&url).await;
    for number in 0..nodes {
        masters.node(number).kill().expect("it can be killed");
        masters.node(number).restart().expect("it comes back");
        if vouched {
            vouch(&url).await;
        }
        let (registry, at) =
            (Registry::new().with("redis", fencepost_redis::open), masters.nodes()[number].url());
        let node = Client::builder().connect(&registry, &patient(&at)).await.expect("it answers");
        eventually(WAIT, "the node votes for it again", async || {
            let info = node.inspect("lock").await.expect("it answers");
            let back = info.holders().any(|holder| holder.token == Some(guard.token()));
            back && info.last_token >= Some(guard.token()) || guard.ensure_held().is_err()
        })
        .await;
        node.close().await;
        if !is_held_by(&guard, &other).await {
            return false;
        }
    }
    // As strong as at first.
    for down in (0..nodes / 2).map(|down| 2 * down) {
        masters.node(down).kill().expect("it can be killed");
    }
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) {
        if !is_held_by(&guard, &other).await {
            return false;
        }
    }
    let token = guard.token();
    release(&locks, guard).await;
    assert!(cycle(&other).await > token);
    locks.close().await;
    other.close().await;
    true
}

/// Returns whether the guard is held. Then nobody else may be granted the lock.
async fn is_held_by(guard: &Guard, other: &Client) -> bool {
    let busy = other.mutex("lock").unwrap().try_lock().await;
    let is_held = guard.ensure_held().is_ok();
    assert!(!is_held || !matches!(busy, Ok(Some(_))), "a second majority");
    is_held
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_lock_outlives_restarts_of_all_nodes_that_are_vouched_for() {
    needs!(REDIS);
    outlives_restarts(5, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_lock_outlives_restarts_of_all_nodes_that_stay_out_for_a_while() {
    needs!(REDIS);
    outlives_restarts(3, false).await;
}
