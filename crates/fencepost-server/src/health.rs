//! Whether the service and its engine answer, and what they do.

use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;

use crate::problem::{Answer, Problem};
use crate::service::Service;

/// How long `/readyz` asks the engine.
const READY: Duration = Duration::from_secs(2);
/// The text format of Prometheus.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Says that the service runs.
#[utoipa::path(
    get,
    path = "/healthz",
    tag = "service",
    responses(
        (status = 200, description = "The service runs", body = String, content_type = "text/plain"),
        Problem,
    )
)]
pub(crate) async fn alive() -> &'static str {
    "ok\n"
}

/// Says whether the engine answers.
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "service",
    responses(
        (status = 200, description = "The engine answers", body = String, content_type = "text/plain"),
        Problem,
    )
)]
pub(crate) async fn ready(State(service): State<Service>) -> Answer<&'static str> {
    match tokio::time::timeout(READY, service.locks.reach()).await {
        Ok(answer) => answer.map(|()| "ok\n").map_err(Problem::from),
        Err(_) => Err(Problem::unavailable("unreachable", "the engine did not answer within 2 s")),
    }
}

/// Returns the metrics for Prometheus.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "service",
    responses(
        (status = 200, description = "The metrics as text", body = String, content_type = "text/plain"),
        Problem,
    )
)]
pub(crate) async fn metrics(State(service): State<Service>) -> Answer<impl IntoResponse> {
    let Some(metrics) = &service.metrics else {
        let detail = "this service was started without a recorder of metrics";
        return Err(Problem::new(StatusCode::NOT_IMPLEMENTED, "unsupported", detail));
    };
    Ok(([(header::CONTENT_TYPE, TEXT)], metrics.text()))
}
