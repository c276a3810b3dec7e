//! Renewal of claims: one request for each lease.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Claim, Loss, Reply, Result, Session};
use serde_json::json;

use crate::client::{ClaimState, HttpClient};
use crate::conn::call::Ask;
use crate::error::timed_out;

/// The least time that an answer gets.
const LEAST: Duration = Duration::from_millis(500);
/// How long a renewal without an answer keeps its permit to begin. Half of all requests may have none, because one of two copies of the
/// service is stopped. If these kept their permits until their time limit, the leases behind them would not be renewed in time.
const PERMIT: Duration = Duration::from_millis(250);

impl HttpClient {
    /// Extends the lease of a claim.
    async fn extend(&self, state: &ClaimState) -> Result<()> {
        let (claim, clock) = (&state.claim, self.connections.clock());
        // Fixed before this renewal waits for others, so that it can be repeated before the lease ends, however many of them hang.
        let now = clock.now();
        let until = now + (claim.validity.until().since(now) / 2).max(LEAST);
        let permits = async { (self.under_way.acquire().await, self.renewals.acquire().await) };
        let Some((_under_way, permit)) = clock.within(until, permits).await else {
            return Err(timed_out(self.connections.url()).without_effect());
        };
        let Some(lease) = state.lease() else { return Ok(()) };
        let ttl = claim.ttl();
        let body = json!({ "lease": lease, "ttl": format!("{}ms", ttl.as_millis()) });
        let limit = until.since(clock.now());
        let mut call = self.connections.send(Ask::post("/v1/leases/extend", body).at_most(limit));
        let sent = call.sent;
        let quick = clock.within(sent + PERMIT, &mut call).await;
        drop(permit);
        let answer = match quick {
            Some(answer) => answer,
            None => call.await,
        };
        match answer {
            Ok(answer) => state.granted(self.connections.url(), &answer, sent, ttl).map(drop),
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

/// The session of one claim. A round of core ends with the last answer of its session, so a request that hangs would hold up the next round
/// of all other leases of the session.
pub(crate) struct HttpSession {
    pub(crate) client: Arc<HttpClient>,
    pub(crate) state: Arc<ClaimState>,
}

impl Session for HttpSession {
    fn id(&self) -> u64 {
        std::ptr::from_ref(self).addr() as u64
    }

    fn renew<'a>(&'a self, _: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        Reply::coming(self.client.extend(&self.state))
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::{BackendUrl, ClaimId, DetachedLease, HolderInfo, Mode, Name, Want, testing};
    use futures_util::future::join_all;
    use tokio::net::TcpListener;

    use super::*;
    use crate::client::{RENEWALS, UNDER_WAY};
    use crate::config::Config;
    use crate::conn::call::{Answer, Connections};

    const SOON: Duration = Duration::from_secs(10);

    /// Without a limit they would take all descriptors of the process.
    #[tokio::test]
    async fn renewals_without_an_answer_take_a_limited_number_of_connections() {
        let (locks, clock, _engine) = testing::client();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}?timeout=1h", listener.local_addr().unwrap());
        let config = Config::parse(&BackendUrl::parse(&url).unwrap()).unwrap();
        let client = HttpClient::new(Connections::new(config, locks.runtime().clone()).unwrap());
        let client = Arc::new(client);
        let ttl = Duration::from_secs(60);
        let renewals = (0..UNDER_WAY + 2 * RENEWALS).map(|n| {
            let (id, name) = (ClaimId::from_u128(n as u128), Name::new(&format!("lock/{n}")).unwrap());
            let lease = DetachedLease::of(id, name.clone(), Mode::Exclusive, ttl);
            let want = Want { name, mode: Mode::Exclusive };
            let claim = Claim::new(id, want, ttl, HolderInfo::labelled("test"), locks.runtime().clone());
            let state = ClaimState::new(Arc::new(claim));
            let body = json!({ "lease": lease.to_secret(), "token": 0, "valid_ms": 58_800 });
            state.granted(&url, &Answer { status: 200, body }, clock.now(), ttl).unwrap();
            let client = Arc::clone(&client);
            async move { client.extend(&state).await }
        });
        let renewals = tokio::spawn(join_all(renewals));
        let mut open = Vec::new();
        for batch in 1..=UNDER_WAY / RENEWALS {
            while open.len() < batch * RENEWALS {
                let accepted = tokio::time::timeout(SOON, listener.accept()).await;
                open.push(accepted.expect("a renewal is sent").unwrap());
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
        clock.advance(ttl / 2).await;
        let renewed = tokio::time::timeout(SOON, renewals).await.expect("they are given up").unwrap();
        assert!(renewed.iter().all(Result::is_err));
        assert_eq!(client.under_way.available_permits(), UNDER_WAY);
    }
}
