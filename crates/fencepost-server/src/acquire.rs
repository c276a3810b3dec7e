//! The request for a lock.

use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;

use crate::keyed;
use crate::leases::{Grant, Granted};
use crate::problem::Answer;
use crate::record::Key;
use crate::request::{Body, NamePart, body_of, name_of};
use crate::service::Service;
use crate::wanted::{Acquire, Wanted, busy, detached};

/// The header of the caller's key.
const KEY: &str = "idempotency-key";

pub(crate) async fn acquire(
    State(service): State<Service>,
    name: NamePart,
    headers: HeaderMap,
    body: Body,
) -> Answer<Json<Granted>> {
    let received = Instant::now();
    let (name, body): (_, Acquire) = (name_of(name)?, body_of(body)?);
    let wanted = Wanted::new(&service.locks, name, &body)?;
    let grant = match headers.get(KEY) {
        None => once(&service, &wanted).await?,
        Some(key) => {
            let request = serde_json::to_vec(&body).unwrap_or_default();
            let key = Key::new(key.to_str().unwrap_or_default(), "", &wanted.name, &request)?;
            keyed::acquire(&service, &wanted, &key).await?
        }
    };
    Ok(Json(grant.answer(received)))
}

/// Serves a request without a key. A caller that hangs up drops this future, and with it the place in the queue.
async fn once(service: &Service, wanted: &Wanted) -> Answer<Grant> {
    let _waits = if wanted.wait.is_zero() { None } else { Some(service.wait()?) };
    match wanted.request().wait(wanted.wait).no_renewal().await? {
        Some(guard) => detached(guard).await,
        None => Err(busy(&service.locks, wanted).await),
    }
}
