//! The streaming form of a request: it waits, is granted, reports the state of the lock, and releases when it is closed.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use fencepost_core::{ClaimId, DetachedLease, Guard, GuardView, Loss, Result};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::attempt::random;
use crate::events::{Events, SentEvent, Source, Told, stream};
use crate::eviction;
use crate::held::Held;
use crate::history::How;
use crate::peer::Peer;
use crate::problem::{Answer, Problem};
use crate::request::{Body, body_of, hold_lease, lock_name};
use crate::rights::caller::Caller;
use crate::rights::entry::Verb;
use crate::service::{Service, Waits};
use crate::streams::{CLOSING, STOP_AFTER};
use crate::view::millis;
use crate::wanted::{Acquire, Asked, Terms, Wanted, busy};

/// How often a stream says something, at least. A short lease makes it more often.
const BEAT: Duration = Duration::from_secs(3);

/// How long the event of an eviction waits for its reason, at most.
const REASON: Duration = Duration::from_secs(1);

/// How far the clocks of a caller and of the service may have run apart, at most. It is reached after a week.
const LONGEST_DRIFT: Duration = Duration::from_secs(60);

/// A request and its state.
struct Hold {
    service: Service,
    caller: Caller,
    wanted: Wanted,
    /// The id of the claim. The caller has its lease before the grant, so that a caller that gives up in the moment of the grant can release
    /// the lock.
    id: ClaimId,
    stage: Stage,
    received: Instant,
    /// How long after the last event the caller has stopped for certain.
    stop_after: Duration,
    /// Says that the service ends. The end of the service waits until it is dropped.
    closing: watch::Receiver<bool>,
    _waits: Waits,
}

enum Stage {
    Begin,
    Waiting(Pin<Box<dyn Future<Output = Result<Asked>> + Send>>),
    Holding(Held),
    /// The lock is no longer the caller's. The guard stays until the caller has stopped, or has released it: the next holder must not be
    /// granted before.
    Stopping {
        held: Held,
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
    let (stage, stop_after, id) = (Stage::Begin, STOP_AFTER, fresh_id()?);
    let hold = Hold { service, caller, wanted, id, stage, received, stop_after, closing, _waits: waits };
    let (events, stream) = stream();
    tokio::spawn(drive(hold, events, peer).in_current_span());
    Ok(stream)
}

fn fresh_id() -> Answer<ClaimId> {
    Ok(ClaimId::from_u128(u128::from(random()?) << 64 | u128::from(random()?)))
}

/// Makes the events. A caller whose stream has ended has left the queue. If it held the lock, it may still work: a stream also ends because
/// a proxy or the service itself ended it. So the lock is held until the caller has stopped or has released it, unless the caller is known
/// to have ended the stream.
async fn drive(mut hold: Hold, events: Events, peer: Option<Peer>) {
    if events.tell(&mut hold).await {
        return;
    }
    if events.is_closed() && peer.is_some_and(|peer| peer.has_ended()) {
        hold.note(How::Released);
    } else {
        let held = match &hold.stage {
            Stage::Holding(held) => Some((held.view.name().clone(), held.view.token())),
            _ => None,
        };
        hold.stop();
        hold.next().await;
        if let Some((name, token)) = held {
            // A request that has released the lease meanwhile has noted it.
            hold.service.history.ended(&name, token, How::Released);
        }
    }
}

impl Source for Hold {
    type Data = Value;

    async fn next(&mut self) -> Option<Told> {
        if let Stage::Stopping { held, until } = &mut self.stage {
            let _ = tokio::time::timeout_at(*until, held.taken()).await;
            self.stage = Stage::Ended;
        }
        if let Stage::Ended = self.stage {
            return None;
        }
        if let Err(problem) = self.check() {
            return Some(self.end(&problem));
        }
        let mut closing = self.closing.clone();
        let event = tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => {
                return Some(self.end(&Problem::unavailable("closing", CLOSING)));
            }
            event = self.step() => event,
        };
        match event {
            Ok(event) => event,
            // Also if the service ends meanwhile: the holder has to learn that the lock is lost, and why.
            Err(why) => self.lose(why).await,
        }
    }
}

impl Hold {
    fn check(&self) -> Answer<()> {
        self.service.check_again(&self.caller, Verb::Acquire, &self.wanted.name)
    }

    /// Ends the stream for a reason that does not come from the lock.
    fn end(&mut self, why: &Problem) -> Told {
        let event = match &self.stage {
            Stage::Holding(held) => ("lost", lost(&held.view, why.clone())),
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
        if let Stage::Holding(held) = &self.stage {
            self.service.history.ended(held.view.name(), held.view.token(), how);
        }
    }

    /// Leaves the queue. A lock is held for as long as the caller may need to stop.
    fn stop(&mut self) {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Holding(held) => Stage::Stopping { held, until: Instant::now() + self.stop_after },
            stage @ Stage::Stopping { .. } => stage,
            Stage::Begin | Stage::Waiting(_) | Stage::Ended => Stage::Ended,
        };
    }

