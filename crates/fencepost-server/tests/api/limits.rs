//! The limits of all requests together, and of those of a token.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Request, StatusCode};
use fencepost_server::{NewToken, Options, Tokens};
use futures_util::stream::poll_fn;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::kit::{acquire, answer, get, post, service};
use crate::rights::Guarded;

/// How many bodies of 16 KiB the service waits for.
const SLOW: usize = 16 * 1024;
const UNDER_WAY: usize = 12_000;

/// Counts how often the service has asked for bodies.
#[derive(Clone, Default)]
struct Asked(Arc<AtomicUsize>);

impl Asked {
    /// Makes a request for a lock. Its body arrives when the service asks, or never.
    fn request(&self, arrives: bool) -> Request<Body> {
        let (asked, mut rest) =
            (Arc::clone(&self.0), Some(Ok::<_, Infallible>(Bytes::from_static(b"{\"name\":\"a\"}"))));
        let body = poll_fn(move |_| {
            asked.fetch_add(1, SeqCst);
            if arrives { Poll::Ready(rest.take()) } else { Poll::Pending }
        });
        post("/v1/acquire", &json!({ "name": "a" })).map(|_| Body::from_stream(body))
    }

    async fn times(&self, times: usize) {
        while self.0.load(SeqCst) < times {
            tokio::task::yield_now().await;
        }
    }
}

fn ask(router: &Router, request: Request<Body>) -> JoinHandle<(StatusCode, Value)> {
    let router = router.clone();
    tokio::spawn(async move { answer(&router, request).await })
}

#[tokio::test]
async fn slow_callers_cost_others_nothing() {
    let ((router, _locks), asked) = (service().await, Asked::default());
    tokio::time::pause();
    let all: Vec<_> = (0..SLOW).map(|_| ask(&router, asked.request(false))).collect();
    asked.times(SLOW).await;
    tokio::time::advance(Duration::from_secs(1)).await;
    // From now on they count as slow.
    asked.times(2 * SLOW).await;
    let (status, problem) = answer(&router, asked.request(false)).await;
    assert_eq!((status, &problem["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("overloaded")));
    assert_eq!(acquire(&router, "a", &json!({})).await.0, StatusCode::OK);
    for one in all {
        assert_eq!(one.await.unwrap().0, StatusCode::REQUEST_TIMEOUT);
    }
    assert_eq!(answer(&router, asked.request(false)).await.0, StatusCode::REQUEST_TIMEOUT);
}

#[tokio::test]
async fn requests_under_way_have_a_limit() {
    // The clock of the engine stands still.
    let ((locks, _clock, engine), asked) = (fencepost_core::testing::client(), Asked::default());
    let router = fencepost_server::router(locks, &Options::default()).unwrap();
    engine.slow("a", Duration::from_secs(1));
    let all: Vec<_> = (0..UNDER_WAY).map(|_| ask(&router, asked.request(true))).collect();
    // Once for the body, and once for its end.
    asked.times(2 * UNDER_WAY).await;
    let (status, problem) = answer(&router, get("/v1/lock?name=b")).await;
    assert_eq!((status, &problem["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("overloaded")));
    assert_eq!(answer(&router, get("/healthz")).await.0, StatusCode::OK);
    for one in all {
        one.abort();
        assert!(one.await.unwrap_err().is_cancelled());
    }
    assert_eq!(answer(&router, get("/v1/lock?name=b")).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_token_has_so_many_requests_a_second() {
    let guarded = Guarded::start().await;
    let new = NewToken {
        caller: "ci".to_owned(),
        rights: vec!["acquire,read:".parse().unwrap()],
        expires: None,
        waiting: None,
        rate: Some(1),
    };
    let token = Tokens::add(&guarded.file, &new).unwrap();
    let other = guarded.token(&["read:"]);
    let (mut refused, mut served) = (0, 0);
    for _ in 0..20 {
        match guarded.ask(&token, get("/v1/locks")).await {
            (StatusCode::TOO_MANY_REQUESTS, problem) => {
                assert_eq!(problem["code"], "too-many-requests");
                refused += 1;
            }
            (status, _) => {
                assert_eq!(status, StatusCode::OK);
                served += 1;
            }
        }
    }
    assert!(served >= 1 && refused > 10, "{served} {refused}");
    assert_eq!(guarded.ask(&other, get("/v1/locks")).await.0, StatusCode::OK);
}
