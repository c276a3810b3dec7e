//! Locks, leases and errors.

use std::time::Duration;

use axum::http::{StatusCode, header};
use serde_json::json;

use crate::kit::{acquire, answer, get, lease, pause, post, service};

#[tokio::test]
async fn a_lock_is_taken_extended_and_released_once() {
    let (router, locks) = service().await;
    let body = json!({ "ttl": "30s", "holder": "job 7", "reason": "import" });
    let (status, granted) = acquire(&router, "stock/42", &body).await;
    assert_eq!(status, StatusCode::OK, "{granted}");
    let valid = granted["valid_ms"].as_u64().unwrap();
    assert!((20_000..30_000).contains(&valid), "{granted}");
    let info = locks.inspect("stock/42").await.unwrap();
    let holder = info.holders().next().unwrap();
    assert_eq!((holder.holder.label.as_str(), holder.reason.as_deref()), ("job 7", Some("import")));
    assert!(holder.detached && holder.token.unwrap().get() == granted["token"]);

    let (status, longer) =
        answer(&router, post("/v1/leases/extend", &json!({ "lease": granted["lease"], "ttl": "1m" }))).await;
    assert_eq!((status, &longer["token"]), (StatusCode::OK, &granted["token"]));
    assert!(longer["valid_ms"].as_u64().unwrap() > 50_000);
    let (_, shown) = answer(&router, post("/v1/leases/show", &lease(&longer))).await;
    assert_eq!(shown["token_holds"], true);
    assert_eq!(answer(&router, post("/v1/leases/release", &lease(&longer))).await.0, StatusCode::NO_CONTENT);
    let (status, problem) = answer(&router, post("/v1/leases/release", &lease(&longer))).await;
    assert_eq!((status, problem["code"].as_str()), (StatusCode::GONE, Some("lease-ended")));
    let (_, shown) = answer(&router, post("/v1/leases/show", &lease(&longer))).await;
    assert_eq!(shown["token_holds"], false);
    assert_eq!(locks.inspect("stock/42").await.unwrap().claims.len(), 0);
}

#[tokio::test]
async fn a_busy_lock_names_its_holder_and_a_wait_ends() {
    let (router, _locks) = service().await;
    let (_, first) = acquire(&router, "a", &json!({ "holder": "first" })).await;
    let (status, problem) = acquire(&router, "a", &json!({})).await;
    assert_eq!((status, problem["code"].as_str()), (StatusCode::CONFLICT, Some("busy")));
    assert_eq!(problem["holders"][0]["holder"], "first");
    assert!(!problem.to_string().contains(first["lease"].as_str().unwrap()));
    let (status, problem) = acquire(&router, "a", &json!({ "wait": "50ms" })).await;
    assert_eq!((status, problem["code"].as_str()), (StatusCode::CONFLICT, Some("timed-out")));
    assert_eq!(problem["waiters"], 0);
    // The release hands the lock to the caller that waits.
    let waits = tokio::spawn({
        let router = router.clone();
        async move { acquire(&router, "a", &json!({ "wait": "30s" })).await }
    });
    let (_, shown) = answer(&router, get("/v1/lock?name=a")).await;
    assert_eq!(shown["holders"][0]["token"], first["token"]);
    answer(&router, post("/v1/leases/release", &lease(&first))).await;
    let (status, second) = waits.await.unwrap();
    assert_eq!(status, StatusCode::OK);
    assert!(second["token"].as_u64() > first["token"].as_u64());
}

