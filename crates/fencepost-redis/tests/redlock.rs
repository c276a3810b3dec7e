//! Redlock on five real masters.

use std::time::{Duration, Instant};

use fencepost_core::{Locks, Registry, Token};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::redis::{Config, Masters};

const WAIT: Duration = Duration::from_secs(20);

async fn client(url: &str) -> Locks {
    let registry = Registry::new().with("redlock", fencepost_redis::redlock::open);
    Locks::builder().connect(&registry, url).await.expect("a majority can be reached")
}

async fn five() -> (Masters, String) {
    let masters = Masters::start(5, &Config::new()).expect("servers start");
    let url = masters.url();
    vouch(&url).await;
    (masters, url)
}

async fn vouch(url: &str) {
    // The aid of a client that is there for that alone.
    let mut aid = None;
    let _client = Locks::builder()
        .open(|given| {
            aid = Some(given.clone());
            Ok(fencepost_core::Memory::new())
        })
        .expect("memory opens");
    fencepost_redis::redlock::vouch(url, aid.expect("it was given")).await.expect("all nodes are there");
}

async fn cycle(locks: &Locks) -> Token {
    let guard = locks.mutex("lock").unwrap().lock().wait(WAIT).await.expect("a majority is there");
    let token = guard.token();
    guard.release().await.expect("it was held");
    token
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_nobody_vouched_for_stay_out() {
    let masters = Masters::start(3, &Config::new()).expect("servers start");
    let registry = Registry::new().with("redlock", fencepost_redis::redlock::open);
    let url = format!("{}?max_ttl=2", masters.url());
    let builder = Locks::builder().ttl(Duration::from_secs(1));
    let locks = builder.connect(&registry, &url).await.expect("a majority can be reached");
    let start = Instant::now();
    let mutex = locks.mutex("lock").unwrap();
    let guard = mutex.lock().wait(WAIT).await.expect("they come in by themselves");
    assert!(
        start.elapsed() >= Duration::from_millis(1_900),
        "they granted before the longest lease was over"
    );
    guard.release().await.expect("it was held");
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_five_down_work_and_three_answer_with_an_error() {
    let (mut masters, url) = five().await;
    let locks = client(&url).await;
    let mut last = cycle(&locks).await;
    for down in 0..2 {
        masters.node(down).stop().expect("it can be stopped");
        for _ in 0..50 {
            let token = cycle(&locks).await;
            assert!(token > last, "token {token} after {last}");
            last = token;
        }
    }
    masters.node(2).stop().expect("it can be stopped");
    let (start, wait) = (Instant::now(), Duration::from_secs(2));
    let error =
        locks.mutex("lock").unwrap().lock().wait(wait).await.expect_err("two of five are no majority");
    assert!(error.is_unreachable(), "{error}");
    assert!(start.elapsed() < wait + Duration::from_secs(5));
    for down in 0..3 {
        masters.node(down).cont().expect("it goes on");
    }
    assert!(cycle(&locks).await > last);
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_through_flushes_and_restarts_of_a_minority() {
    let (mut masters, url) = five().await;
    let locks = client(&url).await;
    let mut last = cycle(&locks).await;
    for down in 0..4 {
        let node = down % 2;
        if down < 2 {
            masters.node(node).look().ask::<String>(&["FLUSHALL"]);
        } else {
            masters.node(node).kill().expect("it can be killed");
            masters.node(node).restart().expect("it comes back");
        }
        for _ in 0..20 {
            let token = cycle(&locks).await;
            assert!(token > last, "token {token} after {last}");
            last = token;
        }
    }
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contenders_leave_nothing_and_nobody_is_stuck() {
    let (masters, url) = five().await;
    let clients = [client(&url).await, client(&url).await];
    let mut running = Vec::new();
    for task in 0..16 {
        let locks = clients[task % 2].clone();
        running.push(tokio::spawn(async move {
            for _ in 0..15 {
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
        for key in look.keys("fencepost:*") {
            assert!(look.ask::<i64>(&["PTTL", &key]) > 0, "{key} never expires");
            let fields: Vec<Vec<u8>> = look.ask(&["HKEYS", &key]);
            let left = fields.iter().filter(|field| field.first() == Some(&b'w')).count();
            assert_eq!(left, 0, "somebody still waits");
        }
    }
}
