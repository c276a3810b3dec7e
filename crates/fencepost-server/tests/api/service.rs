//! The documents about the service: OpenAPI and metrics.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use fencepost_core::ErrorKind;
use fencepost_core::testing::TestEngine;
use fencepost_server::{Metrics, Options};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

use crate::kit::{Events, acquire, answer, get, lease, pause, post, service};

#[tokio::test]
async fn the_openapi_document_has_each_request() {
    let (router, _locks) = service().await;
    let (status, document) = answer(&router, get("/openapi.json")).await;
    assert_eq!((status, &document["info"]["title"]), (StatusCode::OK, &json!("fencepost")));
    let mut found = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let request = Request::builder().method(method.to_uppercase().as_str());
            let request = request.uri(path.replace("{name}", "a")).header(header::HOST, "localhost");
            let response = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
            let status = response.status();
            assert!(![StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED].contains(&status), "{path}");
            assert!(operation["responses"]["default"]["content"]["application/problem+json"].is_object());
            found.push(format!("{method} {path}"));
        }
    }
    // Those of the page in docs/serve.md.
    let page = include_str!("../../../../docs/serve.md");
    let rows =
        page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`')).map(|(request, _)| request);
    let mut written: Vec<String> = rows
        .filter_map(|request| request.split_once(" /"))
        .map(|(method, path)| format!("{} /{}", method.to_lowercase(), path))
        .map(|request| request.split('?').next().unwrap().to_owned())
        .filter(|request| !request.ends_with("/openapi.json"))
        .collect();
    found.sort();
    written.sort();
    assert_eq!(found, written);
    let acquire = &document["components"]["schemas"]["Acquire"];
    let fields: Vec<_> = acquire["properties"].as_object().unwrap().keys().collect();
    assert_eq!(
        json!(fields),
        json!([
            "holder", "mode", "name", "once", "permits", "process", "reason", "take", "ttl", "unfair", "wait"
        ])
    );
    let mut broken = Vec::new();
    references(&document, &document, &mut broken);
    assert!(broken.is_empty(), "{broken:?}");
}

#[tokio::test]
async fn a_response_that_is_not_read_is_dropped() {
    let (router, locks) = service().await;
    for number in 0..500 {
        locks.mutex(&format!("{number}")).unwrap().try_lock().await.unwrap().unwrap().detach().await.unwrap();
    }
    for reads in [true, false] {
        let response = router.clone().oneshot(get("/v1/locks")).await.unwrap();
        let length: usize = response.headers()[header::CONTENT_LENGTH].to_str().unwrap().parse().unwrap();
        let mut body = response.into_body();
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        if !reads {
            // The next parts are on their way.
            tokio::task::yield_now().await;
            tokio::time::pause();
            tokio::time::advance(std::time::Duration::from_secs(30)).await;
            tokio::task::yield_now().await;
            tokio::time::resume();
        }
        let rest = body.collect().await.unwrap().to_bytes();
        assert!(length > 100_000);
        assert_eq!(first.len() + rest.len() == length, reads);
    }
}

/// Collects the references to parts that are not in the document.
fn references(document: &Value, part: &Value, broken: &mut Vec<String>) {
    if let Some(pointer) = part.get("$ref").and_then(Value::as_str) {
        let target = pointer.strip_prefix('#').and_then(|pointer| document.pointer(pointer));
        broken.extend(target.is_none().then(|| pointer.to_owned()));
    }
    match part {
        Value::Object(fields) => fields.values().for_each(|part| references(document, part, broken)),
        Value::Array(parts) => parts.iter().for_each(|part| references(document, part, broken)),
        _ => {}
    }
}

#[tokio::test]
async fn metrics_are_those_of_the_library() {
    let (router, _) = service().await;
    assert_eq!(answer(&router, get("/metrics")).await.0, StatusCode::NOT_IMPLEMENTED);
    let options = Options { metrics: Some(Metrics::install().unwrap()), ..Options::default() };
    assert!(Metrics::install().unwrap_err().is_invalid());
    let (_, locks) = service().await;
    let router = fencepost_server::router(locks, &options).unwrap();
    let (_, held) = acquire(&router, "hidden-name", &json!({})).await;
    acquire(&router, "hidden-name", &json!({})).await;
    answer(&router, post("/v1/leases/release", &lease(&held))).await;
    let response = router.clone().oneshot(get("/metrics")).await.unwrap();
    assert!(
        response.headers()[header::CONTENT_TYPE].to_str().unwrap().starts_with("text/plain; version=0.0.4")
    );
    let text = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&text).into_owned();
    for line in [
        "# TYPE fencepost_acquisitions_total counter",
        "fencepost_acquisitions_total{engine=\"memory\",outcome=\"granted\"} ",
        "fencepost_acquisitions_total{engine=\"memory\",outcome=\"busy\"} ",
        "# TYPE fencepost_wait_seconds histogram",
        "fencepost_wait_seconds_bucket{engine=\"memory\",le=\"0.001\"} ",
        "fencepost_releases_total{engine=\"memory\",how=\"detach\"} ",
    ] {
        assert!(text.contains(line), "no {line} in\n{text}");
    }
    assert!(!text.contains("hidden-name"), "{text}");
}

#[tokio::test]
async fn callers_do_not_read_the_errors_of_the_engine() {
    let engine = TestEngine::in_real_time().unwrap();
    let router = fencepost_server::router(engine.client(), &Options::default()).unwrap();
    for kind in [ErrorKind::Unreachable, ErrorKind::Denied, ErrorKind::Configuration, ErrorKind::Internal] {
        engine.fail_all(kind);
        let own = engine.client().inspect("a").await.unwrap_err().to_string();
        for request in [get("/v1/lock?name=a"), get("/readyz"), post("/v1/acquire", &json!({ "name": "a" }))]
        {
            let (status, problem) = answer(&router, request).await;
            let detail = problem["detail"].as_str().unwrap();
            assert!(status.is_server_error() && detail.contains("the log of the service"), "{problem}");
            assert!(!detail.contains(&own), "{problem}");
        }
    }
}

/// Notes the warnings of this thread, as `message name=value`.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl<S: Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() <= Level::WARN {
            let mut text = Text(String::new());
            event.record(&mut text);
            self.0.lock().unwrap().push(text.0);
        }
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!("{}={value:?} ", field.name());
    }
}

#[tokio::test]
async fn an_outage_has_a_line_when_it_begins_and_one_when_it_ends() {
    let warnings = Warnings::default();
    // If there is one subscriber alone, a thread without it decides that nobody wants the events that it is the first to reach.
    let _other = tracing::Dispatch::new(tracing_subscriber::registry());
    let _noted = tracing::subscriber::set_default(tracing_subscriber::registry().with(warnings.clone()));
    let engine = TestEngine::in_real_time().unwrap();
    let router = fencepost_server::router(engine.client(), &Options::default()).unwrap();
    engine.fail_all(ErrorKind::Unreachable);
    let mut details = Vec::new();
    for number in 0..20 {
        let (status, problem) = acquire(&router, &format!("job/{number}"), &json!({})).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{problem}");
        details.push(problem["detail"].as_str().unwrap().to_owned());
        // A stream has the same answer in its event.
        let refused = Events::hold(&router, "stream", &json!({})).await.next_of("refused").await;
        details.push(refused["detail"].as_str().unwrap().to_owned());
    }
    details.dedup();
    let [detail] = &*details else { panic!("{details:?}") };
    let id = detail.split_once("(id ").expect(detail).1.trim_end_matches(')');
    engine.heal_all();
    let has_ended = async {
        while !warnings.0.lock().unwrap().iter().any(|line| line.contains("succeed again")) {
            assert_eq!(answer(&router, get("/v1/lock?name=a")).await.0, StatusCode::OK);
            pause().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), has_ended)
        .await
        .expect("the log says that the outage has ended");
    let warnings = warnings.0.lock().unwrap();
    let of_requests: Vec<&String> = warnings.iter().filter(|line| line.contains(id)).collect();
    let [begin, end] = &*of_requests else { panic!("{warnings:?}") };
    assert!(begin.contains("a request failed") && begin.contains("job/0"), "{begin}");
    assert!(end.contains("requests=40 "), "{end}");
    assert!(
        !warnings.iter().any(|line| line.contains("a request failed") && !line.contains(id)),
        "{warnings:?}"
    );
}
