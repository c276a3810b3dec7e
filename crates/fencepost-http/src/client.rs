//! The state that the parts of one client share.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Claim, Moment, Token, Waiters, margin};
use serde_json::Value;

use crate::conn::call::{Answer, Ask, Connections};
use crate::error::Failure;

pub(crate) struct HttpClient {
    pub(crate) connections: Arc<Connections>,
    pub(crate) claims: Waiters<ClaimState>,
}

/// A claim, and its grant at the service.
pub(crate) struct ClaimState {
    pub(crate) claim: Arc<Claim>,
    grant: Mutex<Option<Grant>>,
}

/// A grant. There is no `Debug`: the lease is a secret.
#[derive(Clone)]
pub(crate) struct Grant {
    pub(crate) lease: String,
    pub(crate) token: Token,
}

impl AsRef<Claim> for ClaimState {
    fn as_ref(&self) -> &Claim {
        &self.claim
    }
}

impl ClaimState {
    pub(crate) fn new(claim: Arc<Claim>) -> ClaimState {
        ClaimState { claim, grant: Mutex::default() }
    }

    pub(crate) fn grant(&self) -> Option<Grant> {
        self.grant.lock().clone()
    }

    /// Reads the answer with a lease, to a request that was sent at `sent` for `ttl`. Returns the token.
    pub(crate) fn granted(&self, body: &Value, sent: Moment, ttl: Duration) -> Option<Token> {
        let lease = body.get("lease")?.as_str()?.to_owned();
        let token = Token::new(body.get("token")?.as_u64()?);
        let valid = Duration::from_millis(body.get("valid_ms")?.as_u64()?);
        *self.grant.lock() = Some(Grant { lease, token });
        // The service has taken off the margin. A request that waited was granted after it was sent.
        let whole = valid + margin(ttl);
        let late = whole.saturating_sub(ttl);
        self.claim.confirm(sent + late, whole - late);
        Some(token)
    }
}

impl HttpClient {
    /// Sends a request and returns the answer.
    ///
    /// # Cancel safety
    /// The first poll sends. Dropped, it hangs up, and the request may have taken effect.
    pub(crate) async fn call(&self, ask: Ask) -> Result<Answer, Failure> {
        self.connections.send(ask).await
    }
}
