//! Firings that run once.

use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use fencepost_core::Client;
use serde_json::{Value, json};

use crate::kit::{Events, acquire, answer, get, named, pause, post, service};

const KEY: &str = "0b6d1f0a-58f4-4c0e-9f55-1f8e1f2f7a11";
const SOON: Duration = Duration::from_secs(20);

fn firing(retry: bool) -> Value {
    json!({ "once": { "window": "1h", "retry": retry }, "holder": "host 1", "process": { "host": "h1", "pid": 7 } })
}

fn keyed(path: &str, body: &Value) -> axum::http::Request<axum::body::Body> {
    let mut request = post(path, &named("report", body));
    request.headers_mut().insert("idempotency-key", KEY.parse().unwrap());
    request
}

#[tokio::test]
async fn a_firing_runs_once_and_its_exit_code_is_known() {
    let (router, _locks) = service().await;
    let (status, granted) = answer(&router, keyed("/v1/acquire", &firing(false))).await;
    assert_eq!(status, StatusCode::OK, "{granted}");
    // A lost answer makes no second run.
    let (status, again) = answer(&router, keyed("/v1/acquire", &firing(false))).await;
    assert_eq!((status, &again["token"]), (StatusCode::OK, &granted["token"]), "{again}");
    let (status, busy) = acquire(&router, "report", &firing(false)).await;
    assert_eq!((status, busy["code"].as_str()), (StatusCode::CONFLICT, Some("busy")), "{busy}");
    let (_, lock) = answer(&router, get("/v1/lock?name=report")).await;
    assert_eq!(lock["runs"]["running"]["token"], granted["token"], "{lock}");
    let (status, extended) =
        answer(&router, post("/v1/leases/extend", &json!({ "lease": granted["lease"] }))).await;
    assert_eq!(status, StatusCode::OK, "{extended}");
    let end = json!({ "lease": extended["lease"], "exit_code": 0 });
    assert_eq!(answer(&router, post("/v1/leases/release", &end)).await.0, StatusCode::NO_CONTENT);
    let (status, already) = acquire(&router, "report", &firing(true)).await;
    assert_eq!((status, already["code"].as_str()), (StatusCode::CONFLICT, Some("already-run")), "{already}");
    let run = &already["run"];
    assert_eq!(
        (&run["exit_code"], &run["end"], &run["holder"], &run["host"], &run["pid"]),
        (&json!(0), &json!("exited"), &json!("host 1"), &json!("h1"), &json!(7))
    );
    assert!(run["ended_micros"].as_u64() >= run["since_micros"].as_u64());
    let (_, lock) = answer(&router, get("/v1/lock?name=report")).await;
    assert_eq!((&lock["runs"]["good"], &lock["runs"]["running"]), (run, &Value::Null), "{lock}");
}

