//! The record of a lock's runs, which the library and the command keep by themselves.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::kit::{answer, get, post, service};
use crate::rights::{Guarded, add};

fn run(token: u64, holder: &str) -> Value {
    json!({ "token": token, "holder": holder, "host": "h1", "pid": 7, "since": 5 })
}

fn written(record: &Value, version: u64) -> axum::http::Request<axum::body::Body> {
    let body = json!({ "name": "stock/1", "record": record, "keep_ms": 60_000, "version": version });
    post("/v1/runs", &body)
}

#[tokio::test]
async fn a_record_is_written_by_its_version() {
    let (router, _locks) = service().await;
    let (_, none) = answer(&router, get("/v1/runs?name=stock%2F1")).await;
    assert_eq!((&none["record"], &none["version"]), (&Value::Null, &json!(0)), "{none}");
    let (status, first) = answer(&router, written(&json!({ "running": run(1, "me"), "other": 1 }), 0)).await;
    assert_eq!(status, StatusCode::OK, "{first}");
    let (status, late) = answer(&router, written(&json!({ "last": run(2, "me") }), 0)).await;
    assert_eq!((status, &late["code"]), (StatusCode::CONFLICT, &json!("mismatch")), "{late}");
    let (_, kept) = answer(&router, get("/v1/runs?name=stock%2F1")).await;
    assert_eq!((&kept["version"], &kept["record"]["running"]), (&first["version"], &run(1, "me")), "{kept}");
    assert_eq!(kept["record"]["other"], Value::Null, "{kept}");
    assert!((1..=60_000).contains(&kept["keep_ms"].as_u64().unwrap()), "{kept}");
    let (status, gone) = answer(&router, written(&Value::Null, first["version"].as_u64().unwrap())).await;
    assert_eq!((status, &gone["version"]), (StatusCode::OK, &json!(0)));
    let (status, odd) = answer(&router, written(&json!({ "last": { "holder": "me" } }), 0)).await;
    assert_eq!((status, &odd["code"]), (StatusCode::BAD_REQUEST, &json!("invalid")), "{odd}");
}

#[tokio::test]
async fn no_caller_writes_runs_in_the_name_of_another() {
    let service = Guarded::start().await;
    let ops = add(&service.file, "ops", &["acquire,read:stock/"], None, None);
    let blind = service.token(&["acquire:stock/"]);
    let outside = add(&service.file, "other", &["acquire,read:else/"], None, None);
    let look = || get("/v1/runs?name=stock%2F1");
    for request in [look(), written(&json!({}), 0)] {
        assert_eq!(service.ask(&outside, request).await.0, StatusCode::FORBIDDEN);
    }
    let (status, first) = service.ask(&ops, written(&json!({ "last": run(1, "night") }), 0)).await;
    assert_eq!(status, StatusCode::OK, "{first}");
    // It may not know who that was.
    let (_, seen) = service.ask(&blind, look()).await;
    let last = &seen["record"]["last"];
    assert_eq!(
        (&last["token"], &last["holder"], &last["host"]),
        (&json!(1), &json!(""), &json!("")),
        "{seen}"
    );
    let record = json!({ "last": last, "running": run(2, "ops: night") });
    let version = seen["version"].as_u64().unwrap();
    assert_eq!(service.ask(&blind, written(&record, version)).await.0, StatusCode::OK);
    let (_, kept) = service.ask(&ops, look()).await;
    assert_eq!(kept["record"]["last"], run(1, "ops: night"), "{kept}");
    assert_eq!(kept["record"]["running"], run(2, "ci: ops: night"), "{kept}");
}
