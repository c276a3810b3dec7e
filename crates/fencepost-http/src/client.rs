//! The state that the parts of one client share.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Claim, DetachedLease, Moment, Result, Token, margin};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::conn::call::{Answer, Ask, Connections};
use crate::error::{Failed, other_lease, strange_answer};

/// How many renewals begin at the same time. While 32 have no answer, the next ones begin 250 ms later.
pub(crate) const RENEWALS: usize = 32;
/// How many renewals are under way at the same time, also after they have given back their permit to begin. Each may have a connection, and
/// many processes may open no more than 1,024 files.
pub(crate) const UNDER_WAY: usize = 256;
/// How many of these have a second request at the same time. They take no room from renewals that begin.
pub(crate) const SENT_AGAIN: usize = 128;

/// What the service answers if its engine can be reached. A proxy or a login page answers every request with a success, too.
const READY: &str = "ok\n";
/// How long a renewal takes, before the first one was answered.
const ASSUMED: Duration = Duration::from_millis(250);

pub(crate) struct HttpClient {
    pub(crate) connections: Arc<Connections>,
    /// A permit for each renewal that begins at the same time.
    pub(crate) renewals: Semaphore,
    /// A permit for each renewal that is under way.
    pub(crate) under_way: Semaphore,
    /// A permit for each renewal that has a second request.
    pub(crate) sent_again: Semaphore,
    /// When the last renewal was answered, and how long that took. Before the first answer it is an assumption.
    pub(crate) answered: Mutex<(Moment, Duration)>,
}

/// A claim, and the lease of its grant at the service. There is no `Debug`: the lease is a secret.
pub(crate) struct ClaimState {
    pub(crate) claim: Arc<Claim>,
    lease: Mutex<Option<DetachedLease>>,
}

impl ClaimState {
    pub(crate) fn new(claim: Arc<Claim>) -> ClaimState {
        ClaimState { claim, lease: Mutex::default() }
    }

    pub(crate) fn lease(&self) -> Option<DetachedLease> {
        self.lease.lock().clone()
    }

    /// Reads the answer with a lease, to a request that was sent to `url` at `sent` for `ttl`. Returns the token. A lease of another name
    /// makes no grant, and one of another grant than `held` extends nothing: something between this program and the service changes requests.
    pub(crate) fn granted(
        &self,
        url: &str,
        held: Option<&DetachedLease>,
        answer: &Answer,
        sent: Moment,
        ttl: Duration,
    ) -> Result<Token> {
        let strange = || strange_answer(url, answer.status);
        let (lease, valid) = read(&answer.body).ok_or_else(strange)?;
        let wanted = &self.claim.want().name;
        if lease.name() != wanted {
            return Err(other_lease(url, wanted, lease.name().as_str()));
        }
        if held.is_some_and(|held| !held.is_of_same_grant(&lease)) {
            return Err(other_lease(url, wanted, "another grant"));
        }
        let token = lease.token();
        *self.lease.lock() = Some(lease);
        // The service has taken off the margin of the lease, which may be shorter than the one that was asked for: that of a request which finds
        // its grant ends before its key is forgotten. A request that waited was granted after it was sent. Whatever the length, the claim is
        // valid until `sent + valid`.
        let length = ttl.min(valid + margin(valid));
        let late = valid.saturating_sub(length.saturating_sub(margin(length)));
        self.claim.confirm(sent + late, length);
        Ok(token)
    }
}

/// Reads a lease, and for how long the service is certain of it.
fn read(body: &Value) -> Option<(DetachedLease, Duration)> {
    let lease: DetachedLease = body.get("lease")?.as_str()?.parse().ok()?;
    let token = body.get("token")?.as_u64()?;
    let valid = Duration::from_millis(body.get("valid_ms")?.as_u64()?);
    (lease.token().get() == token).then_some((lease, valid))
}

impl HttpClient {
    pub(crate) fn new(connections: Arc<Connections>) -> HttpClient {
        let (renewals, under_way) = (Semaphore::new(RENEWALS), Semaphore::new(UNDER_WAY));
        let (sent_again, answered) = (Semaphore::new(SENT_AGAIN), Mutex::new((Moment::ZERO, ASSUMED)));
        HttpClient { connections, renewals, under_way, sent_again, answered }
    }

    /// Sends a request and returns the answer.
    ///
    /// # Cancel safety
    /// The first poll sends. Dropped, it hangs up, and the request may have taken effect.
    pub(crate) async fn call(&self, ask: Ask) -> Result<Answer, Failed> {
        self.connections.send(ask).await
    }

    /// Returns whether the service and its engine answer.
    pub(crate) async fn reach(&self) -> Result<(), Failed> {
        let answer = self.call(Ask::get("/readyz")).await?;
        if answer.body == READY {
            return Ok(());
        }
        Err(strange_answer(self.connections.url(), answer.status).without_effect().into())
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::{ClaimId, HolderInfo, Mode, Name, Want};
    use serde_json::json;

    use super::*;

    /// The service says how long a lease is certain, which may be less than what was asked for.
    #[tokio::test]
    async fn a_claim_is_valid_for_no_longer_than_the_service_says() {
        let (locks, clock, _engine) = fencepost_core::testing::client();
        let name = Name::new("stock/42").unwrap();
        let id = ClaimId::from_u128(7);
        let lease = DetachedLease::of(id, name.clone(), Mode::Exclusive, Duration::from_secs(60));
        for ttl in [1, 2, 10, 30, 60, 3_600].map(Duration::from_secs) {
            let sent = clock.now();
            for millis in [60, 500, 900, 2_450, 5_000, 9_800, 29_399, 29_400, 58_800, 70_000, 3_528_000] {
                let want = Want { name: name.clone(), mode: Mode::Exclusive };
                let claim = Claim::new(id, want, ttl, HolderInfo::labelled("test"), locks.runtime().clone());
                let state = ClaimState::new(Arc::new(claim));
                let body = json!({ "lease": lease.to_secret(), "token": 0, "valid_ms": millis });
                let answer = Answer { status: 200, body };
                state.granted("http://service", None, &answer, sent, ttl).unwrap();
                let valid = Duration::from_millis(millis);
                let believed = state.claim.validity.until().since(sent);
                assert!(believed <= valid, "{ttl:?}, {valid:?}: {believed:?}");
                assert!(
                    believed + Duration::from_millis(3) >= valid * 999 / 1_000,
                    "{ttl:?}, {valid:?}: {believed:?}"
                );
            }
        }
    }
}
