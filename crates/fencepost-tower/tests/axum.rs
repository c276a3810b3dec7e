//! The layer around a handler of axum.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Extension, Router};
use fencepost::{ErrorKind, GuardView, Locks};
use fencepost_tower::{LockLayer, Refusal};
use tower::ServiceExt;

const WAIT: Duration = Duration::from_secs(2);

async fn order(Extension(lock): Extension<GuardView>) -> String {
    lock.token().to_string()
}

async fn never() -> String {
    std::future::pending().await
}

/// The path is the key. Requests to `/free` need no lock.
fn app(locks: &Locks, wait: Option<Duration>) -> Router {
    let key = |request: &Request| Some(request.uri().path().to_owned()).filter(|path| path != "/free");
    let layer = LockLayer::new(locks, key).ttl(Duration::from_secs(10));
    let layer = wait.map_or(layer.clone(), |wait| layer.wait(wait));
    Router::new()
        .route("/stock/{id}", post(order))
        .route("/never", post(never))
        .route("/free", post(async || "free"))
        .layer(layer)
}

async fn answer(app: Router, path: &str) -> axum::response::Response {
    app.oneshot(Request::post(path).body(Body::empty()).unwrap()).await.unwrap()
}

#[tokio::test]
async fn a_handler_works_under_the_lock_of_its_key() {
    let (locks, _clock, engine) = fencepost::testing::locks();
    assert_eq!(answer(app(&locks, None), "/stock/1").await.status(), StatusCode::OK);
    let other = engine.busy("/stock/1").await.unwrap();
    let refused = answer(app(&locks, None), "/stock/1").await;
    assert_eq!(refused.status(), StatusCode::CONFLICT);
    assert!(matches!(refused.extensions().get(), Some(Refusal::Busy)));
    assert_eq!(answer(app(&locks, None), "/stock/2").await.status(), StatusCode::OK, "another key is free");
    assert_eq!(answer(app(&locks, None), "/free").await.status(), StatusCode::OK);
    other.release().await.unwrap();
    assert_eq!(answer(app(&locks, None), "/stock/1").await.status(), StatusCode::OK, "nothing is left");
}

#[tokio::test]
async fn a_busy_lock_is_waited_for() {
    let (locks, clock, engine) = fencepost::testing::locks();
    let other = engine.busy("/stock/1").await.unwrap();
    let app = app(&locks, Some(WAIT));
    let (refused, ()) = tokio::join!(answer(app.clone(), "/stock/1"), clock.advance(WAIT));
    assert_eq!(refused.status(), StatusCode::CONFLICT);
    let (granted, released) = tokio::join!(answer(app, "/stock/1"), other.release());
    released.unwrap();
    assert_eq!(granted.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_lost_lock_ends_the_request() {
    let (locks, _clock, engine) = fencepost::testing::locks();
    let loss = async {
        while engine.lose("/never") == 0 {
            tokio::task::yield_now().await;
        }
    };
    let (stopped, ()) = tokio::join!(answer(app(&locks, None), "/never"), loss);
    assert_eq!(stopped.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(matches!(stopped.extensions().get(), Some(Refusal::Failed(error)) if error.is_lost()));
}

#[tokio::test]
async fn a_request_that_is_dropped_leaves_no_lock() {
    let (locks, _clock, _engine) = fencepost::testing::locks();
    let request = tokio::spawn(answer(app(&locks, None), "/never"));
    while locks.inspect("/never").await.unwrap().holders().count() == 0 {
        tokio::task::yield_now().await;
    }
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled());
    locks.mutex("/never").unwrap().lock().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn an_engine_that_fails_is_no_conflict() {
    let (locks, clock, engine) = fencepost::testing::locks();
    let app = app(&locks, Some(WAIT));
    engine.fail("/stock/1", ErrorKind::Unreachable);
    let (away, ()) = tokio::join!(answer(app.clone(), "/stock/1"), clock.advance(WAIT));
    assert_eq!(away.status(), StatusCode::SERVICE_UNAVAILABLE);
    engine.fail("/stock/2", ErrorKind::Denied);
    assert_eq!(answer(app.clone(), "/stock/2").await.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let long = format!("/stock/{}", "a".repeat(300));
    assert_eq!(answer(app, &long).await.status(), StatusCode::BAD_REQUEST);
}
