//! Renewal of claims: one request for each lease.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use fencepost_core::{Claim, Effect, Error, Loss, Moment, Reply, Result, Session};
use serde_json::json;
use tokio::sync::SemaphorePermit;

use crate::client::{ClaimState, HttpClient, UNDER_WAY};
use crate::conn::call::{Answer, Ask, Call};
use crate::error::{Failed, timed_out};

/// The least time that an answer gets.
const LEAST: Duration = Duration::from_millis(500);
/// How long a renewal without an answer keeps its permit to begin. Half of all requests may have none, because one of two copies of the
/// service is stopped. If these kept their permits until their time limit, the leases behind them would not be renewed in time.
const PERMIT: Duration = Duration::from_millis(250);
/// The least pause before a renewal without an answer is sent again.
const PAUSE: Duration = Duration::from_millis(250);
/// A renewal that waits for this many times as long as the last one took was most likely sent to a copy that is stopped.
const SLOWER: u32 = 3;

impl HttpClient {
    /// Extends the lease of a claim.
    async fn extend(&self, state: &ClaimState) -> Result<()> {
        let (claim, clock) = (&state.claim, self.connections.clock());
        // Fixed before this renewal waits for others, so that it can be repeated before the lease ends, however many of them hang.
        let now = clock.now();
        let until = now + (claim.validity.until().since(now) / 2).max(LEAST);
        let permits = async { (self.under_way.acquire().await, self.renewals.acquire().await) };
        let Some((Ok(_under_way), Ok(permit))) = clock.within(until, permits).await else {
            return Err(timed_out(self.connections.url()).without_effect());
        };
        let Some(lease) = state.lease() else { return Ok(()) };
        let ttl = claim.ttl();
        let body = json!({ "lease": lease.to_secret(), "ttl": format!("{}ms", ttl.as_millis()) });
        let ask = Ask::post("/v1/leases/extend", body);
        let (sent, answer) = self.ask_copies(&ask, until, permit).await;
        match answer {
            Ok(answer) => {
                self.note_answer(sent);
                state.granted(self.connections.url(), Some(&lease), &answer, sent, ttl).map(drop)
            }
            Err(failed) if failed.is("lease-ended") => {
                match (failed.field("loss"), failed.field("why")) {
                    (Some("evicted"), Some(why)) => claim.validity.end_with(Loss::Evicted, why),
                    (Some("evicted"), None) => claim.validity.end(Loss::Evicted),
                    _ => claim.validity.end(Loss::Deleted),
                }
                Ok(())
            }
            Err(failed) => Err(failed.into()),
        }
    }

    /// Sends a renewal, and sends it again if it has no answer, because a proxy may send every second request to a copy of the service that is
    /// stopped. If a renewal waited for each of these until its time limit, its lease would have time for few requests, and all of them may
    /// go to that copy. Returns the first answer, and when its request was sent.
    ///
    /// There is a third request only if others have had an answer since the first one, because otherwise the engine may be slow for everyone,
    /// and more requests would make it slower. If no other renewal is under way, nobody else can have an answer, and the requests of one renewal
    /// make no engine slow. The first request stays under way, because the engine may be slow for this lock alone. Each of the others replaces
    /// the one before it.
    async fn ask_copies(
        &self,
        ask: &Ask,
        until: Moment,
        permit: SemaphorePermit<'_>,
    ) -> (Moment, Result<Answer, Failed>) {
        let clock = self.connections.clock();
        let until = until.min(clock.now() + self.connections.timeout());
        let send = || self.connections.send(ask.clone().at_most(until.since(clock.now())));
        let mut requests = vec![send()];
        let first = requests[0].sent;
        let (mut last, mut permit, mut sent_again) = (first, Some(permit), None);
        let mut pause = self.silence().clamp(PERMIT / 10, PERMIT);
        loop {
            if let Some(answered) = clock.within(clock.now() + pause, next_answer(&mut requests)).await {
                return answered;
            }
            drop(permit.take());
            pause = PAUSE;
            // The pauses grow, so that a lock for which the engine is slow has few requests.
            let is_due = clock.now() >= last + self.silence().max(PAUSE).max(last.since(first));
            let is_alone = self.under_way.available_permits() + 1 == UNDER_WAY;
            if is_due && (sent_again.is_none() || is_alone || self.answered.lock().0 > first) {
                sent_again = sent_again.or_else(|| self.sent_again.try_acquire().ok());
                if sent_again.is_some() {
                    requests.truncate(1);
                    requests.push(send());
                    last = clock.now();
                }
            }
        }
    }

    /// Notes that the service has answered a renewal which was sent at this moment.
    fn note_answer(&self, sent: Moment) {
        let now = self.connections.clock().now();
        *self.answered.lock() = (now, now.since(sent));
    }

