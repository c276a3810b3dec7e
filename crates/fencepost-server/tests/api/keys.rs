//! Idempotency keys: a repeated request never makes a second grant.

use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use fencepost_core::Client;
use fencepost_server::Options;
use serde_json::{Value, json};

use crate::kit::{acquire, answer, get, lease, named, pause, post, service};
use crate::rights::{Guarded, add, with, write};

const KEY: &str = "7d4a9f10-6c1e-4a3b-9a55-0c4c7c1f2f11";
const SOON: Duration = Duration::from_secs(20);
/// How often a test begins anew on a machine that is too slow to show anything.
const TRIES: u32 = 5;

async fn acquire_with(router: &Router, key: &str, name: &str, body: &Value) -> (StatusCode, Value) {
    let mut request = post("/v1/acquire", &named(name, body));
    request.headers_mut().insert("idempotency-key", key.parse().unwrap());
    answer(router, request).await
}

fn begin(router: &Router, body: Value) -> tokio::task::JoinHandle<(StatusCode, Value)> {
    let router = router.clone();
    tokio::spawn(async move { acquire_with(&router, KEY, "a", &body).await })
}

/// Waits for this number of waiters.
async fn waiters(locks: &Client, count: usize) {
    let look = async {
        while locks.inspect("a").await.unwrap().waiters().count() != count {
            pause().await;
        }
    };
    tokio::time::timeout(SOON, look).await.expect("the queue");
}

#[tokio::test]
async fn a_repeated_request_finds_its_grant_also_at_another_copy() {
    let (first, locks) = service().await;
    let second = fencepost_server::router(locks.clone(), &Options::default()).unwrap();
    // Shared, so that a second grant would be possible.
    let body = json!({ "mode": "shared", "ttl": "60s" });
    let (status, granted) = acquire_with(&first, KEY, "a", &body).await;
    assert_eq!(status, StatusCode::OK, "{granted}");
    for copy in [&first, &second] {
        let (status, again) = acquire_with(copy, KEY, "a", &body).await;
        assert_eq!((status, &again["token"]), (StatusCode::OK, &granted["token"]), "{again}");
        assert!((40_000..60_000).contains(&again["valid_ms"].as_u64().unwrap()), "{again}");
        // How long it waits is no part of the request.
        let waits = json!({ "mode": "shared", "ttl": "60s", "wait": "1s" });
        assert_eq!(acquire_with(copy, KEY, "a", &waits).await.1["token"], granted["token"]);
        let (status, problem) = acquire_with(copy, KEY, "a", &json!({ "mode": "shared" })).await;
        assert_eq!(
            (status, problem["code"].as_str()),
            (StatusCode::UNPROCESSABLE_ENTITY, Some("key-reused"))
        );
    }
    assert_eq!(locks.inspect("a").await.unwrap().claims.len(), 1);
    // Another key is another request.
    let (_, other) = acquire_with(&first, "another-key-of-it", "a", &body).await;
    assert!(other["token"].as_u64() > granted["token"].as_u64());
    let (_, again) = acquire_with(&second, KEY, "a", &body).await;
    assert_eq!(answer(&first, post("/v1/leases/release", &lease(&again))).await.0, StatusCode::NO_CONTENT);
    let (status, problem) = acquire_with(&second, KEY, "a", &body).await;
    assert_eq!((status, problem["code"].as_str()), (StatusCode::GONE, Some("lease-ended")));
}

#[tokio::test]
async fn requests_at_the_same_time_make_one_grant() {
    let (first, locks) = service().await;
    let second = fencepost_server::router(locks.clone(), &Options::default()).unwrap();
    let body = json!({ "mode": "permits", "permits": 100, "wait": "10s" });
    let all: Vec<_> = (0..40).map(|n| begin([&first, &second][n % 2], body.clone())).collect();
    let mut tokens = Vec::new();
    for one in all {
        let (status, granted) = one.await.unwrap();
        assert_eq!(status, StatusCode::OK, "{granted}");
        tokens.push(granted["token"].as_u64().unwrap());
    }
    tokens.dedup();
    assert_eq!((tokens.len(), locks.inspect("a").await.unwrap().claims.len()), (1, 1));
}

