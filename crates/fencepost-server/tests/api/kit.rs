//! Requests to a router, without a network.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use fencepost_core::{Client, Registry};
use fencepost_server::Options;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

pub(crate) async fn service() -> (Router, Client) {
    let locks = Client::builder().connect(&Registry::new(), "memory:").await.unwrap();
    (fencepost_server::router(locks.clone(), &Options::default()).unwrap(), locks)
}

pub(crate) fn post(path: &str, body: &Value) -> Request<Body> {
    let request = Request::post(path).header(header::HOST, "127.0.0.1:7070");
    request.header(header::CONTENT_TYPE, "application/json").body(Body::from(body.to_string())).unwrap()
}

pub(crate) fn get(path: &str) -> Request<Body> {
    Request::get(path).header(header::HOST, "localhost:7070").body(Body::empty()).unwrap()
}

pub(crate) async fn answer(router: &Router, request: Request<Body>) -> (StatusCode, Value) {
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status();
    if status.is_client_error() || status.is_server_error() {
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
    }
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

/// Returns the body of a request for the lock of this name.
pub(crate) fn named(name: &str, body: &Value) -> Value {
    let mut body = body.clone();
    if let Some(fields) = body.as_object_mut() {
        fields.insert("name".to_owned(), name.into());
    }
    body
}

pub(crate) async fn acquire(router: &Router, name: &str, body: &Value) -> (StatusCode, Value) {
    answer(router, post("/v1/acquire", &named(name, body))).await
}

pub(crate) fn lease(granted: &Value) -> Value {
    json!({ "lease": granted["lease"].as_str().unwrap() })
}

/// A writer whose text a test reads.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The pause between two looks at what another task or the service does. A loop that only yields uses a processor for as long as it waits.
pub(crate) async fn pause() {
    tokio::time::sleep(Duration::from_millis(2)).await;
}

/// A stream says something within this time.
const EVENT: Duration = Duration::from_secs(20);

/// A stream of events.
pub(crate) struct Events {
    body: Body,
    text: String,
}

impl Events {
    pub(crate) async fn of(router: &Router, request: Request<Body>) -> Events {
        let response = router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
        assert_eq!(response.headers()["x-accel-buffering"], "no");
        Events { body: response.into_body(), text: String::new() }
    }

    pub(crate) async fn hold(router: &Router, name: &str, body: &Value) -> Events {
        Events::of(router, post("/v1/hold", &named(name, body))).await
    }

    /// Returns the next event. `None`: the stream has ended.
    pub(crate) async fn next(&mut self) -> Option<(String, Value)> {
        while !self.text.contains("\n\n") {
            let frame = tokio::time::timeout(EVENT, self.body.frame()).await.expect("an event")?;
            self.text.push_str(std::str::from_utf8(frame.unwrap().data_ref().unwrap()).unwrap());
        }
        let (event, rest) = self.text.split_once("\n\n").unwrap();
        let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        let event = (field("event:").to_owned(), serde_json::from_str(field("data:")).unwrap());
        self.text = rest.to_owned();
        Some(event)
    }

    /// Returns the next event of this name.
    pub(crate) async fn next_of(&mut self, name: &str) -> Value {
        loop {
            let (event, data) = self.next().await.expect(name);
            if event == name {
                return data;
            }
        }
    }
}