#[tokio::test]
async fn a_failed_firing_runs_again_where_that_is_asked_for() {
    let (router, _locks) = service().await;
    // A release without an exit code is no good end either.
    for exit_code in [Some(3), None] {
        let (status, granted) = acquire(&router, "report", &firing(true)).await;
        assert_eq!(status, StatusCode::OK, "{granted}");
        let end = json!({ "lease": granted["lease"], "exit_code": exit_code });
        assert_eq!(answer(&router, post("/v1/leases/release", &end)).await.0, StatusCode::NO_CONTENT);
        let (status, already) = acquire(&router, "report", &firing(false)).await;
        assert_eq!(status, StatusCode::CONFLICT);
        assert_eq!(
            (&already["code"], &already["run"]["exit_code"]),
            (&json!("already-run"), &json!(exit_code))
        );
    }
    assert_eq!(acquire(&router, "report", &firing(true)).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_firing_that_is_withdrawn_has_not_run() {
    let (router, locks) = service().await;
    assert_eq!(answer(&router, keyed("/v1/acquire", &firing(false))).await.0, StatusCode::OK);
    let (status, withdrawn) = answer(&router, keyed("/v1/withdraw", &firing(false))).await;
    assert_eq!((status, &withdrawn["withdrawn"]), (StatusCode::OK, &json!("released")), "{withdrawn}");
    let is_free = async {
        while !locks.inspect("report").await.unwrap().claims.is_empty() {
            pause().await;
        }
    };
    tokio::time::timeout(SOON, is_free).await.expect("it is released");
    let (status, granted) = acquire(&router, "report", &firing(false)).await;
    assert_eq!(status, StatusCode::OK, "{granted}");
}

/// Begins a firing that waits behind a lease, cuts off its caller, and ends the lease. Returns when the firing has its grant.
async fn granted_to_nobody() -> (Router, Client, Value) {
    let (router, locks) = service().await;
    let mut body = firing(false);
    body["wait"] = "30s".into();
    let (_, held) = acquire(&router, "report", &json!({})).await;
    let request = keyed("/v1/acquire", &body);
    let gone = tokio::spawn({
        let router = router.clone();
        async move { answer(&router, request).await }
    });
    let waits = async {
        while locks.inspect("report").await.unwrap().waiters().count() == 0 {
            pause().await;
        }
    };
    tokio::time::timeout(SOON, waits).await.expect("it waits");
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    let end = json!({ "lease": held["lease"] });
    assert_eq!(answer(&router, post("/v1/leases/release", &end)).await.0, StatusCode::NO_CONTENT);
    let begins = async {
        while answer(&router, get("/v1/lock?name=report")).await.1["runs"]["running"].is_null() {
            pause().await;
        }
        pause().await;
    };
    tokio::time::timeout(SOON, begins).await.expect("it is granted");
    (router, locks, body)
}

/// The firing that nobody has taken up has not run, so another host runs it.
async fn runs_elsewhere(router: &Router, locks: &Client) {
    let is_free = async {
        while !locks.inspect("report").await.unwrap().claims.is_empty() {
            pause().await;
        }
    };
    tokio::time::timeout(SOON, is_free).await.expect("it is given up");
    let (status, granted) = acquire(router, "report", &firing(false)).await;
    assert_eq!(status, StatusCode::OK, "{granted}");
}

#[tokio::test]
async fn a_firing_whose_grant_nobody_takes_has_not_run() {
    let (router, locks, _) = granted_to_nobody().await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(6)).await;
    tokio::time::resume();
    runs_elsewhere(&router, &locks).await;
}

#[tokio::test]
async fn a_firing_that_is_withdrawn_before_anybody_takes_its_grant_has_not_run() {
    let (router, locks, body) = granted_to_nobody().await;
    let (status, withdrawn) = answer(&router, keyed("/v1/withdraw", &body)).await;
    assert_eq!((status, &withdrawn["withdrawn"]), (StatusCode::OK, &json!("withdrawn")), "{withdrawn}");
    runs_elsewhere(&router, &locks).await;
}

/// A copy of the service that was stopped for a while learns of both at once: of the end of the stream, and of the grant.
#[tokio::test]
async fn a_firing_whose_stream_has_ended_before_its_grant_has_not_run() {
    let mut body = firing(false);
    body["wait"] = "30s".into();
    for _ in 0..20 {
        let (router, locks) = service().await;
        let held = locks.mutex("report").unwrap().lock().await.unwrap();
        let mut events = Events::hold(&router, "report", &body).await;
        events.next_of("waiting").await;
        let waits = async {
            while locks.inspect("report").await.unwrap().waiters().count() == 0 {
                pause().await;
            }
        };
        tokio::time::timeout(SOON, waits).await.expect("it waits");
        // Nothing else runs in between.
        drop(events);
        drop(held);
        runs_elsewhere(&router, &locks).await;
    }
}

/// The caller itself ends its work then, as for each other lease.
#[tokio::test]
async fn a_firing_shows_the_longest_time_of_its_process() {
    let (router, _locks) = service().await;
    let mut body = firing(false);
    body["process"]["max_hold_ms"] = 60_000.into();
    let (status, granted) = answer(&router, keyed("/v1/acquire", &body)).await;
    assert_eq!(status, StatusCode::OK, "{granted}");
    let (_, lock) = answer(&router, get("/v1/lock?name=report")).await;
    assert_eq!(lock["holders"][0]["max_hold_ms"], json!(60_000), "{lock}");
}

#[tokio::test]
async fn a_firing_is_exclusive_and_has_a_window() {
    let (router, _locks) = service().await;
    for body in [
        json!({ "once": { "window": "1h" }, "mode": "shared" }),
        json!({ "once": { "window": "0s" } }),
        json!({ "once": { "window": "soon" } }),
        json!({ "once": {} }),
    ] {
        let (status, problem) = acquire(&router, "report", &body).await;
        assert_eq!(
            (status, problem["code"].as_str()),
            (StatusCode::BAD_REQUEST, Some("invalid")),
            "{problem}"
        );
    }
}

#[tokio::test]
async fn a_check_tells_whether_a_job_has_succeeded_lately() {
    let (router, _locks) = service().await;
    let check = async |limits: &str| answer(&router, get(&format!("/v1/check?name=report&{limits}"))).await;
    let (status, none) = check("max_age=26h").await;
    assert_eq!(status, StatusCode::OK, "{none}");
    assert_eq!(
        (&none["status"], &none["code"], &none["good_age_ms"]),
        (&json!("critical"), &json!(2), &Value::Null)
    );
    let run = async |exit_code: i32| {
        let (_, granted) =
            acquire(&router, "report", &json!({ "once": { "window": "1ms", "retry": true } })).await;
        let end = json!({ "lease": granted["lease"], "exit_code": exit_code });
        assert_eq!(
            answer(&router, post("/v1/leases/release", &end)).await.0,
            StatusCode::NO_CONTENT,
            "{granted}"
        );
    };
    run(0).await;
    let (_, good) = check("max_age=26h&max_held=1h").await;
    assert_eq!(
        (&good["status"], &good["code"], &good["held_ms"]),
        (&json!("ok"), &json!(0), &json!(0)),
        "{good}"
    );
    assert!(good["good_age_ms"].is_u64() && good["runs"]["good"]["exit_code"] == json!(0), "{good}");
    assert!(good["message"].as_str().unwrap().starts_with("report succeeded "), "{good}");
    run(3).await;
    let (_, bad) = check("max_age=26h").await;
    assert_eq!((&bad["status"], &bad["runs"]["last"]["exit_code"]), (&json!("critical"), &json!(3)), "{bad}");
    let (_, held) = check("max_held=1h").await;
    assert_eq!((&held["status"], &held["message"]), (&json!("ok"), &json!("report is free")), "{held}");
    for broken in ["", "max_age=soon", "max_age=1h&other=1"] {
        let (status, problem) = check(broken).await;
        assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("invalid")), "{problem}");
    }
}
