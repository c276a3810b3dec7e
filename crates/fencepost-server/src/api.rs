//! The requests of the API.

use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use fencepost_core::{AnyLock, Client, DetachedLease, Error, Eviction, Guard, Name, Page, Token};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::Service;
use crate::problem::Problem;
use crate::view::{Claim, Lock, millis};

/// The lease if the caller gives none. Nobody renews it but the caller.
const TTL: Duration = Duration::from_secs(30);
/// The longest wait of one request. A caller that wants to wait longer asks again.
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// How long `/readyz` asks the engine.
const READY: Duration = Duration::from_secs(2);
/// The most locks of an answer.
const PAGE: usize = 1000;

type Answer<T> = Result<T, Problem>;
type Body = Result<Json<Map<String, Value>>, JsonRejection>;

/// The body of a request for a lock.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Acquire {
    mode: ModeName,
    /// How many permits there are. The request takes one.
    permits: Option<u32>,
    ttl: Option<String>,
    wait: Option<String>,
    holder: Option<String>,
    reason: Option<String>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ModeName {
    #[default]
    Exclusive,
    Shared,
    Permits,
}

/// The answer with a lease.
#[derive(Debug, Serialize)]
pub(crate) struct Granted {
    /// A secret: it extends and releases the lock.
    lease: String,
    token: u64,
    /// How long the lease is certain, counted from the moment at which the caller sent the request.
    valid_ms: u64,
}

/// The body of a request about a lease.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Leased {
    lease: String,
    ttl: Option<String>,
}

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

pub(crate) async fn acquire(
    State(service): State<Service>,
    name: Result<Path<String>, PathRejection>,
    body: Body,
) -> Answer<Json<Granted>> {
    let received = Instant::now();
    let (name, body): (_, Acquire) = (name_of(name)?, body_of(body)?);
    let locks = &service.locks;
    let ttl = duration("ttl", body.ttl.as_deref())?.unwrap_or(TTL);
    let wait = duration("wait", body.wait.as_deref())?.unwrap_or(Duration::ZERO);
    if wait > LONGEST_WAIT {
        return Err(Problem::invalid("wait is at most 300s; ask again to wait longer"));
    }
    let lock = lock_of(locks, &name, &body)?;
    // A caller that hangs up drops this future, and with it the place in the queue.
    let _waits = match wait.is_zero() {
        true => None,
        false => Some(service.waiting.try_acquire().map_err(|_| {
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-many-waiting", "10,000 callers wait already")
        })?),
    };
    let mut request = lock.try_lock().wait(wait).ttl(ttl).no_renewal();
    if let Some(holder) = &body.holder {
        request = request.label(holder);
    }
    if let Some(reason) = &body.reason {
        request = request.reason(reason);
    }
    let Some(guards) = request.await? else { return Err(busy(locks, &name, wait).await) };
    let guard = guards.into_guards().pop().ok_or_else(no_guard)?;
    // The lease counts from before the engine was asked, and the caller counts from before that.
    let valid = guard.remaining() + received.elapsed();
    Ok(Json(granted(guard, valid).await?))
}

/// Cuts the grant loose from this process.
async fn granted(guard: Guard, valid: Duration) -> Answer<Granted> {
    let lease = guard.detach().await?;
    Ok(Granted { token: lease.token().get(), lease: lease.to_secret(), valid_ms: millis(valid) })
}

fn no_guard() -> Problem {
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "a grant without a guard")
}

/// The answer for a lock that somebody else has. A look that fails names nobody.
async fn busy(locks: &Client, name: &Name, waited: Duration) -> Problem {
    let info = locks.inspect(name.as_str()).await.ok();
    let holders: Vec<Claim> = info.iter().flat_map(|info| info.holders()).map(Claim::from).collect();
    let waiters = info.as_ref().map_or(0, |info| info.waiters().count());
    let by = match holders.first() {
        Some(first) => format!("held by {} (host {}, pid {})", first.holder, first.host, first.pid),
        None => "held by somebody else".to_owned(),
    };
    let (code, detail) = match waited.is_zero() {
        true => ("busy", format!("{name} is {by}")),
        false => ("timed-out", format!("{name} is still {by}, after {}", humantime::format_duration(waited))),
    };
    let holders = serde_json::to_value(holders).unwrap_or(Value::Null);
    Problem::new(StatusCode::CONFLICT, code, detail).with("holders", holders).with("waiters", waiters)
}