    /// Returns the next event, or why the lock is lost.
    async fn step(&mut self) -> std::result::Result<Option<Told>, Loss> {
        let event = match &mut self.stage {
            Stage::Begin => {
                let wanted = self.wanted.clone();
                let known = Some((self.id, Box::new(|| {}) as Box<_>));
                let terms = Terms { wait: wanted.longest(), known, ..Terms::default() };
                let waits = Box::pin(async move { wanted.ask(terms).await });
                self.stage = Stage::Waiting(waits);
                ("waiting", self.waiting())
            }
            Stage::Waiting(outcome) => {
                let Ok(outcome) = tokio::time::timeout(BEAT, outcome).await else {
                    return Ok(Some(("waiting", self.waiting())));
                };
                let problem = match outcome {
                    Ok(Asked::Granted(guard)) => match self.begin(guard) {
                        Ok(granted) => return Ok(Some(("granted", granted))),
                        Err(problem) => problem,
                    },
                    Ok(Asked::Busy) => busy(&self.service.locks, &self.wanted).await,
                    Ok(Asked::Already(run)) => self.wanted.already_run(&run),
                    Err(error) => Problem::from(error).logged(&self.service.failures),
                };
                self.end(&problem)
            }
            Stage::Holding(held) => {
                let beat = BEAT.min(self.wanted.ttl / 8);
                let view = held.view.clone();
                tokio::select! {
                    biased;
                    () = held.taken() => {
                        let event = ("lost", lost(&view, ended(Loss::Released, None)));
                        // The request that has taken the guard notes how the grant ended.
                        self.stage = Stage::Ended;
                        event
                    }
                    why = view.lost() => return Err(why),
                    () = tokio::time::sleep(beat) => {
                        let (event, stop_after) = still_held(&view, self.received);
                        self.stop_after = stop_after;
                        ("held", event)
                    }
                }
            }
            Stage::Stopping { .. } | Stage::Ended => return Ok(None),
        };
        Ok(Some(event))
    }

    /// Tells the holder that the lock is lost.
    async fn lose(&mut self, why: Loss) -> Option<Told> {
        let Stage::Holding(held) = &self.stage else { return None };
        let (view, lease) = (held.view.clone(), held.lease.clone());
        self.note(if why == Loss::Evicted { How::Evicted } else { How::Lost });
        self.stop();
        // An eviction over HTTP has noted the reason as for a lease. The engine's own detail names the copy that was asked.
        let noted =
            async { if why == Loss::Evicted { eviction::noted(&self.service, &lease).await } else { None } };
        // The holder has to stop: a reason that is slow does not delay that.
        let noted = tokio::time::timeout(REASON, noted).await.ok().flatten();
        let detail = noted.map(Into::into).or_else(|| view.loss_detail());
        Some(("lost", lost(&view, ended(why, detail.as_deref().filter(|detail| !detail.is_empty())))))
    }

    /// Makes the data of an event that says that the request waits.
    fn waiting(&self) -> Value {
        let Wanted { name, ttl, .. } = &self.wanted;
        json!({ "lease": hold_lease(&DetachedLease::of(self.id, name.clone(), self.wanted.mode(), *ttl)) })
    }

    /// Begins to hold, if the caller may still have the lock. Returns the data of the event.
    fn begin(&mut self, guard: Guard) -> Answer<Value> {
        if let Err(problem) = self.check() {
            guard.withdraw();
            return Err(problem);
        }
        let grant = self.wanted.granted(&self.caller, &guard);
        let held = self.service.guards.keep(guard)?;
        self.service.audit.acquired(&self.caller, &self.wanted.name, Ok(held.view.token()));
        self.service.history.granted(grant);
        let (mut granted, stop_after) = still_held(&held.view, self.received);
        granted["lease"] = hold_lease(&held.lease).into();
        self.stop_after = stop_after;
        self.stage = Stage::Holding(held);
        Ok(granted)
    }
}

/// Makes the data of an event that says that the lock is lost: the problem that tells why, and the token of the grant.
fn lost(guard: &GuardView, why: Problem) -> Value {
    why.with("token", guard.token().get()).to_json()
}

/// Makes the problem for a lock that the engine, or its holder, has ended.
fn ended(loss: Loss, why: Option<&str>) -> Problem {
    let problem = Problem::new(StatusCode::GONE, "lease-ended", format!("the lock is lost: {loss}"));
    let problem = problem.with("loss", loss.as_str());
    match why {
        Some(why) => problem.with("why", why),
        None => problem,
    }
}

/// Makes the data of an event that says that the lock is held, and returns for how long the lock stays held if the stream ends now. If
/// this service is killed, the lease ends at its time. The caller stops before that: a fifth of the time is for the way of the event.
///
/// The caller counts `valid_ms` from the moment at which it sent the request, which is before it was received. So an event that arrives
/// late makes nobody believe too long. But the clocks of both hosts run apart while the stream lasts, so the older it is, the longer the
/// lock stays after the caller should have stopped.
fn still_held(guard: &GuardView, received: Instant) -> (Value, Duration) {
    let (age, remaining) = (received.elapsed(), guard.remaining());
    // The worst of common crystals, on a host without a time service.
    let drift = age / 10_000;
    let stop_after = STOP_AFTER.min((remaining - drift.min(remaining / 4)) * 4 / 5);
    let event = json!({ "token": guard.token().get(), "valid_ms": millis(age + stop_after) });
    (event, stop_after + drift.min(LONGEST_DRIFT))
}
