//! The stream of changes.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::IntoResponse;
use fencepost_core::{ClaimInfo, Info};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::events::{SentEvent, Source, Told, stream};
use crate::problem::{Answer, Problem};
use crate::rights::caller::Caller;
use crate::seen::Seen;
use crate::service::{Service, Waits};
use crate::snapshots::Looks;
use crate::view::Lock;

/// How often a stream says something if nothing changes.
pub(crate) const BEAT: Duration = Duration::from_secs(15);

/// How exactly the beginning of a claim is known.
const SINCE: Duration = Duration::from_millis(100);
/// After which time a stream ends. A browser asks again, and its rights are checked again.
pub(crate) const LONGEST: Duration = Duration::from_secs(600);

/// The query of a stream of changes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Watched {
    prefix: String,
}

/// Streams changes of locks.
#[utoipa::path(
    get,
    path = "/v1/changes",
    tag = "locks",
    params(("prefix" = Option<String>, Query, description = "The beginning of the names")),
    responses(
        (status = 200, description = "The events changed, free, complete, unchanged and unreachable",
            body = SentEvent, content_type = "text/event-stream"),
        Problem,
    )
)]
pub(crate) async fn changes(
    State(service): State<Service>,
    caller: Caller,
    query: Result<Query<Watched>, QueryRejection>,
) -> Answer<impl IntoResponse> {
    let Query(Watched { prefix }) = query.map_err(|error| Problem::invalid(error.body_text()))?;
    let mut listener = Listener {
        prefixes: service.listable(&caller, &prefix)?,
        prefix,
        ends: Instant::now() + LONGEST,
        service: service.clone(),
        caller: caller.clone(),
        looks: service.snapshots.subscribe(),
        known: Arc::default(),
        now: None,
        last: None,
        is_changed_told: false,
        is_complete: false,
        _waits: service.wait(&caller)?,
    };
    let (events, stream) = stream();
    tokio::spawn(async move { events.tell(&mut listener).await });
    Ok(stream)
}

/// One stream. It has no copies of locks: each event is made when it is asked for.
struct Listener {
    prefix: String,
    /// Of the names that the caller may see.
    prefixes: Vec<String>,
    ends: Instant,
    service: Service,
    caller: Caller,
    looks: Looks,
    /// The locks that were told.
    known: Arc<Seen>,
    /// The locks that are told now.
    now: Option<Arc<Seen>>,
    /// The name that was told last.
    last: Option<String>,
    /// The changed locks of `now` were told. The free ones are left.
    is_changed_told: bool,
    /// All locks were told once.
    is_complete: bool,
    _waits: Waits,
}

impl Source for Listener {
    type Data = Value;

    async fn next(&mut self) -> Option<Told> {
        let quiet_until = Instant::now() + BEAT;
        loop {
            // Before each event: a slow reader always finds another difference.
            let caller = self.service.known(&self.caller)?;
            if Instant::now() >= self.ends || caller.readable(&self.prefix) != self.prefixes {
                return None;
            }
            if let Some(event) = self.difference() {
                return Some(event);
            }
            let look = tokio::select! {
                look = tokio::time::timeout_at(quiet_until, self.looks.next()) => look,
                _ = self.service.streams.closing() => return None,
            };
            match look {
                Err(_) => return Some(("unchanged", json!({}))),
                Ok(look) => match look? {
                    Ok(now) => self.now = Some(now),
                    Err(error) => return Some(("unreachable", json!({ "detail": error }))),
                },
            }
        }
    }
}

impl Listener {
    /// Returns the next difference of the locks that were told and those that are told now.
    fn difference(&mut self) -> Option<Told> {
        let now = Arc::clone(self.now.as_ref()?);
        let has_prefix = |name: &str| self.prefixes.iter().any(|prefix| name.starts_with(prefix));
        if !self.is_changed_told {
            let is_changed =
                |name: &str, info| self.known.locks.get(name).is_none_or(|before| differ(before, info));
            let mut others = now.locks.range::<str, _>(after(self.last.as_deref()));
            if let Some((name, info)) = others.find(|(name, info)| has_prefix(name) && is_changed(name, info))
            {
                self.last = Some(name.clone());
                return Some(("changed", json!(Lock::from(info))));
            }
            (self.is_changed_told, self.last) = (true, None);
        }
        let mut others = self.known.locks.range::<str, _>(after(self.last.as_deref())).map(|(name, _)| name);
        if let Some(name) = others.find(|name| has_prefix(name) && !now.locks.contains_key(*name)) {
            self.last = Some(name.clone());
            return Some(("free", json!({ "name": name })));
        }
        (self.known, self.now, self.last, self.is_changed_told) = (now, None, None, false);
        let is_first = !std::mem::replace(&mut self.is_complete, true);
        is_first.then(|| ("complete", json!({})))
    }
}

/// Returns the range of the names after this one.
fn after(name: Option<&str>) -> (Bound<&str>, Bound<&str>) {
    (name.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)
}

/// Returns whether other claims hold or wait, or a holder was evicted. Ages and leases change all the time.
pub(crate) fn differ(before: &Info, now: &Info) -> bool {
    before.claims.len() != now.claims.len()
        || before.claims.iter().zip(&now.claims).any(|(before, now)| !is_same(before, now))
}

fn is_same(before: &ClaimInfo, now: &ClaimInfo) -> bool {
    let what = |claim: &ClaimInfo| (claim.token, claim.evicted, claim.holds());
    // Some engines count it back from now.
    let is_since = before.since_micros.abs_diff(now.since_micros) < SINCE.as_micros() as u64;
    what(before) == what(now) && before.holder == now.holder && is_since
}
