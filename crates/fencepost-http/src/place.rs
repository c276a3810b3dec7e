//! Implements core's [`Entry`]: one claim at the service.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::{
    Attempt, Claim, Entry, Error, ErrorKind, Found, Mode, Moment, Removed, Renewal, Reply, Result, Withdrawal,
};
use futures_util::FutureExt;
use serde_json::{Value, json};

use crate::client::{ClaimState, Grant, HttpClient};
use crate::conn::call::{Answer, Ask, Call};
use crate::error::{ENGINE, Failure};

/// How long a request waits for the lock before it is repeated. Proxies end a request without an answer after 60 s.
const POLL: Duration = Duration::from_secs(10);

pub(crate) struct HttpEntry {
    client: Arc<HttpClient>,
    state: Arc<ClaimState>,
    /// The request for the lock that is under way.
    call: Option<(Call, Duration)>,
    /// The answer to it, which the next attempt reads.
    answer: Option<(Result<Answer, Failure>, Moment, Duration)>,
    /// The service has said that the claim waits: the request under way ends with the grant.
    queued: bool,
    /// A request was sent that may have left something.
    sent: bool,
    removed: Option<Removed>,
    withdrawal: Withdrawal,
}

impl HttpEntry {
    pub(crate) fn new(client: &Arc<HttpClient>, claim: Arc<Claim>) -> HttpEntry {
        HttpEntry {
            client: Arc::clone(client),
            state: client.claims.insert(ClaimState::new(claim)),
            call: None,
            answer: None,
            queued: false,
            sent: false,
            removed: None,
            withdrawal: Withdrawal::default(),
        }
    }

    fn claim(&self) -> &Claim {
        &self.state.claim
    }

    /// Makes the request for the lock, to this path. Repeated requests are the same.
    fn ask(&self, path: &str) -> (Ask, Duration) {
        let claim = self.claim();
        let ttl = claim.ttl();
        let mut body = json!({
            "name": claim.want().name.as_str(),
            "ttl": format!("{}ms", ttl.as_millis()),
            "wait": if claim.waits { format!("{}s", POLL.as_secs()) } else { "0s".to_owned() },
            "holder": claim.holder.label,
            "process": {
                "host": claim.holder.host, "pid": claim.holder.pid,
                "max_hold_ms": claim.max_hold.map(millis), "max_wait_ms": claim.max_wait.map(millis),
            },
            "reason": claim.reason.as_deref(),
            "unfair": claim.unfair,
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
            let (ask, ttl) = self.ask("/v1/acquire");
            let first = self.claim().waits && !self.queued;
            let ask = if self.queued { ask.waits(POLL) } else { ask.leaves(first) };
            self.sent = true;
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

    async fn enter(&mut self) -> Result<Attempt> {
        if let Some(grant) = self.state.grant() {
            let attempt = if self.claim().is_valid() { Attempt::Granted(grant.token) } else { Attempt::Gone };
            return Ok(attempt);
        }
        let waits = Attempt::Blocked { again: None };
        if self.queued {
            let asked = std::future::poll_fn(|cx| self.poll_answer(cx)).now_or_never();
            if asked.is_none() {
                return Ok(waits);
            }
        } else {
            std::future::poll_fn(|cx| self.poll_answer(cx)).await;
        }
        let Some((answer, sent, ttl)) = self.answer.take() else { return Ok(waits) };
        match answer {
            Ok(Answer { status: 202, .. }) => {
                self.queued = true;
                self.begin();
                Ok(waits)
            }
            Ok(answer) => {
                let granted = self.state.granted(self.client.connections.url(), &answer, sent, ttl);
                Ok(Attempt::Granted(granted?))
            }
            Err(failure) if failure.is("busy") => {
                self.sent = false;
                Ok(waits)
            }
            // Its time is over. The next request finds the same place.
            Err(failure) if failure.is("timed-out") => {
                self.begin();
                Ok(waits)
            }
            Err(failure) if failure.is("lease-ended") => Ok(Attempt::Gone),
            Err(failure) => {
                self.queued = false;
                Err(failure.into())
            }
        }
    }

    async fn remove(&mut self) -> Result<Removed> {
        if let Some(removed) = self.removed {
            return Ok(removed);
        }
        // Hangs up.
        (self.call, self.answer) = (None, None);
        self.withdrawal.start(self.claim().is_valid());
        let (found, held) = match self.state.grant() {
            Some(grant) => (self.end(grant).await?, true),
            None if self.sent => self.leave().await?,
            None => (Found::Missing, false),
        };
        let removed = self.withdrawal.removed(found, held);
        self.removed = Some(removed);
        Ok(removed)
    }

    async fn end(&self, grant: Grant) -> Result<Found, Failure> {
        let body = json!({ "lease": grant.lease });
        match self.client.call(Ask::post("/v1/leases/release", body).runs_on()).await {
            Ok(_) => Ok(Found::Valid),
            Err(failure) if failure.is("lease-ended") => Ok(Found::Missing),
            Err(failure) => Err(failure),
        }
    }

    /// Leaves the queue. Returns what was found, and whether the claim was granted meanwhile.
    async fn leave(&self) -> Result<(Found, bool), Failure> {
        let (ask, _) = self.ask("/v1/withdraw");
        let answer = self.client.call(ask.runs_on()).await?;
        Ok(match answer.body.get("withdrawn").and_then(Value::as_str) {
            Some("released") => (Found::Valid, true),
            Some("withdrawn") => (Found::Valid, false),
            _ => (Found::Missing, false),
        })
    }
}

impl Entry for HttpEntry {
    fn attempt(&mut self) -> Reply<'_, Result<Attempt>> {
        if self.removed.is_some() {
            return Reply::ready(Ok(Attempt::Gone));
        }
        Reply::coming(self.enter())
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.queued {
            return Poll::Pending;
        }
        self.poll_answer(cx)
    }

    fn renewal(&self) -> Option<Renewal> {
        // The request that is under way keeps a place in the queue.
        self.state.grant()?;
        let session = Arc::<HttpClient>::clone(&self.client);
        Some(Renewal { claim: Arc::clone(&self.state.claim), session })
    }

    fn withdraw(&mut self) -> Reply<'_, Result<Removed>> {
        Reply::coming(async move {
            let answer = self.remove().await;
            self.withdrawal.answered(answer)
        })
    }

    fn detach(&mut self) -> Reply<'_, Result<()>> {
        let message = "the lock service has no leases that outlive this process; take the lease over HTTP: docs/serve.md";
        Reply::ready(Err(Error::new(ErrorKind::Unsupported, message).on(ENGINE)))
    }
}

impl Drop for HttpEntry {
    fn drop(&mut self) {
        self.client.claims.remove(&self.state);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