pub(crate) async fn extend(State(service): State<Service>, body: Body) -> Answer<Json<Granted>> {
    let body: Leased = body_of(body)?;
    let lease = lease_of(&body.lease)?;
    let ttl = duration("ttl", body.ttl.as_deref())?.unwrap_or(lease.ttl());
    let lease = service.locks.extend(&lease, ttl).await?;
    // Counted from the request's arrival here, which is after the caller sent it.
    let valid = ttl.saturating_sub(margin(ttl));
    Ok(Json(Granted { token: lease.token().get(), lease: lease.to_secret(), valid_ms: millis(valid) }))
}

/// Clocks run at different speeds: the margin of a guard, a fiftieth of the lease and at least 50 ms (docs/guarantees.md).
fn margin(ttl: Duration) -> Duration {
    (ttl / 50).max(Duration::from_millis(50))
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

pub(crate) async fn list(
    State(service): State<Service>,
    query: Result<Query<Listed>, QueryRejection>,
) -> Answer<Json<Value>> {
    let Query(query) = query.map_err(|error| Problem::invalid(error.body_text()))?;
    let mut page = Page::of(PAGE);
    page.after = query.after.as_deref().map(Name::new).transpose()?;
    let listing = service.locks.list(&query.prefix, &page).await?;
    let locks: Vec<Lock> = listing.resources.iter().map(Lock::from).collect();
    Ok(Json(json!({ "locks": locks, "next": listing.next.map(|name| name.as_str().to_owned()) })))
}

pub(crate) async fn show(
    State(service): State<Service>,
    name: Result<Path<String>, PathRejection>,
) -> Answer<Json<Lock>> {
    let info = service.locks.inspect(name_of(name)?.as_str()).await?;
    Ok(Json(Lock::from(&info)))
}

pub(crate) async fn evict(
    State(service): State<Service>,
    name: Result<Path<String>, PathRejection>,
    body: Body,
) -> Answer<StatusCode> {
    let (name, body): (_, Evict) = (name_of(name)?, body_of(body)?);
    let mut how = Eviction::new(body.now);
    how.reason = body.reason;
    service.locks.evict(name.as_str(), Token::from(body.token), &how).await?;
    tracing::info!(lock = %name, token = body.token, now = body.now, "evicted over HTTP");
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn alive() -> &'static str {
    "ok\n"
}

/// Says whether the engine answers.
pub(crate) async fn ready(State(service): State<Service>) -> Answer<&'static str> {
    match tokio::time::timeout(READY, service.locks.reach()).await {
        Ok(answer) => answer.map(|()| "ok\n").map_err(Problem::from),
        Err(_) => Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "unreachable",
            "the engine did not answer within 2 s",
        )),
    }
}

fn name_of(name: Result<Path<String>, PathRejection>) -> Answer<Name> {
    let Path(name) = name.map_err(|error| Problem::invalid(error.body_text()))?;
    Ok(Name::new(&name)?)
}

/// Reads an object. An array would count as the fields in their order.
fn body_of<T: DeserializeOwned>(body: Body) -> Answer<T> {
    let body = body.map_err(|error| Problem::new(error.status(), "invalid", error.body_text()));
    let Json(fields) = body?;
    serde_json::from_value(Value::Object(fields)).map_err(|error| Problem::invalid(error.to_string()))
}

fn lease_of(text: &str) -> Answer<DetachedLease> {
    // The error does not repeat the text, which is a secret.
    text.parse().map_err(|error: Error| Problem::from(error))
}

fn lock_of(locks: &Client, name: &Name, body: &Acquire) -> Answer<AnyLock> {
    match (body.mode, body.permits) {
        (ModeName::Exclusive, None) => Ok(AnyLock::Mutex(locks.mutex(name.as_str())?)),
        (ModeName::Shared, None) => Ok(AnyLock::Read(locks.rwlock(name.as_str())?)),
        (ModeName::Permits, Some(of)) => Ok(AnyLock::Permits(locks.semaphore(name.as_str(), of)?, 1)),
        (ModeName::Permits, None) => {
            Err(Problem::invalid("mode permits needs the number of permits: \"permits\": 3"))
        }
        (_, Some(_)) => Err(Problem::invalid("permits goes with \"mode\": \"permits\"")),
    }
}

fn duration(field: &str, text: Option<&str>) -> Answer<Option<Duration>> {
    let Some(text) = text else { return Ok(None) };
    let parsed = humantime::parse_duration(text);
    parsed.map(Some).map_err(|error| Problem::invalid(format!("{field}: {error}; write 500ms, 30s or 1m30s")))
}
