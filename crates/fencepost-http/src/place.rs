//! Implements core's [`Place`]: what is asked of the service for one claim.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fencepost_core::{
    Attempt, Claim, DetachedLease, Error, Found, Leave, Left, Mode, Moment, Place, Removed, Request, Result,
    Session,
};
use serde_json::{Value, json};

use crate::client::{ClaimState, HttpClient};
use crate::conn::call::{Answer, Ask, Call};
use crate::error::{Failed, strange_answer};
use crate::session::HttpSession;

/// When the service answers a request that is still queued, so that it is repeated.
const POLL: Duration = Duration::from_secs(10);

pub(crate) struct HttpPlace {
    client: Arc<HttpClient>,
    state: Arc<ClaimState>,
    /// The request for the lock that is under way.
    call: Option<(Call, Duration)>,
    /// The answer to it, which the next call reads.
    answer: Option<Answered>,
    /// The service has said that the claim waits: the request under way ends with the grant.
    queued: bool,
}

/// The answer to a request for the lock that was sent at this moment for this `ttl`.
type Answered = (Result<Answer, Failed>, Moment, Duration);

impl HttpPlace {
    pub(crate) fn new(client: &Arc<HttpClient>, claim: Arc<Claim>) -> HttpPlace {
        HttpPlace {
            client: Arc::clone(client),
            state: Arc::new(ClaimState::new(claim)),
            call: None,
            answer: None,
            queued: false,
        }
    }

    fn claim(&self) -> &Claim {
        &self.state.claim
    }

    /// Makes the request for the lock, to this path. Repeated requests are the same.
    fn form(&self, path: &str) -> (Ask, Duration) {
        let claim = self.claim();
        let ttl = claim.ttl();
        let mut body = json!({
            "name": claim.want().name.as_str(),
            "ttl": format!("{}ms", ttl.as_millis()),
            "wait": if claim.waits { "forever" } else { "0s" },
            "holder": claim.holder.label,
            "process": {
                "host": claim.holder.host, "pid": claim.holder.pid,
                "max_hold_ms": claim.max_hold.map(millis), "max_wait_ms": claim.max_wait.map(millis),
            },
            "reason": claim.reason.as_deref(),
            "unfair": claim.is_unfair(),
        });
        match claim.want().mode {
            Mode::Exclusive => body["mode"] = "exclusive".into(),
            Mode::Shared => body["mode"] = "shared".into(),
            Mode::Permits { n, of } => {
                (body["mode"], body["take"], body["permits"]) = ("permits".into(), n.into(), of.into());
            }
        }
        (Ask::post(path, body).key(claim.id.to_hex()), ttl)
    }

    /// Sends the request for the lock, unless it is under way.
    fn begin(&mut self) -> &mut (Call, Duration) {
        if self.call.is_none() {
            let (ask, ttl) = self.form("/v1/acquire");
            let first = self.claim().waits && !self.queued;
            let ask = if self.queued { ask.waits(POLL) } else { ask.leaves(first) };
            self.call = Some((self.client.connections.send(ask), ttl));
        }
        self.call.as_mut().expect("it was sent")
    }

    /// Waits for the answer to the request that is under way. A claim in the queue has none until it is granted.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.answer.is_none() {
            let (call, ttl) = self.begin();
            let (sent, ttl) = (call.sent, *ttl);
            let Poll::Ready(answer) = Pin::new(call).poll(cx) else { return Poll::Pending };
            self.call = None;
            self.answer = Some((answer, sent, ttl));
        }
        Poll::Ready(())
    }

    /// Reads the answer that has come.
    fn read_answer(&mut self) -> Result<Attempt> {
        let waits = Attempt::Blocked { next_attempt: None };
        let Some((answer, sent, ttl)) = self.answer.take() else { return Ok(waits) };
        match answer {
            Ok(Answer { status: 202, .. }) => {
                self.queued = true;
                self.begin();
                Ok(waits)
            }
            Ok(answer) => {
                let granted = self.state.granted(self.client.connections.url(), None, &answer, sent, ttl);
                Ok(Attempt::Granted(granted?))
            }
            Err(failed) if failed.is("busy") => Ok(waits),
            Err(failed) if failed.is("lease-ended") => Ok(Attempt::Gone),
            Err(failed) => {
                self.queued = false;
                Err(failed.into())
            }
        }
    }

    async fn depart(&mut self) -> Result<Left> {
        // Hangs up.
        (self.call, self.answer) = (None, None);
        match self.state.lease() {
            Some(lease) => Ok(Left { held: Some(true), ..self.release(&lease).await?.into() }),
            None => self.withdraw().await,
        }
    }

    async fn release(&self, lease: &DetachedLease) -> Result<Found> {
        let body = json!({ "lease": lease.to_secret() });
        match self.client.call(Ask::post("/v1/leases/release", body).runs_on()).await {
            Ok(Answer { status: 204, .. }) => Ok(Found::Valid),
            Ok(answer) => Err(self.strange(&answer)),
            Err(failed) if failed.is("lease-ended") => Ok(Found::Missing),
            Err(failed) => Err(failed.into()),
        }
    }

    /// Leaves the queue, or releases a grant that was made meanwhile.
    async fn withdraw(&self) -> Result<Left> {
        let (ask, _) = self.form("/v1/withdraw");
        let answer = self.client.call(ask.runs_on()).await?;
        let removed = match answer.body.get("withdrawn").and_then(Value::as_str) {
            Some("released") => Removed::Released,
            Some("withdrawn") => Removed::Withdrawn,
            Some("nothing") => Removed::Nothing,
            _ => return Err(self.strange(&answer)),
        };
        Ok(removed.into())
    }

    /// Makes the error for a success that the service does not answer with. A proxy or a login page answers every request so.
    fn strange(&self, answer: &Answer) -> Error {
        strange_answer(self.client.connections.url(), answer.status)
    }
}

impl Place for HttpPlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        if self.queued {
            // No further request is sent: the one under way has an answer, or none yet.
            let mut nobody = Context::from_waker(Waker::noop());
            let _ = self.poll_answer(&mut nobody);
            return Request::ready(self.read_answer());
        }
        Request::drops(async move {
            poll_fn(|cx| self.poll_answer(cx)).await;
            self.read_answer()
        })
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.queued { self.poll_answer(cx) } else { Poll::Pending }
    }

    fn leave(&mut self, _: Leave, _may_have_left: bool) -> Request<'_, Left> {
        Request::drops(self.depart())
    }

    fn session(&self, holds: bool) -> Option<Arc<dyn Session>> {
        // The request that is under way keeps a position in the queue.
        let session = || HttpSession { client: Arc::clone(&self.client), state: Arc::clone(&self.state) };
        holds.then(|| Arc::new(session()) as Arc<dyn Session>)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
