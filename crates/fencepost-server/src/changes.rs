//! The stream of changes.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::sse::{Event, Sse};
use fencepost_core::{ClaimInfo, Info};
use futures_util::stream::{Stream, unfold};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::problem::{Answer, Problem, ProblemBody};
use crate::rights::caller::Caller;
use crate::service::{Service, Waits};
use crate::snapshots::Snapshot;
use crate::view::Lock;

/// How often a stream says something if nothing changes.
const BEAT: Duration = Duration::from_secs(15);

/// How exactly the beginning of a claim is known.
const SINCE: Duration = Duration::from_millis(100);
/// After which time a stream ends. A browser asks again, and its rights are checked again.
const LONGEST: Duration = Duration::from_secs(600);

/// The query of a stream of changes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Watched {
    prefix: String,
}

/// Tells what changes.
#[utoipa::path(
    get,
    path = "/v1/changes",
    tag = "locks",
    params(("prefix" = Option<String>, Query, description = "The beginning of the names")),
    responses(
        (status = 200, description = "The events changed, free, complete, unchanged and unreachable", body = String, content_type = "text/event-stream"),
        (status = "default", description = "The error, with a stable code", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn changes(
    State(service): State<Service>,
    caller: Caller,
    query: Result<Query<Watched>, QueryRejection>,
) -> Answer<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    let Query(Watched { prefix }) = query.map_err(|error| Problem::invalid(error.body_text()))?;
    let listener = Listener {
        prefixes: caller.readable(&prefix),
        ends: Instant::now() + LONGEST,
        service: service.clone(),
        caller: caller.clone(),
        seen: service.snapshots.subscribe(),
        known: Arc::default(),
        events: VecDeque::new(),
        is_complete: false,
        _waits: service.wait(&caller)?,
    };
    Ok(Sse::new(unfold(listener, |mut listener| async move {
        let (name, data) = listener.next().await?;
        Some((Ok(Event::default().event(name).data(data.to_string())), listener))
    })))
}

/// One stream.
struct Listener {
    /// Of the names that the caller may see.
    prefixes: Vec<String>,
    ends: Instant,
    service: Service,
    caller: Caller,
    seen: watch::Receiver<Option<Snapshot>>,
    known: Arc<BTreeMap<String, Info>>,
    events: VecDeque<(&'static str, Value)>,
    /// All locks were told once.
    is_complete: bool,
    _waits: Waits,
}

impl Listener {
    /// Returns the next event. `None`: the stream ends.
    async fn next(&mut self) -> Option<(&'static str, Value)> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            let snapshot = self.seen.borrow_and_update().clone();
            match snapshot {
                Some(Ok(now)) => self.compare(now),
                Some(Err(error)) => self.events.push_back(("unreachable", json!({ "detail": error }))),
                None => {}
            }
            if self.events.is_empty() {
                if Instant::now() >= self.ends || !self.service.knows(&self.caller) {
                    return None;
                }
                match tokio::time::timeout(BEAT, self.seen.changed()).await {
                    Err(_) => return Some(("unchanged", json!({}))),
                    Ok(changed) => changed.ok()?,
                }
            }
        }
    }

    fn compare(&mut self, now: Arc<BTreeMap<String, Info>>) {
        let has_prefix = |name: &str| self.prefixes.iter().any(|prefix| name.starts_with(prefix));
        for (name, info) in now.iter().filter(|(name, _)| has_prefix(name)) {
            if self.known.get(name).is_none_or(|before| differ(before, info)) {
                self.events.push_back(("changed", json!(Lock::from(info))));
            }
        }
        for name in self.known.keys().filter(|name| has_prefix(name) && !now.contains_key(*name)) {
            self.events.push_back(("free", json!({ "name": name })));
        }
        self.known = now;
        if !std::mem::replace(&mut self.is_complete, true) {
            self.events.push_back(("complete", json!({})));
        }
    }
}

/// Returns whether other claims hold or wait, or a holder was evicted. Ages and leases change all the time.
fn differ(before: &Info, now: &Info) -> bool {
    before.claims.len() != now.claims.len()
        || before.claims.iter().zip(&now.claims).any(|(before, now)| !is_same(before, now))
}

fn is_same(before: &ClaimInfo, now: &ClaimInfo) -> bool {
    let what = |claim: &ClaimInfo| (claim.token, claim.evicted, claim.holds());
    // Some engines count it back from now.
    let is_since = before.since_micros.abs_diff(now.since_micros) < SINCE.as_micros() as u64;
    what(before) == what(now) && before.holder == now.holder && is_since
}
