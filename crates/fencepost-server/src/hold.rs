//! The streaming form of a request: it waits, is granted, reports the state of the lock, and releases when it is closed.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse;
use fencepost_core::{Guard, Loss, Result};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::events::{Events, SentEvent, Source, Told, stream};
use crate::history::How;
use crate::peer::Peer;
use crate::problem::{Answer, Problem};
use crate::request::{Body, body_of, lock_name};
use crate::rights::caller::Caller;
use crate::rights::entry::Verb;
use crate::service::{Service, Waits};
use crate::streams::{CLOSING, STOP_AFTER};
use crate::view::millis;
use crate::wanted::{Acquire, Wanted, busy};

/// How often a stream says something, at least. A short lease makes it more often.
const BEAT: Duration = Duration::from_secs(3);

/// A request and its state.
struct Held {
    service: Service,
    caller: Caller,
    wanted: Wanted,
    stage: Stage,
    received: Instant,
    /// How long after the last event the caller stops.
    stop_after: Duration,
    /// Says that the service ends. The end of the service waits until it is dropped.
    closing: watch::Receiver<bool>,
    _waits: Waits,
}

enum Stage {
    Begin,
    Waiting(Pin<Box<dyn Future<Output = Result<Option<Guard>>> + Send>>),
    Holding(Guard),
    /// The lock is no longer the caller's. The guard stays until the caller has stopped: the next holder must not be granted before.
    Stopping {
        _guard: Guard,
        until: Instant,
    },
    Ended,
}

/// Holds a lock as long as the connection is open.
#[utoipa::path(
    post,
    path = "/v1/hold",
    tag = "locks",
    request_body = Acquire,
    responses(
        (status = 200, description = "The events waiting, granted, held, lost and refused",
            body = SentEvent, content_type = "text/event-stream"),
        Problem,
    )
)]
pub(crate) async fn hold(
    State(service): State<Service>,
    caller: Caller,
    body: Body,
) -> Answer<impl IntoResponse> {
    let received = Instant::now();
    let body: Acquire = body_of(body)?;
    let name = lock_name(&body.name)?;
    let held = match Wanted::new(&service.locks, &caller, name.clone(), &body) {
        Ok(wanted) => service.wait(&caller).map(|waits| (wanted, waits)),
        Err(problem) => Err(problem),
    };
    let (wanted, waits) = held.inspect_err(|problem| service.audit.acquired(&caller, &name, Err(problem)))?;
    let (closing, peer) = (service.streams.subscribe(), caller.peer.clone());
    let (stage, stop_after) = (Stage::Begin, STOP_AFTER);
    let held = Held { service, caller, wanted, stage, received, stop_after, closing, _waits: waits };
    let (events, stream) = stream();
    tokio::spawn(drive(held, events, peer).in_current_span());
    Ok(stream)
}

/// Makes the events. A caller that closes the stream has left the queue, or has released the lock. One that does not read, or whose
/// connection failed, may still work: its lock is held until it has stopped.
async fn drive(mut held: Held, events: Events, peer: Option<Peer>) {
    if events.tell(&mut held).await {
        return;
    }
    let is_closed_by_caller = events.is_closed() && peer.is_none_or(|peer| peer.is_heard());
    if is_closed_by_caller {
        held.note(How::Released);
    } else {
        held.stop();
        held.next().await;
    }
}

impl Source for Held {
    type Data = Value;

    async fn next(&mut self) -> Option<Told> {
        if let Stage::Stopping { until, .. } = self.stage {
            tokio::time::sleep_until(until).await;
            self.stage = Stage::Ended;
        }
        if let Stage::Ended = self.stage {
            return None;
        }
        if let Err(problem) = self.check() {
            return Some(self.end(&problem));
        }
        let mut closing = self.closing.clone();
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => Some(self.end(&Problem::unavailable("closing", CLOSING))),
            event = self.step() => event,
        }
    }
}

impl Held {
    fn check(&self) -> Answer<()> {
        self.service.check_again(&self.caller, Verb::Acquire, &self.wanted.name)
    }

    /// Ends the stream for a reason that does not come from the lock.
    fn end(&mut self, why: &Problem) -> Told {
        let event = match &self.stage {
            Stage::Holding(guard) => {
                ("lost", json!({ "token": guard.token().get(), "why": why.detail(), "detail": null }))
            }
            _ => {
                self.service.audit.acquired(&self.caller, &self.wanted.name, Err(why));
                ("refused", why.to_json())
            }
        };
        self.note(How::Lost);
        self.stop();
        event
    }

    /// Notes how the grant ended, if there is one.
    fn note(&self, how: How) {
        if let Stage::Holding(guard) = &self.stage {
            self.service.history.ended(guard.name(), guard.token(), how);
        }
    }

    /// Leaves the queue. A lock is held for as long as the caller may need to stop.
    fn stop(&mut self) {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Holding(guard) => {
                Stage::Stopping { _guard: guard, until: Instant::now() + self.stop_after }
            }
            stage @ Stage::Stopping { .. } => stage,
            Stage::Begin | Stage::Waiting(_) | Stage::Ended => Stage::Ended,
        };
    }

    async fn step(&mut self) -> Option<Told> {
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
                        if let Err(problem) = self.check() {
                            return Some(self.end(&problem));
                        }
                        self.service.audit.acquired(&self.caller, &self.wanted.name, Ok(guard.token()));
                        self.service.history.granted(self.wanted.granted(&self.caller, &guard));
                        let (granted, stop_after) = held(&guard, self.received);
                        self.stop_after = stop_after;
                        self.stage = Stage::Holding(guard);
                        return Some(("granted", granted));
                    }
                    Ok(None) => busy(&self.service.locks, &self.wanted).await,
                    Err(error) => Problem::from(error).logged(&self.service.failures),
                };
                Some(self.end(&problem))
            }
            Stage::Holding(guard) => {
                let beat = BEAT.min(self.wanted.ttl / 8);
                let Ok(why) = tokio::time::timeout(beat, guard.lost()).await else {
                    let (held, stop_after) = held(guard, self.received);
                    self.stop_after = stop_after;
                    return Some(("held", held));
                };
                let detail = guard.loss_detail().as_deref().map(str::to_owned);
                let lost = json!({ "token": guard.token().get(), "why": why.to_string(), "detail": detail });
                self.note(if why == Loss::Evicted { How::Evicted } else { How::Lost });
                self.stop();
                Some(("lost", lost))
            }
            Stage::Stopping { .. } | Stage::Ended => None,
        }
    }
}

/// Makes the data of an event that says that the lock is held, and returns when the caller stops. If this service is stopped, the lease
/// ends at its time. The caller stops before that: a fifth of the time is for the way of the event. An event that takes longer has
/// `stop_at_ms`: the caller counts it from the moment at which it sent the request, which is before it was received.
fn held(guard: &Guard, received: Instant) -> (Value, Duration) {
    let stop_after = STOP_AFTER.min(guard.remaining() * 4 / 5);
    let stop_at = received.elapsed() + stop_after;
    let token = guard.token().get();
    (
        json!({ "token": token, "stop_after_ms": millis(stop_after), "stop_at_ms": millis(stop_at) }),
        stop_after,
    )
}
