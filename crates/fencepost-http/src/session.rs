//! Renewal of claims: one request for each lease.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Claim, ClaimId, Loss, Reply, Result, Session};
use futures_util::future::join_all;
use serde_json::json;

use crate::client::{ClaimState, HttpClient};
use crate::conn::call::Ask;
use crate::error::timed_out;

/// The least time that an answer gets.
const LEAST: Duration = Duration::from_millis(500);
/// How long a renewal without an answer keeps its permit. Half of all requests may have none, because one of two copies of the service is
/// stopped. If these kept their permits until their time limit, the leases behind them would not be renewed in time.
const PERMIT: Duration = Duration::from_millis(250);

impl HttpClient {
    /// Extends the lease of a claim.
    async fn extend(&self, state: &ClaimState) -> Result<()> {
        let (claim, clock) = (&state.claim, self.connections.clock());
        // Fixed before this renewal waits for others, so that it can be repeated before the lease ends, however many of them hang.
        let now = clock.now();
        let until = now + (claim.validity.until().since(now) / 2).max(LEAST);
        let Some(permit) = clock.within(until, self.renewals.acquire()).await else {
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
    pub(crate) claim: ClaimId,
}

impl Session for HttpSession {
    fn id(&self) -> u64 {
        // Half of the random bits tell the claims of a client apart. If they ever did not, one round would renew both.
        self.claim.as_u128() as u64
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        let states = due.iter().filter_map(|claim| {
            self.client.claims.get(claim.id).filter(|state| Arc::ptr_eq(&state.claim, claim))
        });
        let renewals: Vec<_> = states.map(|state| async move { self.client.extend(&state).await }).collect();
        Reply::coming(async { join_all(renewals).await.into_iter().collect() })
    }
}
