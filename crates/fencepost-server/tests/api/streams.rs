//! Streams: a lock that is held by a connection, and what changes.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use fencepost_core::testing::TestEngine;
use fencepost_core::{Client, ErrorKind, Eviction};
use fencepost_server::Options;
use serde_json::json;

use crate::kit::{Events, acquire, answer, get, lease, pause, post, service};

const SOON: Duration = Duration::from_secs(20);
/// How often a test begins anew on a machine that is too slow to show anything.
const TRIES: u32 = 5;

/// Waits until the lock has this number of claims.
async fn claims(locks: &Client, count: usize) {
    let look = async {
        while locks.inspect("a").await.unwrap().claims.len() != count {
            pause().await;
        }
    };
    tokio::time::timeout(SOON, look).await.expect("the claims");
}

#[tokio::test]
async fn a_stream_waits_holds_and_releases_when_it_is_closed() {
    let (router, locks) = service().await;
    let (_, held) = acquire(&router, "a", &json!({})).await;
    let mut events = Events::hold(&router, "a", &json!({ "wait": "30s", "holder": "job 7" })).await;
    assert_eq!(events.next().await.unwrap().0, "waiting");
    // It says something at least every 3 s, also while it waits.
    assert_eq!(events.next().await.unwrap().0, "waiting");
    let released = Instant::now();
    answer(&router, post("/v1/leases/release", &lease(&held))).await;
    let granted = events.next_of("granted").await;
    assert!(granted["token"].as_u64() > held["token"].as_u64());
    let info = locks.inspect("a").await.unwrap();
    let holder = info.holders().next().unwrap();
    assert!(holder.holder.label == "job 7" && !holder.detached);
    // It waited for at least 3 s. The caller counts from the moment at which it sent the request.
    let valid = granted["valid_ms"].as_u64().unwrap();
    assert!(valid >= 13_000, "{granted}");
    let (event, held) = events.next().await.unwrap();
    assert_eq!((event.as_str(), &held["token"]), ("held", &granted["token"]));
    let later = valid + u64::try_from(released.elapsed().as_millis()).unwrap();
    assert!((valid + 2_900..=later).contains(&held["valid_ms"].as_u64().unwrap()), "{held}");
    assert_eq!(answer(&router, post("/v1/leases/release", &lease(&granted))).await.0, StatusCode::NO_CONTENT);
    claims(&locks, 0).await;
}

#[tokio::test]
async fn the_caller_of_a_short_lease_stops_before_the_lease_ends() {
    for _ in 0..TRIES {
        if hold_a_short_lease().await {
            return;
        }
    }
    panic!("an event was late in each of {TRIES} tries");
}

/// Returns whether each event came in time, for which a busy machine may be too slow.
async fn hold_a_short_lease() -> bool {
    let (router, _locks) = service().await;
    let sent = Instant::now();
    let mut events = Events::hold(&router, "a", &json!({ "ttl": "2s" })).await;
    let mut valid = events.next_of("granted").await["valid_ms"].as_u64().unwrap();
    // Over several renewals each event comes before the one before it says to stop.
    for _ in 0..12 {
        let until = sent + Duration::from_millis(valid);
        let left = until.saturating_duration_since(Instant::now());
        assert!(left.as_millis() <= 1600, "{left:?}");
        if left.as_millis() < 500 {
            return false;
        }
        let next = tokio::time::timeout(left, events.next()).await;
        let Ok(Some((event, held))) = next else { return false };
        if event != "held" {
            return false;
        }
        valid = held["valid_ms"].as_u64().unwrap();
    }
    true
}

#[tokio::test]
async fn a_stream_that_is_closed_leaves_the_queue() {
    let (router, locks) = service().await;
    acquire(&router, "a", &json!({})).await;
    let mut events = Events::hold(&router, "a", &json!({ "wait": "30s" })).await;
    events.next().await.unwrap();
    // The stream asks the engine as it is read.
    let reading = tokio::spawn(async move { events.next().await });
    claims(&locks, 2).await;
    reading.abort();
    claims(&locks, 1).await;
}

#[tokio::test]
async fn a_stream_tells_that_its_lock_is_lost() {
    let (router, locks) = service().await;
    let mut events = Events::hold(&router, "a", &json!({ "ttl": "3s" })).await;
    let granted = events.next_of("granted").await;
    let token = granted["token"].as_u64().unwrap();
    locks.evict("a", token.into(), &Eviction::new(false).because("deploy")).await.unwrap();
    let lost = events.next_of("lost").await;
    // It has the fields of an error.
    assert_eq!(
        (lost["status"].as_u64(), lost["code"].as_str(), lost["loss"].as_str()),
        (Some(410), Some("lease-ended"), Some("evicted")),
        "{lost}"
    );
    assert!(lost["why"].as_str().unwrap().contains("deploy"), "{lost}");
    assert_eq!(lost["token"], granted["token"]);
    assert!(lost["detail"].as_str().unwrap().contains("it was evicted by an operator"), "{lost}");
}

#[tokio::test]
async fn a_stream_that_is_refused_says_why() {
    let (router, _locks) = service().await;
    let (_, held) = acquire(&router, "a", &json!({})).await;
    let mut events = Events::hold(&router, "a", &json!({})).await;
    let refused = events.next_of("refused").await;
    assert_eq!((refused["code"].as_str(), &refused["holders"][0]["token"]), (Some("busy"), &held["token"]));
    assert_eq!(events.next().await, None);
    let wrong = answer(&router, post("/v1/hold", &json!({ "name": "a", "wait": "1h" }))).await;
    assert_eq!(wrong.0, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn changes_are_told_as_they_happen() {
    let (router, _locks) = service().await;
    let (_, held) = acquire(&router, "stock/1", &json!({})).await;
    acquire(&router, "other", &json!({})).await;
    let mut events = Events::of(&router, get("/v1/changes?prefix=stock%2F")).await;
    let (event, lock) = events.next().await.unwrap();
    assert_eq!((event.as_str(), &lock["name"]), ("changed", &json!("stock/1")));
    assert_eq!(lock["holders"][0]["token"], held["token"]);
    assert_eq!(events.next().await.unwrap().0, "complete");
    acquire(&router, "stock/2", &json!({})).await;
    assert_eq!(events.next_of("changed").await["name"], "stock/2");
    answer(&router, post("/v1/leases/release", &lease(&held))).await;
    assert_eq!(events.next_of("free").await, json!({ "name": "stock/1" }));
}

#[tokio::test]
async fn an_engine_that_is_away_is_told_once_for_each_look() {
    let engine = TestEngine::in_real_time().unwrap();
    let router = fencepost_server::router(engine.client(), &Options::default()).unwrap();
    engine.fail_all(ErrorKind::Unreachable);
    let mut events = Events::of(&router, get("/v1/changes")).await;
    let start = Instant::now();
    for _ in 0..5 {
        assert_eq!(events.next().await.unwrap().0, "unreachable");
    }
    assert!(start.elapsed() >= Duration::from_millis(1_500), "five events in {:?}", start.elapsed());
    engine.heal_all();
    events.next_of("complete").await;
}
