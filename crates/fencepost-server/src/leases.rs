//! The requests about a lease.

use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use fencepost_core::DetachedLease;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::eviction;
use crate::grant::{Granted, extended};
use crate::problem::{Answer, Problem};
use crate::request::{Body, body_of, duration, lease_of, releasable};
use crate::rights::caller::Caller;
use crate::rights::entry::Verb;
use crate::service::Service;
use crate::view::Claim;

/// The body of a request to release a lease.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Released {
    /// The secret that acquiring the lock returned, or that of the event `granted` of a stream.
    #[schema(pattern = "^(hold-)?fencepost1-[0-9a-f]+$")]
    lease: String,
    /// The exit code of the run, if the lease is that of a firing. Zero is good, and none at all is not.
    exit_code: Option<i32>,
}

/// The body of a request about a lease.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Leased {
    /// The secret that acquiring the lock returned.
    #[schema(pattern = "^fencepost1-[0-9a-f]+$")]
    lease: String,
}

/// The body of a request to extend a lease.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Extended {
    /// The secret that acquiring the lock returned.
    #[schema(pattern = "^fencepost1-[0-9a-f]+$")]
    lease: String,
    /// For how long the lease is extended, counted from now.
    #[schema(pattern = r"^([0-9]+(ms|s|m|h))+$", example = "30s")]
    ttl: Option<String>,
}

/// Reads a lease, and checks that the caller may use it.
fn leased(service: &Service, caller: &Caller, text: &str) -> Answer<DetachedLease> {
    let lease = lease_of(text)?;
    service.check(caller, Verb::Acquire, lease.name())?;
    Ok(lease)
}

/// The answer about a lease.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Shown {
    name: String,
    /// A holder has the token that the text of the lease names. The text is no proof: its bearer can change it.
    token_holds: bool,
    /// This holder.
    claim: Option<Claim>,
}

/// Extends a lease.
#[utoipa::path(
    post,
    path = "/v1/leases/extend",
    tag = "leases",
    request_body = Extended,
    responses(
        (status = 200, description = "The lease", body = Granted),
        Problem,
    )
)]
pub(crate) async fn extend(
    State(service): State<Service>,
    caller: Caller,
    body: Body,
) -> Answer<Json<Granted>> {
    let received = Instant::now();
    let body: Extended = body_of(body)?;
    let lease = leased(&service, &caller, &body.lease)?;
    let ttl = duration("ttl", body.ttl.as_deref())?.unwrap_or(lease.ttl());
    match extended(&service.locks, &lease, ttl).await {
        Ok(grant) => Ok(Json(grant.answer(received))),
        Err(error) if error.is_lost() => {
            let may_know = caller.may(Verb::Read, lease.name()) || service.history.has_made(&lease);
            Err(eviction::explain(&service, &lease, error, may_know).await)
        }
        Err(error) => Err(error.into()),
    }
}

/// Ends a lease or a stream, and releases its lock.
#[utoipa::path(
    post,
    path = "/v1/leases/release",
    tag = "leases",
    request_body = Released,
    responses(
        (status = 204, description = "The lock is released"),
        Problem,
    )
)]
pub(crate) async fn release(
    State(service): State<Service>,
    caller: Caller,
    body: Body,
) -> Answer<StatusCode> {
    let body: Released = body_of(body)?;
    let lease = leased(&service, &caller, releasable(&body.lease))?;
    match service.guards.take(&lease) {
        Some(guard) => {
            body.exit_code.into_iter().for_each(|exit_code| guard.report(exit_code));
            guard.release().await?;
        }
        // Another copy of the service may hold it by a stream. The engine tells that one.
        None => match body.exit_code {
            Some(exit_code) => service.locks.release_run(&lease, exit_code).await?,
            None => service.locks.release(&lease).await?,
        },
    }
    service.history.released(&lease);
    Ok(StatusCode::NO_CONTENT)
}

/// Shows the holder that has the token of a lease.
#[utoipa::path(
    post,
    path = "/v1/leases/show",
    tag = "leases",
    request_body = Leased,
    responses(
        (status = 200, description = "The holder", body = Shown),
        Problem,
    )
)]
pub(crate) async fn show_lease(
    State(service): State<Service>,
    caller: Caller,
    body: Body,
) -> Answer<Json<Shown>> {
    let lease = leased(&service, &caller, &body_of::<Leased>(body)?.lease)?;
    // The token comes from the caller, and could be that of any holder.
    service.check(&caller, Verb::Read, lease.name())?;
    let info = service.locks.inspect(lease.name().as_str()).await?;
    let mine = info.holders().find(|claim| claim.token == Some(lease.token()));
    Ok(Json(Shown {
        name: lease.name().as_str().to_owned(),
        token_holds: mine.is_some(),
        claim: mine.map(Claim::from),
    }))
}
