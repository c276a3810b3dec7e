//! Whether the service and its engine answer.

use std::time::Duration;

use axum::extract::State;

use crate::problem::{Answer, Problem};
use crate::service::Service;

/// How long `/readyz` asks the engine.
const READY: Duration = Duration::from_secs(2);

pub(crate) async fn alive() -> &'static str {
    "ok\n"
}

/// Says whether the engine answers.
pub(crate) async fn ready(State(service): State<Service>) -> Answer<&'static str> {
    match tokio::time::timeout(READY, service.locks.reach()).await {
        Ok(answer) => answer.map(|()| "ok\n").map_err(Problem::from),
        Err(_) => Err(Problem::unavailable("unreachable", "the engine did not answer within 2 s")),
    }
}
