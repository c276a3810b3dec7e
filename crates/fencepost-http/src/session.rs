//! Renewal of claims: one request for each lease.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use fencepost_core::{Claim, Loss, Moment, Reply, Result, Session};
use serde_json::json;
use tokio::sync::SemaphorePermit;

use crate::client::{ClaimState, HttpClient};
use crate::conn::call::{Answer, Ask, Call};
use crate::error::{Failed, timed_out};

/// The least time that an answer gets.
const LEAST: Duration = Duration::from_millis(500);
/// How long a renewal without an answer keeps its permit to begin. Half of all requests may have none, because one of two copies of the
/// service is stopped. If these kept their permits until their time limit, the leases behind them would not be renewed in time.
const PERMIT: Duration = Duration::from_millis(250);
/// For how long an answer says that a copy of the service answers, and how soon.
const RECENT: Duration = Duration::from_secs(10);
/// A renewal that waits for this many times as long as the last one took was most likely sent to a copy that is stopped.
const SLOWER: u32 = 3;
/// The longest pause before a renewal is sent again, unless the service answers slowly. The pauses grow up to it, so that a lock for which
/// the engine is slow has few requests at the same time.
const PAUSE: Duration = Duration::from_secs(1);

impl HttpClient {
    /// Extends the lease of a claim.
    async fn extend(&self, state: &ClaimState) -> Result<()> {
        let (claim, clock) = (&state.claim, self.connections.clock());
        // Fixed before this renewal waits for others, so that it can be repeated before the lease ends, however many of them hang.
        let now = clock.now();
        let until = now + (claim.validity.until().since(now) / 2).max(LEAST);
        let permits = async { (self.under_way.acquire().await, self.renewals.acquire().await) };
        let Some((Ok(under_way), Ok(permit))) = clock.within(until, permits).await else {
            return Err(timed_out(self.connections.url()).without_effect());
        };
        let Some(lease) = state.lease() else { return Ok(()) };
        let ttl = claim.ttl();
        let body = json!({ "lease": lease, "ttl": format!("{}ms", ttl.as_millis()) });
        let ask = Ask::post("/v1/leases/extend", body);
        let (sent, answer) = self.ask_copies(&ask, until, under_way, permit).await;
        match answer {
            Ok(answer) => {
                self.note_answer(sent);
                state.granted(self.connections.url(), &answer, sent, ttl).map(drop)
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
}

/// A request that was sent, with its permit to be under way.
struct Sent<'a> {
    call: Call,
    under_way: SemaphorePermit<'a>,
}

impl HttpClient {
    /// Sends a renewal, and sends it again while it has no answer although others had one lately. A proxy may send every second request to a
    /// copy of the service that is stopped. If a renewal waited for each of these until its time limit, its lease would have time for few
    /// requests, and all of them may go to that copy. Returns the first answer, and when its request was sent.
    ///
    /// The earlier requests stay under way, because the engine may be slow for this lock alone. If no copy answers, nothing is sent again.
    async fn ask_copies(
        &self,
        ask: &Ask,
        until: Moment,
        under_way: SemaphorePermit<'_>,
        permit: SemaphorePermit<'_>,
    ) -> (Moment, Result<Answer, Failed>) {
        let clock = self.connections.clock();
        let send = |under_way| {
            let limit = until.since(clock.now());
            Sent { call: self.connections.send(ask.clone().at_most(limit)), under_way }
        };
        let mut permit = Some(permit);
        let mut requests = VecDeque::from([send(under_way)]);
        let (first, mut last) = (requests[0].call.sent, requests[0].call.sent);
        loop {
            let silence = self.silence();
            let pause = silence.filter(|_| permit.is_some()).unwrap_or(PERMIT).clamp(PERMIT / 10, PERMIT);
            if let Some(answered) = clock.within(clock.now() + pause, next_answer(&mut requests)).await {
                return answered;
            }
            permit = None;
            let grown = last.since(first).clamp(PERMIT, PAUSE);
            if silence.is_some_and(|silence| clock.now() >= last + silence.max(grown)) {
                let under_way = match self.under_way.try_acquire() {
                    Ok(under_way) => Some(under_way),
                    // The oldest one makes room.
                    Err(_) => requests.pop_front().map(|oldest| oldest.under_way),
                };
                requests.extend(under_way.map(send));
                last = clock.now();
            }
        }
    }

    /// Notes that the service has answered a renewal which was sent at this moment.
    fn note_answer(&self, sent: Moment) {
        let now = self.connections.clock().now();
        *self.answered.lock() = Some((now, now.since(sent)));
    }

    /// Returns after which time a renewal without an answer was most likely sent to a copy that is stopped. `None`: no copy has answered
    /// lately.
    fn silence(&self) -> Option<Duration> {
        let (at, took) = (*self.answered.lock())?;
        (self.connections.clock().now() < at + RECENT).then(|| took * SLOWER)
    }
}

/// Returns the first answer, and when its request was sent. A failure counts if no other request is under way.
async fn next_answer(requests: &mut VecDeque<Sent<'_>>) -> (Moment, Result<Answer, Failed>) {
    poll_fn(|cx| {
        let mut at = 0;
        while let Some(request) = requests.get_mut(at) {
            match Pin::new(&mut request.call).poll(cx) {
                Poll::Pending => at += 1,
                Poll::Ready(Err(failed)) if requests.len() > 1 && !failed.is("lease-ended") => {
                    requests.remove(at);
                }
                Poll::Ready(answer) => return Poll::Ready((requests[at].call.sent, answer)),
            }
        }
        Poll::Pending
    })
    .await
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
    use tokio::io::AsyncReadExt as _;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::JoinHandle;

    use super::*;
    use crate::client::{RENEWALS, UNDER_WAY};
    use crate::config::Config;
    use crate::conn::call::{Answer, Connections};

    const SOON: Duration = Duration::from_secs(10);

    const TTL: Duration = Duration::from_secs(60);

    /// A client, and so many renewals at a service that accepts connections and answers nothing.
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
                let (id, name) = (ClaimId::from_u128(n as u128), Name::new(&format!("lock/{n}")).unwrap());
                let lease = DetachedLease::of(id, name.clone(), Mode::Exclusive, TTL);
                let want = Want { name, mode: Mode::Exclusive };
                let claim = Claim::new(id, want, TTL, HolderInfo::labelled("test"), locks.runtime().clone());
                let state = ClaimState::new(Arc::new(claim));
                let body = json!({ "lease": lease.to_secret(), "token": 0, "valid_ms": 58_800 });
                state.granted(&url, &Answer { status: 200, body }, clock.now(), TTL).unwrap();
                let client = Arc::clone(&client);
                async move { client.extend(&state).await }
            })
            .collect();
        (client, clock, listener, tokio::spawn(join_all(renewals)))
    }

    async fn accept(listener: &TcpListener) -> TcpStream {
        tokio::time::timeout(SOON, listener.accept()).await.expect("a renewal is sent").unwrap().0
    }

    /// Without a limit they would take all descriptors of the process.
    #[tokio::test]
    async fn renewals_without_an_answer_take_a_limited_number_of_connections() {
        let (client, clock, listener, renewals) = renewals(UNDER_WAY + 2 * RENEWALS).await;
        let mut open = Vec::new();
        for batch in 1..=UNDER_WAY / RENEWALS {
            while open.len() < batch * RENEWALS {
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
        assert_eq!(client.under_way.available_permits(), 0);
        // Half of their leases has passed.
        clock.advance(TTL / 2).await;
        let renewed = tokio::time::timeout(SOON, renewals).await.expect("they are given up").unwrap();
        assert!(renewed.iter().all(Result::is_err));
        assert_eq!(client.under_way.available_permits(), UNDER_WAY);
    }

    /// Another renewal was answered a moment ago.
    #[tokio::test]
    async fn a_renewal_that_is_sent_again_ends_its_oldest_request_if_there_is_no_room() {
        let (client, clock, listener, renewals) = renewals(1).await;
        client.note_answer(clock.now());
        let mut first = accept(&listener).await;
        let _others = client.under_way.acquire_many(UNDER_WAY as u32 - 1).await.unwrap();
        clock.advance(2 * PERMIT).await;
        let _second = accept(&listener).await;
        let ended = tokio::time::timeout(SOON, first.read_to_end(&mut Vec::new())).await;
        ended.expect("it ends").unwrap();
        assert_eq!(client.under_way.available_permits(), 0);
        renewals.abort();
    }
}
