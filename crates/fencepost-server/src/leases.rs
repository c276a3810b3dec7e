//! The requests about a lease, and the answer with one.

use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use fencepost_core::{Client, DetachedLease, margin};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::problem::Answer;
use crate::request::{Body, body_of, duration, lease_of};
use crate::service::Service;
use crate::view::{Claim, millis};

/// The answer with a lease.
#[derive(Serialize)]
pub(crate) struct Granted {
    /// A secret: it extends and releases the lock.
    lease: String,
    token: u64,
    /// How long the lease is certain, counted from the moment at which the caller sent the request.
    valid_ms: u64,
}

/// The body of a request about a lease.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Leased {
    lease: String,
    ttl: Option<String>,
}

/// A grant that the service has made or found.
#[derive(Debug, Clone)]
pub(crate) struct Grant {
    pub(crate) lease: DetachedLease,
    /// Until when it is certain.
    pub(crate) until: Instant,
}

impl Grant {
    /// Makes the answer to a request that was received at this time. The caller counts from the moment at which it sent the request,
    /// which is before that.
    pub(crate) fn answer(&self, received: Instant) -> Granted {
        let valid = self.until.saturating_duration_since(received);
        Granted { token: self.lease.token().get(), lease: self.lease.to_secret(), valid_ms: millis(valid) }
    }
}

/// Extends a lease.
pub(crate) async fn extended(
    locks: &Client,
    lease: &DetachedLease,
    ttl: Duration,
) -> fencepost_core::Result<Grant> {
    let sent = Instant::now();
    let lease = locks.extend(lease, ttl).await?;
    Ok(Grant { lease, until: sent + ttl.saturating_sub(margin(ttl)) })
}

pub(crate) async fn extend(State(service): State<Service>, body: Body) -> Answer<Json<Granted>> {
    let received = Instant::now();
    let body: Leased = body_of(body)?;
    let lease = lease_of(&body.lease)?;
    let ttl = duration("ttl", body.ttl.as_deref())?.unwrap_or(lease.ttl());
    Ok(Json(extended(&service.locks, &lease, ttl).await?.answer(received)))
}

pub(crate) async fn release(State(service): State<Service>, body: Body) -> Answer<StatusCode> {
    let lease = lease_of(&body_of::<Leased>(body)?.lease)?;
    service.locks.release(&lease).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn show_lease(State(service): State<Service>, body: Body) -> Answer<Json<Value>> {
    let lease = lease_of(&body_of::<Leased>(body)?.lease)?;
    let info = service.locks.inspect(lease.name().as_str()).await?;
    let mine = info.holders().find(|claim| claim.token == Some(lease.token()));
    Ok(Json(json!({ "name": lease.name().as_str(), "held": mine.is_some(), "claim": mine.map(Claim::from) })))
}
