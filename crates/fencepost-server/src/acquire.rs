//! The request for a lock.

use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use fencepost_core::{Leave, Name, Removed};
use serde::Serialize;
use utoipa::ToSchema;

use crate::grant::{Grant, Granted};
use crate::keyed::{self, Outcome};
use crate::problem::{Answer, Problem};
use crate::record::Key;
use crate::request::{Body, body_of, lock_name};
use crate::rights::caller::Caller;
use crate::rights::entry::Verb;
use crate::service::Service;
use crate::wanted::{Acquire, Asked, Terms, Wanted, busy, detached};

/// The header of the caller's key.
pub(crate) const KEY: &str = "idempotency-key";
/// The header by which a caller asks for an answer as soon as it is queued (RFC 7240), and its value.
const PREFER: &str = "prefer";
const RESPOND_ASYNC: &[u8] = b"respond-async";

/// The answer to a request that is queued.
#[derive(Serialize, ToSchema)]
pub(crate) struct Queued {
    queued: bool,
}

/// The answer about a withdrawn request: it had a grant (`released`), a position in the queue (`withdrawn`), or `nothing`.
#[derive(Serialize, ToSchema)]
pub(crate) struct Withdrawn {
    withdrawn: &'static str,
}

/// Acquires a lock, or waits for it.
#[utoipa::path(
    post,
    path = "/v1/acquire",
    tag = "locks",
    params(
        ("Prefer" = Option<String>, Header, description = "With respond-async, a key and a waiting time: answer as soon as the request is queued"),
        ("Idempotency-Key" = Option<String>, Header, pattern = "^[!-~]{16,255}$", description = "16 to 255 visible characters, a secret")),
    request_body = Acquire,
    responses(
        (status = 200, description = "The lease", body = Granted),
        (status = 202, description = "The request is queued: repeat it to learn of the grant", body = Queued),
        Problem,
    )
)]
pub(crate) async fn acquire(
    State(service): State<Service>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let received = Instant::now();
    let body: Acquire = body_of(body)?;
    let name = lock_name(&body.name)?;
    let outcome = grant(&service, &caller, name.clone(), headers, &body).await;
    // A grant is in the audit log already.
    match outcome.inspect_err(|problem| service.audit.acquired(&caller, &name, Err(problem)))? {
        Outcome::Queued => Ok((StatusCode::ACCEPTED, Json(Queued { queued: true })).into_response()),
        Outcome::Granted(grant) => Ok(Json(grant.answer(received)).into_response()),
    }
}

/// Withdraws a request with a key: its position in the queue and its grant.
#[utoipa::path(
    post,
    path = "/v1/withdraw",
    tag = "locks",
    params(
        ("Idempotency-Key" = String, Header, pattern = "^[!-~]{16,255}$", description = "The key of the request")),
    request_body = Acquire,
    responses(
        (status = 200, description = "What there was", body = Withdrawn),
        Problem,
    )
)]
pub(crate) async fn withdraw(
    State(service): State<Service>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Answer<Json<Withdrawn>> {
    let body: Acquire = body_of(body)?;
    let wanted = Wanted::new(&service.locks, &caller, lock_name(&body.name)?, &body)?;
    let key = key_of(&headers, &caller, &wanted, &body)?
        .ok_or_else(|| Problem::invalid("withdrawing needs the header Idempotency-Key of the request"))?;
    let withdrawn = match keyed::withdraw(&service, &wanted, &key).await? {
        Removed::Released => "released",
        Removed::Withdrawn => "withdrawn",
        Removed::Nothing => "nothing",
    };
    Ok(Json(Withdrawn { withdrawn }))
}

fn key_of(headers: &HeaderMap, caller: &Caller, wanted: &Wanted, body: &Acquire) -> Answer<Option<Key>> {
    let Some(key) = headers.get(KEY) else { return Ok(None) };
    Key::new(key.to_str().unwrap_or_default(), &caller.name, &wanted.name, &body.to_bytes()).map(Some)
}

async fn grant(
    service: &Service,
    caller: &Caller,
    name: Name,
    headers: HeaderMap,
    body: &Acquire,
) -> Answer<Outcome> {
    let wanted = Wanted::new(&service.locks, caller, name, body)?;
    let key = key_of(&headers, caller, &wanted, body)?;
    let leaves = headers.get_all(PREFER).iter().any(|prefer| prefer.as_bytes() == RESPOND_ASYNC);
    // They are parts of the connection's read buffer: while they live, the connection takes a second one of 8 KiB.
    drop(headers);
    match key {
        // In a box: a request without a key takes no memory for it.
        Some(key) => Box::pin(keyed::acquire(service, caller, &wanted, &key, leaves)).await,
        None if wanted.forever => {
            let detail = "a request that waits forever needs the header Idempotency-Key, because it is sent again and again";
            Err(Problem::invalid(detail))
        }
        None => once(service, caller, &wanted).await.map(Outcome::Granted),
    }
}

/// Serves a request without a key. A caller that hangs up drops this future, and with it the position in the queue.
async fn once(service: &Service, caller: &Caller, wanted: &Wanted) -> Answer<Grant> {
    let waits = !wanted.wait.is_zero();
    let _waits = if waits { Some(service.wait(caller)?) } else { None };
    let granted = tokio::select! {
        biased;
        granted = wanted.ask(Terms { wait: wanted.wait, fixed: true, known: None }) => granted?,
        // The request is dropped, so it leaves the queue.
        closing = service.streams.closing(), if waits => return Err(closing),
    };
    match granted {
        // In boxes: what follows takes no memory while the request waits.
        Asked::Granted(mut guard) => {
            // Until its caller has the lease nobody has learned of the grant, and a firing that nobody has learned of has not run.
            guard.set_on_drop(Some(Leave::Withdraw));
            service.check_again(caller, Verb::Acquire, &wanted.name)?;
            Box::pin(detached(service, caller, wanted, guard)).await
        }
        Asked::Busy => Err(Box::pin(busy(&service.locks, wanted)).await),
        Asked::Already(run) => Err(wanted.already_run(&run)),
    }
}