#[tokio::test]
async fn a_place_in_the_queue_outlives_its_request_for_a_while() {
    let (router, locks) = service().await;
    let (_, held) = acquire(&router, "a", &json!({})).await;
    let cut_off = begin(&router, json!({ "wait": "30s" }));
    waiters(&locks, 1).await;
    let behind = tokio::spawn({
        let router = router.clone();
        async move { acquire(&router, "a", &json!({ "wait": "30s" })).await }
    });
    waiters(&locks, 2).await;
    cut_off.abort();
    let again = begin(&router, json!({ "wait": "30s" }));
    answer(&router, post("/v1/leases/release", &lease(&held))).await;
    let (status, granted) = again.await.unwrap();
    assert_eq!(status, StatusCode::OK, "{granted}");
    answer(&router, post("/v1/leases/release", &lease(&granted))).await;
    let (_, last) = behind.await.unwrap();
    assert!(last["token"].as_u64() > granted["token"].as_u64(), "the place was kept: {last} {granted}");
}

#[tokio::test]
async fn a_request_that_waits_forever_is_told_that_it_is_queued_and_keeps_its_place() {
    let (router, locks) = service().await;
    let (_, held) = acquire(&router, "a", &json!({})).await;
    let (status, problem) = acquire(&router, "a", &json!({ "wait": "forever" })).await;
    assert_eq!((status, problem["code"].as_str()), (StatusCode::BAD_REQUEST, Some("invalid")), "{problem}");
    let body = json!({ "wait": "forever" });
    let began = Instant::now();
    let (status, queued) = acquire_with(&router, KEY, "a", &body).await;
    assert_eq!((status, queued), (StatusCode::ACCEPTED, json!({ "queued": true })));
    assert!(began.elapsed() >= Duration::from_secs(10), "{:?}", began.elapsed());
    let behind = tokio::spawn({
        let router = router.clone();
        async move { acquire(&router, "a", &json!({ "wait": "30s" })).await }
    });
    waiters(&locks, 2).await;
    let again = begin(&router, body);
    answer(&router, post("/v1/leases/release", &lease(&held))).await;
    let (status, granted) = again.await.unwrap();
    assert_eq!(status, StatusCode::OK, "{granted}");
    answer(&router, post("/v1/leases/release", &lease(&granted))).await;
    let (_, last) = behind.await.unwrap();
    assert!(last["token"].as_u64() > granted["token"].as_u64(), "the place was kept: {last} {granted}");
}

