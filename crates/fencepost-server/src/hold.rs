//! The streaming form of a request: it waits, is granted, reports what happens to the lock, and releases when it is closed.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, Sse};
use fencepost_core::{Guard, Result};
use futures_util::stream::{Stream, unfold};
use serde_json::{Value, json};

use crate::problem::{Answer, Problem, ProblemBody};
use crate::request::{Body, NamePart, body_of, name_of};
use crate::rights::caller::Caller;
use crate::service::{Service, Waits};
use crate::view::millis;
use crate::wanted::{Acquire, Wanted, busy};

/// How often a stream says something, at least. A short lease makes it more often.
const BEAT: Duration = Duration::from_secs(3);
/// After which silence the caller stops its work, at most. The service notices a connection that is cut off later than that: see `SILENCE` in
/// `listen.rs`.
const STOP_AFTER: Duration = Duration::from_secs(10);

/// Why a stream ends whose caller has no rights any more.
const NOT_VALID: &str = "the token was taken back or has expired";

/// A request and how far it is.
struct Held {
    service: Service,
    caller: Caller,
    wanted: Wanted,
    stage: Stage,
    _waits: Waits,
}

enum Stage {
    Begin,
    Waiting(Pin<Box<dyn Future<Output = Result<Option<Guard>>> + Send>>),
    Holding(Guard),
    Ended,
}

/// Holds a lock as long as the connection is open.
#[utoipa::path(
    post,
    path = "/v1/locks/{name}/hold",
    tag = "locks",
    params(("name" = String, Path, min_length = 1, max_length = 255, description = "The name of the lock, percent-encoded")),
    request_body = Acquire,
    responses(
        (status = 200, description = "The events waiting, granted, held, lost and refused", body = String, content_type = "text/event-stream"),
        (status = "default", description = "The error, with a stable code", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn hold(
    State(service): State<Service>,
    caller: Caller,
    name: NamePart,
    body: Body,
) -> Answer<Sse<impl Stream<Item = std::result::Result<Event, Infallible>>>> {
    let (name, body): (_, Acquire) = (name_of(name)?, body_of(body)?);
    let held = match Wanted::new(&service.locks, &caller, name.clone(), &body) {
        Ok(wanted) => service.wait(&caller).map(|waits| (wanted, waits)),
        Err(problem) => Err(problem),
    };
    let (wanted, waits) = held.inspect_err(|problem| service.audit.acquired(&caller, &name, Err(problem)))?;
    let held = Held { service, caller, wanted, stage: Stage::Begin, _waits: waits };
    // The caller that closes the connection drops the stream, and with it the place in the queue or the guard.
    Ok(Sse::new(unfold(held, |mut held| async move {
        let (name, data) = held.next().await?;
        Some((Ok(Event::default().event(name).data(data.to_string())), held))
    })))
}

impl Held {
    /// Returns the next event. `None`: the stream ends.
    async fn next(&mut self) -> Option<(&'static str, Value)> {
        if !self.service.knows(&self.caller) {
            // Dropped: the lock is released, or the place in the queue is left.
            return match std::mem::replace(&mut self.stage, Stage::Ended) {
                Stage::Begin | Stage::Waiting(_) => {
                    let problem = Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", NOT_VALID);
                    self.service.audit.acquired(&self.caller, &self.wanted.name, Err(&problem));
                    Some(("refused", problem.to_json()))
                }
                Stage::Holding(guard) => {
                    Some(("lost", json!({ "token": guard.token().get(), "why": NOT_VALID, "detail": null })))
                }
                Stage::Ended => None,
            };
        }
        match &mut self.stage {
            Stage::Begin => {
                let wanted = self.wanted.clone();
                let wait = wanted.wait;
                let waits = Box::pin(async move { wanted.request(wait).await });
                self.stage = Stage::Waiting(waits);
                Some(("waiting", json!({})))
            }
            Stage::Waiting(outcome) => {
                let Ok(outcome) = tokio::time::timeout(BEAT, outcome).await else {
                    return Some(("waiting", json!({})));
                };
                let problem = match outcome {
                    Ok(Some(guard)) => {
                        let granted = held(&guard);
                        self.service.audit.acquired(&self.caller, &self.wanted.name, Ok(guard.token()));
                        self.stage = Stage::Holding(guard);
                        return Some(("granted", granted));
                    }
                    Ok(None) => busy(&self.service.locks, &self.wanted).await,
                    Err(error) => Problem::from(error),
                };
                self.service.audit.acquired(&self.caller, &self.wanted.name, Err(&problem));
                self.stage = Stage::Ended;
                Some(("refused", problem.to_json()))
            }
            Stage::Holding(guard) => {
                let beat = BEAT.min(self.wanted.ttl / 8);
                let Ok(why) = tokio::time::timeout(beat, guard.lost()).await else {
                    return Some(("held", held(guard)));
                };
                let detail = guard.loss_detail().as_deref().map(str::to_owned);
                let lost = json!({ "token": guard.token().get(), "why": why.to_string(), "detail": detail });
                self.stage = Stage::Ended;
                Some(("lost", lost))
            }
            Stage::Ended => None,
        }
    }
}

/// Makes the data of an event that says that the lock is held. If this service is stopped, the lease ends at its time. The caller stops
/// before that: a fifth of the time is for the way of the event.
fn held(guard: &Guard) -> Value {
    let stop_after = STOP_AFTER.min(guard.remaining() * 4 / 5);
    json!({ "token": guard.token().get(), "stop_after_ms": millis(stop_after) })
}
