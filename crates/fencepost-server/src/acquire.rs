//! The request for a lock.

use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use fencepost_core::Name;

use crate::grant::{Grant, Granted};
use crate::keyed;
use crate::problem::{Answer, Problem};
use crate::record::Key;
use crate::request::{Body, NameParam, NamePart, body_of, name_of};
use crate::rights::caller::Caller;
use crate::service::Service;
use crate::wanted::{Acquire, Wanted, busy, detached};

/// The header of the caller's key.
const KEY: &str = "idempotency-key";

/// Acquires a lock, or waits for it.
#[utoipa::path(
    post,
    path = "/v1/locks/{name}/acquire",
    tag = "locks",
    params(NameParam, ("Idempotency-Key" = Option<String>, Header, pattern = "^[!-~]{16,255}$",
            description = "16 to 255 visible characters, a secret")),
    request_body = Acquire,
    responses(
        (status = 200, description = "The lease", body = Granted),
        Problem,
    )
)]
pub(crate) async fn acquire(
    State(service): State<Service>,
    caller: Caller,
    name: NamePart,
    headers: HeaderMap,
    body: Body,
) -> Answer<Json<Granted>> {
    let received = Instant::now();
    let (name, body): (_, Acquire) = (name_of(name)?, body_of(body)?);
    let grant = grant(&service, &caller, name.clone(), &headers, &body).await;
    // A grant is in the audit log already.
    let grant = grant.inspect_err(|problem| service.audit.acquired(&caller, &name, Err(problem)))?;
    Ok(Json(grant.answer(received)))
}

async fn grant(
    service: &Service,
    caller: &Caller,
    name: Name,
    headers: &HeaderMap,
    body: &Acquire,
) -> Answer<Grant> {
    let wanted = Wanted::new(&service.locks, caller, name, body)?;
    let Some(key) = headers.get(KEY) else { return once(service, caller, &wanted).await };
    let key = Key::new(key.to_str().unwrap_or_default(), &caller.name, &wanted.name, &body.to_bytes())?;
    keyed::acquire(service, caller, &wanted, &key).await
}

/// Serves a request without a key. A caller that hangs up drops this future, and with it the place in the queue.
async fn once(service: &Service, caller: &Caller, wanted: &Wanted) -> Answer<Grant> {
    let _waits = if wanted.wait.is_zero() { None } else { Some(service.wait(caller)?) };
    match wanted.request(wanted.wait).no_renewal().await? {
        Some(guard) => detached(service, caller, guard).await,
        None => Err(busy(&service.locks, wanted).await),
    }
}
