//! The trace of a request: its span, those of the library below it, and the audit log.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::http::{Request, StatusCode};
use fencepost_core::{Client, Registry};
use fencepost_server::{Audit, Options};
use serde_json::{Value, json};
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;

use crate::kit::{Events, Lines, answer, lease, post};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

fn traced(mut request: Request<Body>, header: &str) -> Request<Body> {
    request.headers_mut().append("traceparent", header.parse().unwrap());
    request
}

fn header() -> String {
    format!("00-{TRACE}-{PARENT}-01")
}

/// Notes spans: each with those above it, as `request/try_lock`, and each field, as `name=value`.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn has(&self, note: &str) -> bool {
        self.0.lock().unwrap().iter().any(|other| other == note)
    }

    /// Returns the notes, and forgets them.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Visit for &Notes {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let note = format!("{}={}", field.name(), format!("{value:?}").trim_matches('"'));
        self.0.lock().unwrap().push(note);
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Notes {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let names = context.span_scope(id).unwrap().from_root().map(|span| span.name());
        let path = names.collect::<Vec<_>>().join("/");
        self.0.lock().unwrap().push(path);
        attributes.record(&mut &*self);
    }

    fn on_record(&self, _: &Id, values: &Record<'_>, _: Context<'_, S>) {
        values.record(&mut &*self);
    }
}

#[tokio::test]
async fn the_spans_of_the_library_are_below_that_of_the_request() {
    let notes = Notes::default();
    // If there is one subscriber alone, a thread without it decides that nobody wants the spans that it is the first to reach.
    let _other = tracing::Dispatch::new(tracing_subscriber::registry());
    let _noted = tracing::subscriber::set_default(tracing_subscriber::registry().with(notes.clone()));
    let (router, _locks) = crate::kit::service().await;
    let ask = |path: &str, body: &Value| answer(&router, traced(post(path, body), &header()));
    let (_, held) = ask("/v1/acquire", &json!({ "name": "a" })).await;
    for note in [
        "request",
        "request/try_lock",
        "name=a",
        "otel.name=POST /v1/acquire",
        "http.response.status_code=200",
        &format!("trace_id={TRACE}"),
        &format!("parent_id={PARENT}"),
    ] {
        assert!(notes.has(note), "{note}: {:?}", notes.take());
    }
    notes.take();
    assert_eq!(ask("/v1/leases/release", &lease(&held)).await.0, StatusCode::NO_CONTENT);
    assert!(notes.has("request/release"), "{:?}", notes.take());
    // Work that a request leaves to a task.
    let mut request = traced(post("/v1/acquire", &json!({ "name": "b" })), &header());
    request.headers_mut().append("idempotency-key", "0d7a9f10-6c1e-4a3b".parse().unwrap());
    notes.take();
    assert_eq!(answer(&router, request).await.0, StatusCode::OK);
    assert!(notes.has("request/try_lock") && notes.has("name=b"), "{:?}", notes.take());
    notes.take();
    let mut events = Events::hold(&router, "c", &json!({})).await;
    events.next_of("granted").await;
    assert!(notes.has("request/try_lock") && notes.has("name=c"), "{:?}", notes.take());
    assert!(!notes.take().iter().any(|note| note.starts_with("trace_id")), "the request named no trace");
}

#[tokio::test]
async fn the_audit_log_has_the_trace_of_a_valid_header() {
    let (lines, locks) =
        (Lines::default(), Client::builder().connect(&Registry::new(), "memory:").await.unwrap());
    let audit = Audit::to(lines.clone());
    let options = Options { audit: audit.clone(), ..Options::default() };
    let router = fencepost_server::router(locks, &options).unwrap();
    let long = format!("{}-more", header());
    for (number, header) in [&*header(), &long, "nonsense", ""].into_iter().enumerate() {
        let request = post("/v1/acquire", &json!({ "name": number.to_string() }));
        assert_eq!(answer(&router, traced(request, header)).await.0, StatusCode::OK);
    }
    assert_eq!(answer(&router, traced(post("/v1/acquire", &json!({ "name": "0" })), &header())).await.0, 409);
    audit.flush().await;
    let text = lines.text();
    let trace_of = |line: &str| serde_json::from_str::<Value>(line).unwrap()["trace_id"].take();
    let traces: Vec<Value> = text.lines().map(trace_of).collect();
    assert_eq!(traces, [json!(TRACE), Value::Null, Value::Null, Value::Null, json!(TRACE)], "{text}");
}
