//! Whatever a deployment loses, its tokens grow; what a counter by hand says repeats.

use crate::kit::{Fenced, LONG, SOON, connect, counter, lock, within};
use fencepost_core::Client;
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Look, Masters, Redis, Sentinel};
use std::time::Duration;

/// A token of the lock, which is free again.
async fn token(locks: &Client) -> u64 {
    let guard = within(SOON + SOON, locks.mutex("lock").unwrap().lock()).await.expect("it is granted");
    let token = guard.token().get();
    // Its answer may be that the data with it was lost.
    drop(guard.release().await);
    token
}

/// Two tokens and two values of a counter, each before and after a loss.
struct Loss {
    what: &'static str,
    tokens: (u64, u64),
    counters: (u64, u64),
}

impl Loss {
    /// The counter shows that there was a loss at all.
    #[track_caller]
    fn check(&self) {
        let Loss { what, tokens, counters } = self;
        assert!(counters.1 <= counters.0, "{what} rewinds a counter: {counters:?}");
        assert!(tokens.1 > tokens.0, "{what} does not rewind the tokens: {tokens:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_one_server_they_grow_through_the_eviction_of_the_key() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new().memory(0, "allkeys-random")).unwrap();
    let (locks, mut look) = (connect(&redis.url(), LONG).await, redis.look());
    let guard = lock(&locks, "lock").await;
    let (before, counted) = (guard.token(), counter(&mut look));
    // The server is full and throws out whatever it comes upon, until the lock and the counter are gone.
    look.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    for round in 0.. {
        assert!(round < 10_000, "nothing is evicted");
        let _ = look.try_ask::<()>(&["SET", "more", "1"]);
        if look.ask::<u64>(&["EXISTS", "fencepost:lock", "counter"]) == 0 {
            break;
        }
    }
    look.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    let other = connect(&redis.url(), LONG).await;
    let fresh = lock(&other, "lock").await;
    assert!(guard.ensure_held().is_ok(), "nothing could tell it yet: the two overlap");
    assert!(counter(&mut look) <= counted, "a counter repeats its value");
    let mut resource = Fenced::default();
    assert!(resource.write(fresh.token()) && fresh.token() > before);
    assert!(!resource.write(guard.token()), "the stale writer is stopped");
}

/// Redis breaks its promise here, and the page on it says so: what holds is the token.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_without_its_data_loses_the_grant_and_the_token_stops_the_stale_writer() {
    needs!(REDIS);
    let mut redis = Redis::start(&Config::new()).unwrap();
    let (one, two) = (connect(&redis.url(), LONG).await, connect(&redis.url(), LONG).await);
    let stale = lock(&one, "lock").await;
    redis.kill().unwrap();
    redis.restart().unwrap();
    let mutex = two.mutex("lock").unwrap();
    let fresh = within(SOON, mutex.lock()).await.expect("the server is empty");
    assert!(stale.ensure_held().is_ok(), "nothing could tell it yet: the two overlap");
    let mut resource = Fenced::default();
    assert!(resource.write(stale.token()), "nobody newer has written");
    assert!(resource.write(fresh.token()));
    assert!(!resource.write(stale.token()), "the stale writer is stopped");
}

/// A failover to a replica that lags is in the tests of failover.
#[tokio::test(flavor = "multi_thread")]
async fn with_sentinel_they_grow_through_flushes_deletions_and_restarts() {
    needs!(REDIS);
    let mut sentinel = Sentinel::start(1, &Config::new()).unwrap();
    let locks = connect(&sentinel.url(), LONG).await;
    for what in ["a flush", "a deletion", "a restart without data"] {
        let before = (token(&locks).await, counter(&mut sentinel.master().look()));
        match what {
            "a flush" => sentinel.master().look().ask::<()>(&["FLUSHALL"]),
            "a deletion" => sentinel.master().look().ask::<()>(&["DEL", "fencepost:lock", "counter"]),
            // Sooner than the sentinels would replace it, which is the trap: the replica copies its emptiness.
            _ => sentinel.master_mut().restart().unwrap(),
        }
        let after = (token(&locks).await, counter(&mut sentinel.master().look()));
        Loss { what, tokens: (before.0, after.0), counters: (before.1, after.1) }.check();
    }
}

/// A token by hand, as one would make it of counters: the highest that a majority counts.
fn count(masters: &Masters) -> u64 {
    let mut looks: Vec<Look> = masters.nodes().iter().map(Redis::look).collect();
    looks.iter_mut().take(2).map(counter).max().expect("two of three")
}

#[tokio::test(flavor = "multi_thread")]
async fn with_redlock_they_grow_through_the_loss_of_all_nodes() {
    needs!(REDIS);
    let mut masters = Masters::start(3, &Config::new()).unwrap();
    let lease = Duration::from_millis(500);
    let locks = connect(&format!("{}?max_ttl=1", masters.url()), lease).await;
    for what in ["a flush", "a deletion", "a restart without data", "a restart with old data"] {
        if what == "a restart with old data" {
            masters.nodes().iter().for_each(|node| node.look().ask::<()>(&["SAVE"]));
        }
        let before = (token(&locks).await, count(&masters));
        for node in 0..3 {
            match what {
                "a flush" => masters.node(node).look().ask::<()>(&["FLUSHALL"]),
                "a deletion" => {
                    let mut look = masters.node(node).look();
                    look.keys("*").iter().for_each(|key| look.ask::<()>(&["DEL", key]));
                }
                _ => masters.node(node).restart().unwrap(),
            }
        }
        let after = (token(&locks).await, count(&masters));
        Loss { what, tokens: (before.0, after.0), counters: (before.1, after.1) }.check();
    }
}
