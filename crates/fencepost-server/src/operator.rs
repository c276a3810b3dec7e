//! The requests of operators: list, show and evict.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use fencepost_core::{Eviction, Name, Page, Token};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::problem::{Answer, Problem};
use crate::record;
use crate::request::{Body, NamePart, body_of, name_of};
use crate::service::Service;
use crate::view::Lock;

/// The most locks of an answer.
const PAGE: usize = 1000;

/// The body of a request to evict.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Evict {
    /// That of the holder: a later holder is not evicted in its place.
    token: u64,
    reason: Option<String>,
    #[serde(default)]
    now: bool,
}

/// The query of a listing.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Listed {
    prefix: String,
    after: Option<String>,
}

pub(crate) async fn list(
    State(service): State<Service>,
    query: Result<Query<Listed>, QueryRejection>,
) -> Answer<Json<Value>> {
    let Query(query) = query.map_err(|error| Problem::invalid(error.body_text()))?;
    let mut page = Page::of(PAGE);
    page.after = query.after.as_deref().map(Name::new).transpose()?;
    let listing = service.locks.list(&query.prefix, &page).await?;
    let locks = listing.resources.iter().filter(|info| !record::is_record(info.name.as_str()));
    let locks: Vec<Lock> = locks.map(Lock::from).collect();
    Ok(Json(json!({ "locks": locks, "next": listing.next.map(|name| name.as_str().to_owned()) })))
}

pub(crate) async fn show(State(service): State<Service>, name: NamePart) -> Answer<Json<Lock>> {
    let info = service.locks.inspect(name_of(name)?.as_str()).await?;
    Ok(Json(Lock::from(&info)))
}

pub(crate) async fn evict(State(service): State<Service>, name: NamePart, body: Body) -> Answer<StatusCode> {
    let (name, body): (_, Evict) = (name_of(name)?, body_of(body)?);
    let mut how = Eviction::new(body.now);
    how.reason = body.reason;
    service.locks.evict(name.as_str(), Token::from(body.token), &how).await?;
    tracing::info!(lock = %name, token = body.token, now = body.now, "evicted over HTTP");
    Ok(StatusCode::NO_CONTENT)
}