#[tokio::test]
async fn a_request_whose_time_is_over_has_left_the_queue() {
    let (router, locks) = service().await;
    let (_, held) = acquire(&router, "a", &json!({})).await;
    let longer = begin(&router, json!({ "wait": "30s" }));
    waiters(&locks, 1).await;
    // The same request waits for longer elsewhere: its place stays.
    let short = json!({ "wait": "50ms" });
    let (status, problem) = acquire_with(&router, KEY, "a", &short).await;
    assert_eq!((status, problem["code"].as_str()), (StatusCode::CONFLICT, Some("timed-out")));
    assert_eq!(locks.inspect("a").await.unwrap().waiters().count(), 1);
    longer.abort();
    assert!(longer.await.unwrap_err().is_cancelled());
    assert_eq!(acquire_with(&router, KEY, "a", &short).await.0, StatusCode::CONFLICT);
    // Without the 5 s for which a place is kept.
    let left = tokio::time::timeout(Duration::from_secs(3), waiters(&locks, 0));
    left.await.expect("it has left the queue");
    // Its key may be used again.
    answer(&router, post("/v1/leases/release", &lease(&held))).await;
    assert_eq!(acquire_with(&router, KEY, "a", &json!({ "wait": "5s" })).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_request_that_does_not_wait_and_is_told_busy_leaves_no_place() {
    let (router, locks) = service().await;
    acquire(&router, "a", &json!({})).await;
    let waits = begin(&router, json!({ "wait": "30s" }));
    waiters(&locks, 1).await;
    let busy = async || {
        let (status, problem) = acquire_with(&router, KEY, "a", &json!({})).await;
        assert_eq!((status, problem["code"].as_str()), (StatusCode::CONFLICT, Some("busy")));
    };
    busy().await;
    assert_eq!(locks.inspect("a").await.unwrap().waiters().count(), 1, "the other request still waits");
    waits.abort();
    assert!(waits.await.unwrap_err().is_cancelled());
    busy().await;
    // Without the 5 s for which a place is kept.
    let left = tokio::time::timeout(Duration::from_secs(3), waiters(&locks, 0));
    left.await.expect("it has left the queue");
}

#[tokio::test]
async fn a_place_that_nobody_asks_for_is_left() {
    let (router, locks) = service().await;
    acquire(&router, "a", &json!({})).await;
    let cut_off = begin(&router, json!({ "wait": "30s" }));
    waiters(&locks, 1).await;
    tokio::time::pause();
    cut_off.abort();
    assert!(cut_off.await.unwrap_err().is_cancelled());
    tokio::task::yield_now().await;
    assert_eq!(locks.inspect("a").await.unwrap().waiters().count(), 1);
    tokio::time::advance(Duration::from_secs(6)).await;
    tokio::time::resume();
    waiters(&locks, 0).await;
}

/// Begins a request that waits behind a lease, and cuts it off. Returns the lease.
async fn cut_off(router: &Router, locks: &Client) -> Value {
    let (_, held) = acquire(router, "a", &json!({})).await;
    let killed = begin(router, json!({ "wait": "30s" }));
    waiters(locks, 1).await;
    killed.abort();
    assert!(killed.await.unwrap_err().is_cancelled());
    held
}

#[tokio::test]
async fn a_grant_that_nobody_takes_ends_with_its_place() {
    let (router, locks) = service().await;
    let held = cut_off(&router, &locks).await;
    let behind = {
        let router = router.clone();
        tokio::spawn(async move { acquire(&router, "a", &json!({ "wait": "30s" })).await })
    };
    waiters(&locks, 2).await;
    answer(&router, post("/v1/leases/release", &lease(&held))).await;
    waiters(&locks, 1).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(6)).await;
    tokio::time::resume();
    let (status, granted) = tokio::time::timeout(SOON, behind).await.expect("it is granted").unwrap();
    assert_eq!(status, StatusCode::OK, "{granted}");
}

#[tokio::test]
async fn a_grant_waits_for_its_request() {
    let (router, locks) = service().await;
    let held = cut_off(&router, &locks).await;
    answer(&router, post("/v1/leases/release", &lease(&held))).await;
    waiters(&locks, 0).await;
    let (status, granted) = acquire_with(&router, KEY, "a", &json!({ "wait": "1s" })).await;
    assert_eq!(status, StatusCode::OK, "{granted}");
    assert!(granted["valid_ms"].as_u64().unwrap() > 20_000, "{granted}");
    let info = locks.inspect("a").await.unwrap();
    assert!(info.claims.len() == 1 && info.claims[0].detached, "{info:?}");
}

#[tokio::test]
async fn a_caller_need_not_wait_to_be_queued() {
    let (router, locks) = service().await;
    let (_, held) = acquire(&router, "a", &json!({})).await;
    let mut request = post("/v1/acquire", &json!({ "name": "a", "wait": "30s" }));
    request.headers_mut().insert("idempotency-key", KEY.parse().unwrap());
    request.headers_mut().insert("prefer", "respond-async".parse().unwrap());
    let (status, queued) = answer(&router, request).await;
    assert_eq!((status, &queued["queued"]), (StatusCode::ACCEPTED, &json!(true)));
    assert_eq!(locks.inspect("a").await.unwrap().waiters().count(), 1);
    let again = begin(&router, json!({ "wait": "30s" }));
    answer(&router, post("/v1/leases/release", &lease(&held))).await;
    assert_eq!(again.await.unwrap().0, StatusCode::OK);
}

#[tokio::test]
async fn a_request_is_withdrawn_by_its_key() {
    let (router, locks) = service().await;
    let second = fencepost_server::router(locks.clone(), &Options::default()).unwrap();
    let withdraw = async |router: &Router, key: &str, body: &Value| {
        let mut request = post("/v1/withdraw", &named("a", body));
        request.headers_mut().insert("idempotency-key", key.parse().unwrap());
        answer(router, request).await
    };
    let nothing = (StatusCode::OK, json!({ "withdrawn": "nothing" }));
    assert_eq!(withdraw(&router, "a-key-without-work", &json!({})).await, nothing);
    let long = json!({ "reason": "x".repeat(1025) });
    assert_eq!(withdraw(&router, "a-key-without-work", &long).await.0, StatusCode::BAD_REQUEST);
    // A grant, at another copy of the service.
    let (status, _) = acquire_with(&router, KEY, "a", &json!({})).await;
    assert_eq!(status, StatusCode::OK);
    let (_, withdrawn) = withdraw(&second, KEY, &json!({})).await;
    assert_eq!(withdrawn["withdrawn"], "released");
    assert_eq!(locks.inspect("a").await.unwrap().claims.len(), 0);
    assert_eq!(withdraw(&second, KEY, &json!({})).await, nothing);
    // A position in the queue. A request that arrives late is refused.
    let (_, held) = acquire(&router, "a", &json!({})).await;
    let body = json!({ "wait": "30s" });
    let key = "another-key-of-it";
    let waits = {
        let (router, body) = (router.clone(), body.clone());
        tokio::spawn(async move { acquire_with(&router, key, "a", &body).await })
    };
    waiters(&locks, 1).await;
    // Another request with this key is refused, and ends nothing.
    let other = json!({ "wait": "30s", "reason": "another" });
    assert_eq!(withdraw(&router, key, &other).await.0, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(locks.inspect("a").await.unwrap().waiters().count(), 1);
    let (_, withdrawn) = withdraw(&router, key, &body).await;
    assert_eq!(withdrawn["withdrawn"], "withdrawn");
    waiters(&locks, 0).await;
    assert_eq!(waits.await.unwrap().0, StatusCode::GONE);
    assert_eq!(acquire_with(&router, key, "a", &body).await.0, StatusCode::GONE);
    answer(&router, post("/v1/leases/release", &lease(&held))).await;
    assert_eq!(locks.inspect("a").await.unwrap().claims.len(), 0);
}

/// A client that gives up may withdraw its request before the service has begun to work on it.
#[tokio::test]
async fn a_request_that_is_withdrawn_at_once_leaves_nothing() {
    let (router, locks) = service().await;
    let body = json!({ "wait": "30s" });
    for round in 0..50 {
        let key = format!("{KEY}-{round}");
        let mut withdraw = post("/v1/withdraw", &named("a", &body));
        withdraw.headers_mut().insert("idempotency-key", key.parse().unwrap());
        let ((_, answered), (status, withdrawn)) =
            tokio::join!(acquire_with(&router, &key, "a", &body), answer(&router, withdraw));
        assert_eq!(status, StatusCode::OK, "{withdrawn}");
        let claims = locks.inspect("a").await.unwrap().claims.len();
        assert_eq!(claims, 0, "round {round}: {answered}, then {withdrawn}");
    }
}

#[tokio::test]
async fn a_key_makes_no_lock() {
    let (router, locks) = service().await;
    let (status, _) = acquire_with(&router, "short", "a", &json!({})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(acquire_with(&router, KEY, "a", &json!({})).await.0, StatusCode::OK);
    let names = locks.list("", &fencepost_core::Page::default()).await.unwrap().resources;
    assert_eq!(names.iter().map(|info| info.name.as_str()).collect::<Vec<_>>(), ["a"]);
}

#[tokio::test]
async fn a_key_is_kept_for_as_long_as_its_grant() {
    let (locks, clock, _engine) = fencepost_core::testing::client();
    let router = fencepost_server::router(locks.clone(), &Options::default()).unwrap();
    // Shared, so that a second grant would be possible.
    let body = json!({ "mode": "shared", "ttl": "30s" });
    let mut tokens = std::collections::BTreeSet::new();
    for _ in 0..100 {
        let (status, granted) = acquire_with(&router, KEY, "a", &body).await;
        assert!([StatusCode::OK, StatusCode::GONE].contains(&status), "{granted}");
        tokens.extend(granted["token"].as_u64());
        assert!(locks.inspect("a").await.unwrap().claims.len() <= 1, "a second grant");
        clock.advance(Duration::from_secs(1)).await;
    }
    assert!(tokens.len() > 1, "a key is forgotten with its grant");
}

/// A caller that has lost the answer to its request may ask again after another one has released the lease.
#[tokio::test]
async fn a_key_whose_lease_was_released_makes_no_second_grant() {
    let (locks, clock, _engine) = fencepost_core::testing::client();
    let first = fencepost_server::router(locks.clone(), &Options::default()).unwrap();
    let second = fencepost_server::router(locks.clone(), &Options::default()).unwrap();
    let body = json!({ "mode": "shared", "ttl": "5s" });
    let (_, granted) = acquire_with(&first, KEY, "a", &body).await;
    answer(&second, post("/v1/leases/release", &lease(&granted))).await;
    for past in 0..15 {
        for copy in [&first, &second] {
            let (status, problem) = acquire_with(copy, KEY, "a", &body).await;
            let found = (status, problem["code"].as_str());
            assert_eq!(found, (StatusCode::GONE, Some("lease-ended")), "{past} s after the grant");
        }
        clock.advance(Duration::from_secs(1)).await;
    }
    clock.advance(Duration::from_secs(1)).await;
    assert_eq!(acquire_with(&second, KEY, "a", &body).await.0, StatusCode::OK, "the key was forgotten");
}

/// The lease is shorter than the time for which the place stays.
#[tokio::test]
async fn a_grant_with_a_short_lease_waits_for_its_request_too() {
    for _ in 0..TRIES {
        if wait_with_a_short_lease().await {
            return;
        }
    }
    panic!("a lease of 600 ms ended in each of {TRIES} tries");
}

/// Returns whether the lease was renewed all the time, for which a busy machine may be too slow.
async fn wait_with_a_short_lease() -> bool {
    let (router, locks) = service().await;
    let (_, held) = acquire(&router, "a", &json!({})).await;
    let body = json!({ "ttl": "600ms", "wait": "30s" });
    let killed = begin(&router, body.clone());
    waiters(&locks, 1).await;
    killed.abort();
    answer(&router, post("/v1/leases/release", &lease(&held))).await;
    waiters(&locks, 0).await;
    let token = async || locks.inspect("a").await.unwrap().holders().next().and_then(|claim| claim.token);
    let first = token().await;
    let (began, mut is_held) = (Instant::now(), first.is_some());
    while is_held && began.elapsed() < Duration::from_millis(1_500) {
        is_held = token().await == first;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (status, granted) = acquire_with(&router, KEY, "a", &body).await;
    is_held && (status, granted["token"].as_u64()) == (StatusCode::OK, first.map(|token| token.get()))
}

/// How the requests of a caller with two access tokens end.
struct Ends {
    /// The answers to the request with the access token that is valid, and to the one whose access token was revoked.
    valid: Option<StatusCode>,
    revoked: StatusCode,
    holders: usize,
}

/// Lets requests of one caller with one key wait behind a lease, revokes the access token of one of them, and ends the lease.
/// `revoked_first`: the revoked one came first. `copies`: of the service, by which the requests go. `alone`: there is no other request.
async fn revoke_while_waiting(revoked_first: bool, copies: usize, alone: bool) -> Ends {
    let service = Guarded::start().await;
    let routers = [service.router.clone(), if copies == 1 { service.router.clone() } else { service.copy() }];
    let holder = add(&service.file, "holder", &["acquire:"], None, None);
    let (_, held) = service.ask(&holder, post("/v1/acquire", &json!({ "name": "a" }))).await;
    let (valid, revoked) = (service.token(&["acquire:"]), service.token(&["acquire:"]));
    let mut order = vec![(true, &revoked), (false, &valid)];
    if alone {
        order.pop();
    } else if !revoked_first {
        order.reverse();
    }
    let mut asked = Vec::new();
    for (router, (is_revoked, token)) in routers.iter().zip(order) {
        let mut request = with(token, post("/v1/acquire", &json!({ "name": "a", "wait": "30s" })));
        request.headers_mut().insert("idempotency-key", KEY.parse().unwrap());
        let router = router.clone();
        let mut request = Box::pin(async move { answer(&router, request).await.0 });
        // The first poll checks the access token and joins the work on the key.
        assert!(futures_util::poll!(&mut request).is_pending());
        asked.push((is_revoked, tokio::spawn(request)));
        waiters(&service.locks, 1).await;
    }
    let text = std::fs::read_to_string(&service.file).unwrap();
    // The lines are in the order in which the access tokens were made.
    write(&service.file, &text.lines().take(2).collect::<Vec<_>>().join("\n"));
    let is_revoked = async {
        while service.ask(&revoked, get("/v1/locks")).await.0 != StatusCode::UNAUTHORIZED {
            pause().await;
        }
    };
    tokio::time::timeout(SOON, is_revoked).await.expect("the access token is revoked");
    service.ask(&holder, post("/v1/leases/release", &lease(&held))).await;
    let mut ends = Ends { valid: None, revoked: StatusCode::OK, holders: 0 };
    for (is_revoked, asked) in asked {
        let status = tokio::time::timeout(SOON, asked).await.expect("an answer").unwrap();
        match is_revoked {
            true => ends.revoked = status,
            false => ends.valid = Some(status),
        }
    }
    ends.holders = service.locks.inspect("a").await.unwrap().holders().count();
    ends
}

#[tokio::test]
async fn a_revoked_access_token_neither_gets_nor_spoils_the_lease_of_its_key() {
    for copies in [1, 2] {
        for revoked_first in [true, false] {
            let ends = revoke_while_waiting(revoked_first, copies, false).await;
            let found = (ends.revoked, ends.valid, ends.holders);
            let expected = (StatusCode::UNAUTHORIZED, Some(StatusCode::OK), 1);
            assert_eq!(found, expected, "{copies} copies, revoked first: {revoked_first}");
        }
    }
}

#[tokio::test]
async fn a_grant_for_revoked_access_tokens_alone_is_given_back_at_once() {
    let ends = revoke_while_waiting(true, 1, true).await;
    assert_eq!((ends.revoked, ends.holders), (StatusCode::UNAUTHORIZED, 0));
}

/// Requests with one key share the work, and not what their access tokens may know.
#[tokio::test]
async fn who_holds_a_busy_lock_is_told_by_the_rights_of_each_request() {
    let service = Guarded::start().await;
    let [reader, other] = ["read:", "read:b/"].map(|read| service.token(&["acquire:", read]));
    let held = json!({ "name": "a", "holder": "boss" });
    assert_eq!(service.ask(&reader, post("/v1/acquire", &held)).await.0, StatusCode::OK);
    for tokens in [[&reader, &other], [&other, &reader]] {
        // The second one comes before the work of the first has begun: this runtime has one thread.
        let asked = tokens.map(|token| {
            let mut request = with(token, post("/v1/acquire", &json!({ "name": "a" })));
            request.headers_mut().insert("idempotency-key", KEY.parse().unwrap());
            let router = service.router.clone();
            tokio::spawn(async move { answer(&router, request).await })
        });
        for (token, asked) in tokens.into_iter().zip(asked) {
            let (status, problem) = asked.await.unwrap();
            assert_eq!((status, problem["code"].as_str()), (StatusCode::CONFLICT, Some("busy")), "{problem}");
            assert_eq!(problem.to_string().contains("boss"), token == &reader, "{problem}");
        }
    }
}