    /// Returns after which time a renewal without an answer was most likely sent to a copy that is stopped.
    fn silence(&self) -> Duration {
        self.answered.lock().1.saturating_mul(SLOWER)
    }
}

/// Returns the first answer, and when its request was sent. A failure that another copy of the service may not have counts only if no other
/// request is under way.
async fn next_answer(requests: &mut Vec<Call>) -> (Moment, Result<Answer, Failed>) {
    poll_fn(|cx| {
        let mut at = 0;
        while let Some(call) = requests.get_mut(at) {
            match Pin::new(call).poll(cx) {
                Poll::Pending => at += 1,
                Poll::Ready(Err(failed)) if requests.len() > 1 && may_be_of_one_copy(&failed.error) => {
                    requests.remove(at);
                }
                Poll::Ready(answer) => return Poll::Ready((requests[at].sent, answer)),
            }
        }
        Poll::Pending
    })
    .await
}

/// Returns whether another copy of the service, or the next request, may be answered otherwise.
fn may_be_of_one_copy(error: &Error) -> bool {
    error.is_transient() || error.effect() == Effect::Unknown
}

/// The session of one claim.
pub(crate) struct HttpSession {
    pub(crate) client: Arc<HttpClient>,
    pub(crate) state: Arc<ClaimState>,
}

impl Session for HttpSession {
    fn renew<'a>(&'a self, _: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        Reply::coming(self.client.extend(&self.state))
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::testing::TestClock;
    use fencepost_core::{BackendUrl, ClaimId, DetachedLease, HolderInfo, Mode, Name, Want, testing};
    use futures_util::future::join_all;
    use serde_json::Value;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::JoinHandle;

    use super::*;
    use crate::client::{RENEWALS, SENT_AGAIN, UNDER_WAY};
    use crate::config::Config;
    use crate::conn::call::{Answer, Connections};

    const SOON: Duration = Duration::from_secs(10);

    const TTL: Duration = Duration::from_secs(60);

    fn lease(n: usize) -> DetachedLease {
        let name = Name::new(&format!("lock/{n}")).unwrap();
        DetachedLease::of(ClaimId::from_u128(n as u128), name, Mode::Exclusive, TTL)
    }

    fn renewed(lease: &DetachedLease) -> Value {
        json!({ "lease": lease.to_secret(), "token": 0, "valid_ms": 58_800 })
    }

