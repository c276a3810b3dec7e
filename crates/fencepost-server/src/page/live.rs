//! The stream that keeps the page live. It sends the parts that have changed.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::response::IntoResponse;
use serde_json::json;
use tokio::time::Instant;

use crate::changes::{BEAT, LONGEST};
use crate::events::{Source, Told, stream};
use crate::page::checked;
use crate::page::parts::Asked;
use crate::page::views::{View, Views};
use crate::problem::Answer;
use crate::rights::caller::Caller;
use crate::service::{Service, Waits};
use crate::snapshots::Looks;

/// Streams the changes of a page.
pub(crate) async fn live(
    State(service): State<Service>,
    Extension(views): Extension<Views>,
    caller: Caller,
    query: Result<Query<Asked>, QueryRejection>,
) -> Answer<impl IntoResponse> {
    let asked = checked(&service, &caller, query)?;
    service.listable(&caller, "")?;
    let mut open = Open {
        ends: Instant::now() + LONGEST,
        looks: service.snapshots.subscribe(),
        _waits: service.wait(&caller)?,
        view: views.of(&caller, &asked),
        last: None,
        service,
        caller,
    };
    let (events, stream) = stream();
    tokio::spawn(async move { events.tell(&mut open).await });
    Ok(stream)
}

/// An open page.
struct Open {
    ends: Instant,
    service: Service,
    caller: Caller,
    looks: Looks,
    view: Arc<View>,
    /// The look that was sent last.
    last: Option<u64>,
    _waits: Waits,
}

impl Source for Open {
    type Data = Arc<str>;

    async fn next(&mut self) -> Option<Told<Arc<str>>> {
        let quiet_until = Instant::now() + BEAT;
        loop {
            let look = tokio::select! {
                look = tokio::time::timeout_at(quiet_until, self.looks.next()) => look,
                _ = self.service.streams.closing() => return None,
            };
            match look {
                Err(_) => return Some(("unchanged", "{}".into())),
                Ok(look) => match look? {
                    Ok(seen) => {
                        let caller = self.service.known(&self.caller)?;
                        // Its reader asks again, with the rights that it has now.
                        if Instant::now() >= self.ends || caller.rights != self.caller.rights {
                            return None;
                        }
                        let (number, patch) = self.view.patch(&self.service, &caller, &seen, self.last).await;
                        self.last = Some(number);
                        if let Some(patch) = patch {
                            return Some(("patch", patch));
                        }
                    }
                    Err(error) => {
                        return Some(("unreachable", json!({ "detail": error }).to_string().into()));
                    }
                },
            }
        }
    }
}
