//! The state that the parts of one client share.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Claim, DetachedLease, Moment, Result, Token, Waiters, margin};
use serde_json::Value;

use crate::conn::call::{Answer, Ask, Connections};
use crate::error::{Failed, other_name, strange_answer};

pub(crate) struct HttpClient {
    pub(crate) connections: Arc<Connections>,
    pub(crate) claims: Waiters<ClaimState>,
}

/// A claim, and the lease of its grant at the service. There is no `Debug`: the lease is a secret.
pub(crate) struct ClaimState {
    pub(crate) claim: Arc<Claim>,
    lease: Mutex<Option<String>>,
}

impl AsRef<Claim> for ClaimState {
    fn as_ref(&self) -> &Claim {
        &self.claim
    }
}

impl ClaimState {
    pub(crate) fn new(claim: Arc<Claim>) -> ClaimState {
        ClaimState { claim, lease: Mutex::default() }
    }

    pub(crate) fn lease(&self) -> Option<String> {
        self.lease.lock().clone()
    }

    /// Reads the answer with a lease, to a request that was sent to `url` at `sent` for `ttl`. Returns the token. A lease of another name
    /// makes no grant: something between this program and the service changes requests.
    pub(crate) fn granted(&self, url: &str, answer: &Answer, sent: Moment, ttl: Duration) -> Result<Token> {
        let strange = || strange_answer(url, answer.status);
        let (lease, valid) = read(&answer.body).ok_or_else(strange)?;
        let wanted = &self.claim.want().name;
        if lease.name() != wanted {
            return Err(other_name(url, wanted, lease.name()));
        }
        let token = lease.token();
        *self.lease.lock() = Some(lease.to_secret());
        // The service has taken off the margin. A request that waited was granted after it was sent.
        let whole = valid + margin(ttl);
        let late = whole.saturating_sub(ttl);
        self.claim.confirm(sent + late, whole - late);
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
    /// Sends a request and returns the answer.
    ///
    /// # Cancel safety
    /// The first poll sends. Dropped, it hangs up, and the request may have taken effect.
    pub(crate) async fn call(&self, ask: Ask) -> Result<Answer, Failed> {
        self.connections.send(ask).await
    }
}
