//! The requests about a lease.

use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::grant::{Granted, extended};
use crate::problem::Answer;
use crate::request::{Body, body_of, duration, lease_of};
use crate::rights::caller::Caller;
use crate::rights::entry::Verb;
use crate::service::Service;
use crate::view::Claim;

/// The body of a request about a lease.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Leased {
    lease: String,
    ttl: Option<String>,
}

pub(crate) async fn extend(
    State(service): State<Service>,
    caller: Caller,
    body: Body,
) -> Answer<Json<Granted>> {
    let received = Instant::now();
    let body: Leased = body_of(body)?;
    let lease = lease_of(&body.lease)?;
    caller.check(Verb::Acquire, lease.name())?;
    let ttl = duration("ttl", body.ttl.as_deref())?.unwrap_or(lease.ttl());
    Ok(Json(extended(&service.locks, &lease, ttl).await?.answer(received)))
}

pub(crate) async fn release(
    State(service): State<Service>,
    caller: Caller,
    body: Body,
) -> Answer<StatusCode> {
    let lease = lease_of(&body_of::<Leased>(body)?.lease)?;
    caller.check(Verb::Acquire, lease.name())?;
    service.locks.release(&lease).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn show_lease(
    State(service): State<Service>,
    caller: Caller,
    body: Body,
) -> Answer<Json<Value>> {
    let lease = lease_of(&body_of::<Leased>(body)?.lease)?;
    caller.check(Verb::Acquire, lease.name())?;
    let info = service.locks.inspect(lease.name().as_str()).await?;
    let mine = info.holders().find(|claim| claim.token == Some(lease.token()));
    Ok(Json(json!({ "name": lease.name().as_str(), "held": mine.is_some(), "claim": mine.map(Claim::from) })))
}
