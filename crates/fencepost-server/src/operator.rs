//! The requests of operators: list, show and evict.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use fencepost_core::{Eviction, Info, Name, Page, Token};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::problem::{Answer, Problem};
use crate::record;
use crate::request::{Body, NamePart, body_of, name_of};
use crate::rights::caller::Caller;
use crate::rights::entry::Verb;
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
    caller: Caller,
    query: Result<Query<Listed>, QueryRejection>,
) -> Answer<Json<Value>> {
    let Query(query) = query.map_err(|error| Problem::invalid(error.body_text()))?;
    let after = query.after.as_deref().map(Name::new).transpose()?;
    let (infos, next) = listing(&service, &caller, &query.prefix, after, PAGE).await?;
    let locks: Vec<Lock> = infos.iter().map(Lock::from).collect();
    Ok(Json(json!({ "locks": locks, "next": next.map(|name| name.as_str().to_owned()) })))
}

/// Returns the locks that the caller may see, at most `limit`, and after which name the next ones begin.
pub(crate) async fn listing(
    service: &Service,
    caller: &Caller,
    prefix: &str,
    after: Option<Name>,
    limit: usize,
) -> Answer<(Vec<Info>, Option<Name>)> {
    let mut found = Vec::new();
    for prefix in caller.readable(prefix) {
        let mut page = Page::of(limit - found.len());
        page.after = after.clone();
        let mut listing = service.locks.list(&prefix, &page).await?;
        found.append(&mut listing.resources);
        let is_full = found.len() >= limit;
        let next = listing.next.or_else(|| found.last().filter(|_| is_full).map(|info| info.name.clone()));
        if next.is_some() {
            found.retain(|info| !record::is_record(info.name.as_str()));
            return Ok((found, next));
        }
    }
    found.retain(|info| !record::is_record(info.name.as_str()));
    Ok((found, None))
}

pub(crate) async fn show(
    State(service): State<Service>,
    caller: Caller,
    name: NamePart,
) -> Answer<Json<Lock>> {
    let name = name_of(name)?;
    caller.check(Verb::Read, &name)?;
    let info = service.locks.inspect(name.as_str()).await?;
    Ok(Json(Lock::from(&info)))
}

pub(crate) async fn evict(
    State(service): State<Service>,
    caller: Caller,
    name: NamePart,
    body: Body,
) -> Answer<StatusCode> {
    let (name, body): (_, Evict) = (name_of(name)?, body_of(body)?);
    let evicted = evicted(&service, &caller, &name, &body).await;
    match &evicted {
        Ok(()) => service.audit.evicted(&caller, &name, body.token, body.now, body.reason.as_deref()),
        Err(problem) => service.audit.refused(&caller, &name, Verb::Evict, problem),
    }
    evicted.map(|()| StatusCode::NO_CONTENT)
}

async fn evicted(service: &Service, caller: &Caller, name: &Name, body: &Evict) -> Answer<()> {
    caller.check(Verb::Evict, name)?;
    let mut how = Eviction::new(body.now);
    how.reason.clone_from(&body.reason);
    service.locks.evict(name.as_str(), Token::from(body.token), &how).await?;
    tracing::info!(lock = %name, token = body.token, now = body.now, "evicted over HTTP");
    Ok(())
}