    /// A client, and so many renewals at a service that accepts connections and answers nothing by itself.
    async fn renewals(
        count: usize,
    ) -> (Arc<HttpClient>, TestClock, TcpListener, JoinHandle<Vec<Result<()>>>) {
        let (locks, clock, _engine) = testing::client();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}?timeout=1h", listener.local_addr().unwrap());
        let config = Config::parse(&BackendUrl::parse(&url).unwrap()).unwrap();
        let client = HttpClient::new(Connections::new(config, locks.runtime().clone()).unwrap());
        let client = Arc::new(client);
        let renewals: Vec<_> = (0..count)
            .map(|n| {
                let lease = lease(n);
                let want = Want { name: lease.name().clone(), mode: Mode::Exclusive };
                let holder = HolderInfo::labelled("test");
                let id = ClaimId::from_u128(n as u128);
                let claim = Claim::new(id, want, TTL, holder, locks.runtime().clone());
                let state = ClaimState::new(Arc::new(claim));
                let answer = Answer { status: 200, body: renewed(&lease) };
                state.granted(&url, None, &answer, clock.now(), TTL).unwrap();
                let client = Arc::clone(&client);
                async move { client.extend(&state).await }
            })
            .collect();
        (client, clock, listener, tokio::spawn(join_all(renewals)))
    }

    async fn accept(listener: &TcpListener) -> TcpStream {
        tokio::time::timeout(SOON, listener.accept()).await.expect("a renewal is sent").unwrap().0
    }

    /// Answers the request of this connection.
    async fn answer(stream: &mut TcpStream, status: &str, body: &Value) {
        let mut request = Vec::new();
        while !request.ends_with(b"}") {
            let read = tokio::time::timeout(SOON, stream.read_buf(&mut request)).await;
            assert!(read.expect("a request").unwrap() > 0, "the request was given up");
        }
        let body = body.to_string();
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}", body.len());
        stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.unwrap();
    }

    fn refusal(code: &str) -> Value {
        json!({ "code": code, "detail": "why" })
    }

    /// Returns the outcome of the only renewal.
    async fn outcome(renewals: JoinHandle<Vec<Result<()>>>) -> Result<()> {
        let mut all = tokio::time::timeout(SOON, renewals).await.expect("the answer ends it").unwrap();
        all.pop().unwrap()
    }

    /// Without a limit they would take all descriptors of the process.
    #[tokio::test]
    async fn renewals_without_an_answer_take_a_limited_number_of_connections() {
        let (client, clock, listener, renewals) = renewals(UNDER_WAY + 2 * RENEWALS).await;
        let mut open = Vec::new();
        for batch in 1..=UNDER_WAY / RENEWALS {
            // Those of earlier batches are sent again.
            let again = ((batch.max(SLOWER as usize) - SLOWER as usize) * RENEWALS).min(SENT_AGAIN);
            while open.len() < batch * RENEWALS + again {
                open.push(accept(&listener).await);
            }
            clock.advance(PERMIT).await;
        }
        let all_returned = async {
            while client.renewals.available_permits() < RENEWALS {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(SOON, all_returned).await.expect("no other renewal has begun");
        assert_eq!((client.under_way.available_permits(), client.sent_again.available_permits()), (0, 0));
        // Half of their leases has passed.
        clock.advance(TTL / 2).await;
        let renewed = tokio::time::timeout(SOON, renewals).await.expect("they are given up").unwrap();
        assert!(renewed.iter().all(Result::is_err));
        let left = (client.under_way.available_permits(), client.sent_again.available_permits());
        assert_eq!(left, (UNDER_WAY, SENT_AGAIN));
        assert!(listener.into_std().unwrap().accept().is_err(), "no other request was sent");
    }

    /// The engine has become slow for everyone, and so many renewals are under way that no other one may begin.
    #[tokio::test]
    async fn a_late_answer_renews_although_the_request_was_sent_again() {
        let (client, clock, listener, renewals) = renewals(1).await;
        client.note_answer(clock.now());
        let mut first = accept(&listener).await;
        let _others = client.under_way.acquire_many(UNDER_WAY as u32 - 1).await.unwrap();
        clock.advance(2 * PAUSE).await;
        let _second = accept(&listener).await;
        clock.advance(TTL / 6).await;
        answer(&mut first, "200 OK", &renewed(&lease(0))).await;
        outcome(renewals).await.unwrap();
        assert!(
            listener.into_std().unwrap().accept().is_err(),
            "it was sent again although nobody had an answer"
        );
    }

    /// The claim would release that one in place of its own.
    #[tokio::test]
    async fn an_answer_with_a_lease_of_another_grant_renews_nothing() {
        let (client, clock, listener, renewals) = renewals(1).await;
        client.note_answer(clock.now());
        let name = lease(0).name().clone();
        let other = DetachedLease::of(ClaimId::from_u128(7), name, Mode::Exclusive, TTL);
        answer(&mut accept(&listener).await, "200 OK", &renewed(&other)).await;
        let error = outcome(renewals).await.unwrap_err();
        assert!(error.is_configuration() && error.to_string().contains("another grant"), "{error}");
    }

    /// Others are answered, because only one of two copies is stopped.
    #[tokio::test]
    async fn a_renewal_that_is_sent_again_ends_only_its_last_request_before() {
        let (client, clock, listener, renewals) = renewals(1).await;
        client.note_answer(clock.now());
        let mut first = accept(&listener).await;
        let _others = client.under_way.acquire_many(UNDER_WAY as u32 - 1).await.unwrap();
        clock.advance(2 * PAUSE).await;
        let mut second = accept(&listener).await;
        client.note_answer(clock.now());
        clock.advance(4 * PAUSE).await;
        let _third = accept(&listener).await;
        let ended = tokio::time::timeout(SOON, second.read_to_end(&mut Vec::new())).await;
        ended.expect("it ends").unwrap();
        answer(&mut first, "200 OK", &renewed(&lease(0))).await;
        outcome(renewals).await.unwrap();
    }

    /// The holder is to learn why its lease is not renewed.
    #[tokio::test]
    async fn a_refusal_ends_a_renewal_whose_first_request_has_no_answer() {
        let (client, clock, listener, renewals) = renewals(1).await;
        client.note_answer(clock.now());
        let _first = accept(&listener).await;
        clock.advance(2 * PAUSE).await;
        answer(&mut accept(&listener).await, "403 Forbidden", &refusal("forbidden")).await;
        assert!(outcome(renewals).await.unwrap_err().is_denied());
    }

    /// A copy that is ending answers so.
    #[tokio::test]
    async fn a_failure_that_says_nothing_of_the_lease_leaves_the_first_request_under_way() {
        let (client, clock, listener, renewals) = renewals(1).await;
        client.note_answer(clock.now());
        let mut first = accept(&listener).await;
        clock.advance(2 * PAUSE).await;
        let mut second = accept(&listener).await;
        answer(&mut second, "503 Service Unavailable", &refusal("closing")).await;
        clock.advance(2 * PAUSE).await;
        answer(&mut first, "200 OK", &renewed(&lease(0))).await;
        outcome(renewals).await.unwrap();
    }
}
