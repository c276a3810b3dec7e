//! The requests of operators: list, show and evict.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use fencepost_core::{Effect, Eviction, Info, Name, Page, Token};
use serde::{Deserialize, Serialize};
use tracing::Instrument as _;
use utoipa::ToSchema;

use crate::eviction;
use crate::problem::{Answer, Problem};
use crate::request::{Body, Named, body_of, lock_name, name_of};
use crate::rights::caller::Caller;
use crate::rights::entry::Verb;
use crate::service::Service;
use crate::streams::CLOSING;
use crate::view::Lock;

/// The most locks of an answer.
const PAGE: usize = 1000;

/// The body of a request to evict.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Evict {
    /// The name of the lock.
    #[schema(min_length = 1, max_length = 255)]
    pub(crate) name: String,
    /// That of the holder: a later holder is not evicted in its place.
    #[schema(format = "uint64")]
    pub(crate) token: u64,
    pub(crate) reason: Option<String>,
    #[serde(default)]
    pub(crate) now: bool,
}

/// The query of a listing.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Listed {
    pub(crate) prefix: String,
    pub(crate) after: Option<String>,
}

/// The answer with locks.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Locks {
    locks: Vec<Lock>,
    /// The prefixes of the names that the list covers, if the access token does not allow to read all that were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    covers: Option<Vec<String>>,
    /// The query `after` of the request for the next locks, also if this answer has none. Not there: these are the last ones.
    next: Option<String>,
}

/// Lists the locks that are held or waited for.
#[utoipa::path(
    get,
    path = "/v1/locks",
    tag = "locks",
    params(("prefix" = Option<String>, Query, description = "The beginning of the names"),
        ("after" = Option<String>, Query, description = "The name in the field next of the answer before")),
    responses(
        (status = 200, description = "The locks, sorted by name", body = Locks),
        Problem,
    )
)]
pub(crate) async fn list(
    State(service): State<Service>,
    caller: Caller,
    query: Result<Query<Listed>, QueryRejection>,
) -> Answer<Json<Locks>> {
    let Query(query) = query.map_err(|error| Problem::invalid(error.body_text()))?;
    let after = query.after.as_deref().map(Name::new).transpose()?;
    let prefixes = service.listable(&caller, &query.prefix)?;
    let covers = (prefixes != [query.prefix.as_str()]).then_some(prefixes);
    let (infos, next) = listing(&service, &caller, &query.prefix, after, PAGE).await?;
    let locks: Vec<Lock> = infos.iter().map(Lock::from).collect();
    Ok(Json(Locks { locks, covers, next: next.map(|name| name.as_str().to_owned()) }))
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
        let mut after = after.clone();
        loop {
            let mut page = Page::of(limit - found.len());
            page.after = after;
            let listing = service.locks.list(&prefix, &page).await?;
            found.extend(listing.resources);
            match listing.next {
                None => break,
                Some(next) if found.len() >= limit => return Ok((found, Some(next))),
                next => after = next,
            }
        }
        if found.len() >= limit {
            let next = found.last().map(|info| info.name.clone());
            return Ok((found, next));
        }
    }
    Ok((found, None))
}

/// Shows the holders of a lock and the queue.
#[utoipa::path(
    get,
    path = "/v1/lock",
    tag = "locks",
    params(Named),
    responses(
        (status = 200, description = "The lock", body = Lock),
        Problem,
    )
)]
pub(crate) async fn show(
    State(service): State<Service>,
    caller: Caller,
    query: Result<Query<Named>, QueryRejection>,
) -> Answer<Json<Lock>> {
    let name = name_of(query)?;
    service.check(&caller, Verb::Read, &name)?;
    let info = service.locks.inspect(name.as_str()).await?;
    Ok(Json(Lock::from(&info)))
}

/// Evicts the holder of a lock.
#[utoipa::path(
    post,
    path = "/v1/evict",
    tag = "locks",
    request_body = Evict,
    responses(
        (status = 204, description = "The holder is evicted"),
        Problem,
    )
)]
pub(crate) async fn evict(State(service): State<Service>, caller: Caller, body: Body) -> Answer<StatusCode> {
    let body: Evict = body_of(body)?;
    let name = lock_name(&body.name)?;
    evict_holder(service, caller, name, body).await.map(|()| StatusCode::NO_CONTENT)
}

/// Evicts a holder, and notes that in the audit log. It ends by itself, also if its caller hangs up, because each eviction is in that log.
pub(crate) async fn evict_holder(service: Service, caller: Caller, name: Name, body: Evict) -> Answer<()> {
    // The end of the service waits for the eviction: the connection of a caller that hangs up is closed.
    let open = service.streams.connection();
    let evicting = async move {
        let _open = open;
        let evicted = evicted(&service, &caller, &name, &body).await;
        match &evicted {
            Ok(()) => service.audit.evicted(&caller, &name, body.token, body.now, body.reason.as_deref()),
            Err(problem) => service.audit.refused(&caller, &name, Verb::Evict, problem),
        }
        evicted
    };
    let evicted = tokio::spawn(evicting.in_current_span()).await;
    evicted.unwrap_or_else(|_| Err(Problem::unavailable("closing", CLOSING)))
}

async fn evicted(service: &Service, caller: &Caller, name: &Name, body: &Evict) -> Answer<()> {
    caller.check(Verb::Evict, name)?;
    let mut how = Eviction::new(body.now);
    how.reason.clone_from(&body.reason);
    let token = Token::from(body.token);
    // Before the eviction: the holder may ask right after it.
    let note = eviction::note(service, caller, name, token, body.reason.as_deref()).await?;
    if let Err(error) = service.locks.evict(name.as_str(), token, &how).await {
        // An eviction without an answer may have taken effect, and then its holder asks for the reason.
        if let Some(note) = note.filter(|_| error.effect() == Effect::None) {
            eviction::remove(service, note).await;
        }
        return Err(error.into());
    }
    service.history.evicted(name, token);
    tracing::info!(lock = %name, token = body.token, now = body.now, "evicted over HTTP");
    Ok(())
}
