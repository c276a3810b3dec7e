//! The client's login: one token for all of its requests.
//!
//! A server forgets a token when it restarts and when its user changes. A JWT token ends with any change of users or roles. The client
//! then logs in again, once for all requests that were refused.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Backoff, Clock, ErrorKind, Moment, Runtime, SingleFlight};

use crate::config::{Config, Credentials};
use crate::error::Failed;
use crate::keys;
use crate::rpc::channel::{AuthToken, Member};
use crate::rpc::proto::{AuthenticateReply, AuthenticateRequest, RangeRequest};

/// After this time without a reply a request has its token checked, and again after twice that time.
const CHECK: Duration = Duration::from_millis(100);

/// The user of the URL and the token of the last login.
pub(crate) struct Login {
    credentials: Credentials,
    runtime: Runtime,
    timeout: Duration,
    /// A key that the user may read.
    key: Vec<u8>,
    token: Arc<Mutex<Option<AuthToken>>>,
    check: SingleFlight<()>,
}

impl Login {
    /// Creates the login of the URL's user; `None`: the URL names no user. Nothing is sent yet.
    pub(crate) fn new(config: &Config, runtime: &Runtime) -> Option<Login> {
        Some(Login {
            credentials: config.credentials.clone()?,
            runtime: runtime.clone(),
            timeout: config.timeout,
            key: keys::evictions(&config.prefix),
            token: Arc::default(),
            check: SingleFlight::default(),
        })
    }

    fn known(&self) -> Option<AuthToken> {
        self.token.lock().clone()
    }

    /// Returns the token, and logs in first if there is none. Concurrent requests share one login.
    pub(crate) async fn token(&self, member: &Member) -> Result<AuthToken, Failed> {
        if let Some(token) = self.known() {
            return Ok(token);
        }
        let (own, known) = (member.clone(), Arc::clone(&self.token));
        let Credentials { user: name, password } = self.credentials.clone();
        let (clock, timeout) = (self.runtime.clock().clone(), self.timeout);
        let login = async move {
            // A login at another member may have succeeded meanwhile.
            if let Some(token) = &*known.lock() {
                return Ok(token.clone());
            }
            let until = clock.now() + timeout;
            let text = password.text();
            let mut reply = authenticate(&own, &name, &text, &clock, until).await;
            if let Err(failure) = &reply
                && failure.error.kind() == ErrorKind::Denied
                && let Some(text) = password.after_refusal(&text)
            {
                reply = authenticate(&own, &name, &text, &clock, until).await;
            }
            let reply = reply?;
            let mut token: AuthToken = reply.token.parse().map_err(|_| Failed::malformed())?;
            token.set_sensitive(true);
            *known.lock() = Some(token.clone());
            Ok(token)
        };
        member.login.join(&self.runtime, login).await.unwrap_or_else(|| Err(Failed::closed()))
    }

    /// Forgets a token that the server refuses. A newer one stays.
    pub(crate) fn forget(&self, token: &AuthToken) {
        forget(&self.token, token);
    }

    /// Completes when the server refuses the token. etcd 3.4 does not reply to a write with a JWT token of an earlier revision: it
    /// repeats the write until its client gives up. It replies to a read.
    pub(crate) async fn refused(&self, member: &Member, token: &AuthToken) {
        let clock = self.runtime.clock();
        let mut backoff = Backoff::new(CHECK, Duration::MAX);
        loop {
            let next = clock.now() + backoff.pause();
            clock.sleep_until(next).await;
            if clock.now() < next {
                // The client has ended, and its timers with it.
                return std::future::pending().await;
            }
            if self.known().as_ref() != Some(token) {
                return;
            }
            let (own, known, sent) = (member.clone(), Arc::clone(&self.token), token.clone());
            let (clock, until) = (clock.clone(), clock.now() + self.timeout);
            let read = RangeRequest::probe(self.key.clone());
            let check = async move {
                let reply = clock.within(until, own.call(read, Some(sent.clone()))).await;
                if let Some(Err(failure)) = reply
                    && failure.is_token_refused()
                {
                    forget(&known, &sent);
                }
            };
            self.check.join(&self.runtime, check).await;
            if self.known().as_ref() != Some(token) {
                return;
            }
        }
    }
}

/// Logs in at a member.
async fn authenticate(
    member: &Member,
    name: &str,
    password: &str,
    clock: &Clock,
    until: Moment,
) -> Result<AuthenticateReply, Failed> {
    let request = AuthenticateRequest { name: name.to_owned(), password: password.to_owned() };
    let reply = clock.within(until, member.call(request, None)).await;
    reply.unwrap_or_else(|| Err(member.timeout()))
}

fn forget(known: &Mutex<Option<AuthToken>>, token: &AuthToken) {
    let mut known = known.lock();
    if known.as_ref() == Some(token) {
        *known = None;
    }
}
