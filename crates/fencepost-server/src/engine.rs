//! The capabilities of the engine of this service.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::problem::Problem;
use crate::rights::caller::Caller;
use crate::service::Service;
use crate::view::millis;

/// The capabilities of an engine.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Engine {
    /// Its name, as in its URLs.
    engine: &'static str,
    /// Requests are granted in the order of their arrival.
    fair: bool,
    fair_permits: bool,
    /// A request can be unfair.
    barging: bool,
    shared: bool,
    permits: bool,
    /// How long tokens grow: `durable`, `clock-bounded` or `none`.
    tokens: String,
    /// Each token is at least the time of the engine's clock, in microseconds since 1970.
    clock_tokens: bool,
    inspect: bool,
    evict: bool,
    /// It keeps the runs of locks: see `/v1/runs` and `/v1/check`.
    history: bool,
    min_ttl_ms: u64,
    max_ttl_ms: u64,
}

/// Says what the engine can do.
#[utoipa::path(
    get,
    path = "/v1/engine",
    tag = "service",
    responses(
        (status = 200, description = "What the engine can do", body = Engine),
        Problem,
    )
)]
pub(crate) async fn engine(State(service): State<Service>, _: Caller) -> Json<Engine> {
    let can = service.locks.capabilities();
    Json(Engine {
        engine: can.engine,
        fair: can.fair,
        fair_permits: can.fair_permits,
        barging: can.barging,
        shared: can.shared,
        permits: can.permits,
        tokens: can.tokens.to_string(),
        clock_tokens: can.clock_tokens,
        inspect: can.inspect,
        evict: can.evict,
        history: can.history,
        min_ttl_ms: millis(can.min_ttl),
        max_ttl_ms: millis(can.max_ttl),
    })
}