#[tokio::test]
async fn a_caller_that_hangs_up_has_left_the_queue() {
    let (router, locks) = service().await;
    let (_, held) = acquire(&router, "a", &json!({})).await;
    let waits = tokio::spawn({
        let router = router.clone();
        async move { acquire(&router, "a", &json!({ "wait": "30s" })).await }
    });
    let waiters = async |count: usize| {
        while locks.inspect("a").await.unwrap().waiters().count() != count {
            pause().await;
        }
    };
    let soon = Duration::from_secs(20);
    tokio::time::timeout(soon, waiters(1)).await.expect("it waits");
    waits.abort();
    tokio::time::timeout(soon, waiters(0)).await.expect("it has left");
    assert_eq!(answer(&router, post("/v1/leases/release", &lease(&held))).await.0, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn readers_and_permits_share() {
    let (router, _locks) = service().await;
    for body in [json!({ "mode": "shared" }), json!({ "mode": "permits", "permits": 2 })] {
        let name = body["mode"].as_str().unwrap();
        for _ in 0..2 {
            assert_eq!(acquire(&router, name, &body).await.0, StatusCode::OK);
        }
        assert_eq!(acquire(&router, name, &json!({})).await.0, StatusCode::CONFLICT);
    }
    let (_, listed) = answer(&router, get("/v1/locks?prefix=per")).await;
    assert_eq!(listed["locks"].as_array().unwrap().len(), 1);
    assert_eq!(listed["locks"][0]["holders"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn evicting_needs_the_token() {
    let (router, _locks) = service().await;
    let (_, held) = acquire(&router, "a", &json!({})).await;
    let evict = |token: u64| {
        post("/v1/evict", &json!({ "name": "a", "token": token, "now": true, "reason": "deploy" }))
    };
    let token = held["token"].as_u64().unwrap();
    assert!(answer(&router, evict(token + 1)).await.0.is_client_error());
    assert_eq!(answer(&router, evict(token)).await.0, StatusCode::NO_CONTENT);
    assert_eq!(acquire(&router, "a", &json!({})).await.0, StatusCode::OK);
    assert_eq!(answer(&router, post("/v1/leases/release", &lease(&held))).await.0, StatusCode::GONE);
}

#[tokio::test]
async fn bad_requests_are_refused_before_anything_is_asked() {
    let (router, locks) = service().await;
    for body in [
        json!({ "ttl": "5" }),
        json!({ "ttl": "1ms" }),
        json!({ "ttl": 5 }),
        json!({ "wait": "1h" }),
        json!({ "mode": "permits" }),
        json!({ "permits": 3 }),
        json!({ "mode": "mine" }),
        json!({ "unknown": true }),
        json!({ "reason": "x".repeat(2000) }),
        json!([]),
    ] {
        let (status, problem) = acquire(&router, "a", &body).await;
        assert!(status.is_client_error() && problem["code"] == "invalid", "{body}: {status} {problem}");
    }
    // 422 is for a key that another request has.
    for body in [json!([]), json!(null), json!(true), json!(5), json!("a")] {
        assert_eq!(acquire(&router, "a", &body).await.0, StatusCode::BAD_REQUEST, "{body}");
        for path in ["/v1/leases/extend", "/v1/leases/release", "/v1/leases/show"] {
            assert_eq!(answer(&router, post(path, &body)).await.0, StatusCode::BAD_REQUEST, "{path} {body}");
        }
    }
    // What could be read in two ways.
    let twice = r#"{"name": "a", "name": "b", "ttl": "5s"}"#;
    let mut request = post("/v1/acquire", &json!({}));
    *request.body_mut() = twice.into();
    let (status, problem) = answer(&router, request).await;
    assert_eq!((status, &problem["detail"]), (StatusCode::BAD_REQUEST, &json!("duplicate field `name`")));
    let mut request = post("/v1/acquire", &json!({ "name": "a" }));
    for key in ["first-of-two-keys", "second-of-two-keys"] {
        request.headers_mut().append("idempotency-key", key.parse().unwrap());
    }
    assert_eq!(answer(&router, request).await.0, StatusCode::BAD_REQUEST);
    assert_eq!(answer(&router, get("/v1/lock?name=%ff")).await.0, StatusCode::BAD_REQUEST);
    for name in [" ", "a\0b", "", &"x".repeat(256)] {
        assert_eq!(acquire(&router, name, &json!({})).await.0, StatusCode::BAD_REQUEST, "{name}");
    }
    for path in ["acquire", "hold", "withdraw"] {
        let (status, problem) = answer(&router, post(&format!("/v1/{path}"), &json!({}))).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path}");
        assert!(problem["detail"].as_str().unwrap().contains("`name`"), "{problem}");
    }
    // Only an extension has a length.
    for path in ["release", "show"] {
        let body = json!({ "lease": "x", "ttl": "5s" });
        let (_, problem) = answer(&router, post(&format!("/v1/leases/{path}"), &body)).await;
        assert!(problem["detail"].as_str().unwrap().contains("ttl"), "{problem}");
    }
    let text = "fencepost1-0123456789";
    let (status, problem) = answer(&router, post("/v1/leases/release", &json!({ "lease": text }))).await;
    assert!(status == StatusCode::BAD_REQUEST && !problem.to_string().contains("456789"), "{problem}");
    let large = json!({ "reason": "x".repeat(20_000) });
    assert_eq!(acquire(&router, "a", &large).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(answer(&router, get("/nothing")).await.0, StatusCode::NOT_FOUND);
    assert_eq!(answer(&router, get("/v1/leases/release")).await.0, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(locks.list("", &fencepost_core::Page::default()).await.unwrap().resources.len(), 0);
}

#[tokio::test]
async fn pages_of_other_sites_are_refused() {
    let (router, locks) = service().await;
    let mut other_host = post("/v1/acquire", &json!({ "name": "a" }));
    other_host.headers_mut().insert(header::HOST, "evil.example".parse().unwrap());
    assert_eq!(answer(&router, other_host).await.0, StatusCode::MISDIRECTED_REQUEST);
    let mut other_origin = post("/v1/acquire", &json!({ "name": "a" }));
    other_origin.headers_mut().insert(header::ORIGIN, "http://evil.example".parse().unwrap());
    assert_eq!(answer(&router, other_origin).await.0, StatusCode::FORBIDDEN);
    // A form of another page cannot send this type.
    let mut form = post("/v1/acquire", &json!({ "name": "a" }));
    form.headers_mut().insert(header::CONTENT_TYPE, "text/plain".parse().unwrap());
    assert_eq!(answer(&router, form).await.0, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(locks.inspect("a").await.unwrap().claims.len(), 0);
    let mut own_origin = post("/v1/acquire", &json!({ "name": "a" }));
    own_origin.headers_mut().insert(header::ORIGIN, "http://127.0.0.1:7070".parse().unwrap());
    assert_eq!(answer(&router, own_origin).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_holder_that_was_evicted_is_told_why() {
    let (router, locks) = service().await;
    for now in [false, true] {
        let body = json!({ "process": { "host": "build-7", "pid": 42 }, "ttl": "2s" });
        let (_, granted) = acquire(&router, "a", &body).await;
        let (_, shown) = answer(&router, get("/v1/lock?name=a")).await;
        let holder = &shown["holders"][0];
        assert_eq!(
            (&holder["host"], &holder["pid"], &holder["detached"]),
            (&json!("build-7"), &json!(42), &json!(false))
        );
        let evict = json!({ "name": "a", "token": granted["token"], "reason": "maintenance", "now": now });
        assert_eq!(answer(&router, post("/v1/evict", &evict)).await.0, StatusCode::NO_CONTENT);
        let (status, problem) = answer(&router, post("/v1/leases/extend", &lease(&granted))).await;
        assert_eq!(
            (status, &problem["loss"], &problem["why"]),
            (StatusCode::GONE, &json!("evicted"), &json!("maintenance"))
        );
        locks.mutex("a").unwrap().lock().await.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn permits_are_taken_together_and_the_engine_is_described() {
    let (router, _locks) = service().await;
    let many = |take: u32| json!({ "mode": "permits", "permits": 3, "take": take });
    assert_eq!(acquire(&router, "a", &many(2)).await.0, StatusCode::OK);
    assert_eq!(acquire(&router, "a", &many(2)).await.0, StatusCode::CONFLICT);
    assert_eq!(acquire(&router, "a", &many(1)).await.0, StatusCode::OK);
    assert_eq!(acquire(&router, "a", &json!({ "take": 1 })).await.0, StatusCode::BAD_REQUEST);
    let (status, engine) = answer(&router, get("/v1/engine")).await;
    assert_eq!(
        (status, &engine["engine"], &engine["fair"]),
        (StatusCode::OK, &json!("memory"), &json!(true))
    );
}
