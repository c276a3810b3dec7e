//! Renewal of claims: one request for each lease.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Claim, Loss, Reply, Result, Session};
use futures_util::stream::{self, StreamExt};
use serde_json::json;

use crate::client::{ClaimState, HttpClient};
use crate::conn::call::Ask;

/// How many renewals are sent at the same time.
const AT_ONCE: usize = 32;
/// The least time that an answer gets, so that a lease that is about to end does not keep the others of its round from being renewed.
const LEAST: Duration = Duration::from_millis(500);

impl HttpClient {
    /// Extends the leases of these claims. One that fails does not hold up the others.
    async fn extend_all(&self, due: &[Arc<Claim>]) -> Result<()> {
        let states = due
            .iter()
            .filter_map(|claim| self.claims.get(claim.id).filter(|state| Arc::ptr_eq(&state.claim, claim)));
        // A lease is not asked for again before the round has ended, so the shortest one decides how long all requests may take.
        let now = self.connections.now();
        let left = due.iter().map(|claim| claim.validity.until().since(now)).filter(|left| !left.is_zero());
        let limit = left.min().map_or(Duration::MAX, |left| (left / 2).max(LEAST));
        let extensions: Vec<_> = states.map(|state| self.extend(state, limit)).collect();
        let mut renewed = stream::iter(extensions).buffer_unordered(AT_ONCE);
        let mut outcome = Ok(());
        while let Some(one) = renewed.next().await {
            outcome = outcome.and(one);
        }
        outcome
    }

    async fn extend(&self, state: Arc<ClaimState>, limit: Duration) -> Result<()> {
        let (claim, Some(lease)) = (&state.claim, state.lease()) else { return Ok(()) };
        let ttl = claim.ttl();
        let body = json!({ "lease": lease, "ttl": format!("{}ms", ttl.as_millis()) });
        let call = self.connections.send(Ask::post("/v1/leases/extend", body).at_most(limit));
        let sent = call.sent;
        match call.await {
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

impl Session for HttpClient {
    fn id(&self) -> u64 {
        // No other engine of the process has this address.
        std::ptr::from_ref(self).addr() as u64
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        Reply::coming(self.extend_all(due))
    }
}
