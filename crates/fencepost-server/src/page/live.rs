//! The stream that keeps the page live. It sends the parts that have changed.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::sse::{Event, Sse};
use fencepost_core::Runs;
use futures_util::stream::Stream;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::changes::{BEAT, LONGEST};
use crate::events::{Source, Told, stream};
use crate::page::parts::{Asked, parts};
use crate::page::rows::{is_changed, rows};
use crate::page::{checked, in_section, runs};
use crate::problem::Answer;
use crate::rights::caller::Caller;
use crate::seen::Seen;
use crate::service::{Service, Waits};
use crate::snapshots::Looks;

/// Streams the changes of a page.
pub(crate) async fn live(
    State(service): State<Service>,
    caller: Caller,
    query: Result<Query<Asked>, QueryRejection>,
) -> Answer<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    let asked = checked(&service, &caller, query)?;
    service.listable(&caller, "")?;
    let mut shown = Shown {
        ends: Instant::now() + LONGEST,
        looks: service.snapshots.subscribe(),
        _waits: service.wait(&caller)?,
        readable: caller.readable(""),
        service,
        caller,
        asked,
        runs: None,
        seen: Arc::default(),
        order: Vec::new(),
        sections: HashMap::new(),
    };
    let (events, stream) = stream();
    tokio::spawn(async move { events.tell(&mut shown).await });
    Ok(stream)
}

/// A page, as its reader sees it.
struct Shown {
    ends: Instant,
    service: Service,
    caller: Caller,
    /// The prefixes of the names that the caller may read.
    readable: Vec<String>,
    asked: Asked,
    looks: Looks,
    runs: Option<Runs>,
    /// The look that was sent last.
    seen: Arc<Seen>,
    /// The locks that are shown, in their order.
    order: Vec<String>,
    sections: HashMap<&'static str, String>,
    _waits: Waits,
}

impl Source for Shown {
    async fn next(&mut self) -> Option<Told> {
        let quiet_until = Instant::now() + BEAT;
        loop {
            match tokio::time::timeout_at(quiet_until, self.looks.next()).await {
                Err(_) => return Some(("unchanged", json!({}))),
                Ok(look) => match look? {
                    Ok(seen) => {
                        let caller = self.service.known(&self.caller)?;
                        if Instant::now() >= self.ends || caller.readable("") != self.readable {
                            return None;
                        }
                        if let Some(patch) = self.patch(&caller, seen).await {
                            return Some(("patch", patch));
                        }
                    }
                    Err(error) => return Some(("unreachable", json!({ "detail": error }))),
                },
            }
        }
    }
}

impl Shown {
    /// Returns what has changed. `None`: nothing.
    async fn patch(&mut self, caller: &Caller, seen: Arc<Seen>) -> Option<Value> {
        let is_same = |name: &str| match (self.seen.locks.get(name), seen.locks.get(name)) {
            (Some(before), Some(now)) => !is_changed((before, &self.seen), (now, &seen)),
            (before, now) => before.is_none() && now.is_none(),
        };
        let is_first = self.sections.is_empty();
        if self.asked.name.as_deref().is_some_and(|name| is_first || !is_same(name)) {
            // A look that fails leaves the runs as they are.
            self.runs = runs(&self.service, &self.asked).await.ok().flatten().or(self.runs.take());
        }
        let parts = parts(&self.service, caller, &self.asked, &seen, self.runs.as_ref());
        let order: Vec<String> = parts.locks.iter().map(|info| info.name.as_str().to_owned()).collect();
        let (mut changed, mut sections) = (Map::new(), Map::new());
        for info in &parts.locks {
            let name = info.name.as_str();
            if !self.order.iter().any(|shown| shown == name) || !is_same(name) {
                let rows = rows(caller, info, &seen, parts.waiters);
                changed.insert(name.to_owned(), rows.into());
            }
        }
        for (id, section) in parts.above.into_iter().chain(parts.below) {
            if self.sections.get(id) != Some(&section) {
                sections.insert(id.to_owned(), in_section(id, &section).into());
                self.sections.insert(id, section);
            }
        }
        let is_quiet = changed.is_empty() && sections.is_empty() && order == self.order;
        let now = seen.at_micros / 1000;
        self.order.clone_from(&order);
        self.seen = seen;
        (!is_quiet).then(|| json!({ "now": now, "order": order, "rows": changed, "sections": sections }))
    }
}
