//! The client's login: one token for all of its requests.
//!
//! A server forgets a token when it starts again and when its user changes. A JWT token ends with any change of users or roles.
//! The client then logs in again, once for all requests that were refused.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_core::Runtime;
use tonic::metadata::{Ascii, MetadataValue};

use crate::config::{self, Config};
use crate::error::Failure;
use crate::keys;
use crate::lease::Flight;
use crate::net::RANGE;
use crate::peer::{Peer, Way, unary};
use crate::proto::{AuthenticateRequest, AuthenticateResponse, RangeRequest, RangeResponse};

const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
/// A request that is not answered by then has its token checked, and again after twice that time.
const CHECK: Duration = Duration::from_millis(100);

pub(crate) type Token = MetadataValue<Ascii>;

/// The user of the URL, and the token that the last login gave.
pub(crate) struct Login {
    user: config::Login,
    runtime: Runtime,
    timeout: Duration,
    /// A key that the user may read.
    key: Vec<u8>,
    token: Arc<Mutex<Option<Token>>>,
    check: Flight<()>,
}

impl Login {
    /// Returns the login of the URL's user; `None`: the URL names no user. Nothing is sent yet.
    pub(crate) fn new(config: &Config, runtime: &Runtime) -> Option<Login> {
        let (user, key) = (config.login.clone()?, keys::marks(&config.prefix));
        let (runtime, timeout) = (runtime.clone(), config.timeout);
        Some(Login { user, runtime, timeout, key, token: Arc::default(), check: Flight::default() })
    }

    /// Returns the token, and logs in first if there is none. Requests that come meanwhile wait for the same login.
    pub(crate) async fn token(&self, peer: &Peer) -> Result<Token, Failure> {
        if let Some(token) = &*lock(&self.token) {
            return Ok(token.clone());
        }
        let (own, user, place) = (peer.by_own_thread(), self.user.clone(), Arc::clone(&self.token));
        let (clock, timeout) = (self.runtime.clock().clone(), self.timeout);
        let login = async move {
            // Another member may have given one meanwhile.
            if let Some(token) = &*lock(&place) {
                return Ok(token.clone());
            }
            let question = AuthenticateRequest { name: user.user, password: user.password };
            let asked = unary::<_, AuthenticateResponse>(&own, Way::Own, AUTHENTICATE, question, None);
            let answer = clock.within(clock.now() + timeout, asked).await;
            let answer = answer.unwrap_or_else(|| Err(Failure::silence(&own.address)))?;
            let mut token: Token = answer.token.parse().map_err(|_| Failure::nonsense())?;
            token.set_sensitive(true);
            *lock(&place) = Some(token.clone());
            Ok(token)
        };
        peer.login.join(&self.runtime, login).await
    }

    /// Drops a token that the server refuses. A newer one stays.
    pub(crate) fn forget(&self, token: &Token) {
        forget(&self.token, token);
    }

    /// Completes when the server refuses the token. etcd 3.4 does not answer a write with a JWT token of an earlier revision:
    /// it repeats the write until its client gives up. A read is answered.
    pub(crate) async fn refused(&self, peer: &Peer, token: &Token) {
        let clock = self.runtime.clock();
        let mut pause = CHECK;
        loop {
            let next = clock.now() + pause;
            clock.sleep_until(next).await;
            if clock.now() < next {
                // The client is gone, and its timers with it.
                return std::future::pending().await;
            }
            if lock(&self.token).as_ref() != Some(token) {
                return;
            }
            let (own, place, sent) = (peer.by_own_thread(), Arc::clone(&self.token), token.clone());
            let (clock, timeout) = (clock.clone(), self.timeout);
            let read = RangeRequest::by_creation(self.key.clone(), Vec::new(), 1);
            let check = async move {
                let question = RangeRequest { keys_only: true, ..read };
                let asked = unary::<_, RangeResponse>(&own, Way::Own, RANGE, question, Some(&sent));
                if let Some(Err(failure)) = clock.within(clock.now() + timeout, asked).await
                    && failure.is_token()
                {
                    forget(&place, &sent);
                }
                Ok(())
            };
            let _ = self.check.join(&self.runtime, check).await;
            if lock(&self.token).as_ref() != Some(token) {
                return;
            }
            pause *= 2;
        }
    }
}

fn forget(place: &Mutex<Option<Token>>, token: &Token) {
    let mut known = lock(place);
    if known.as_ref() == Some(token) {
        *known = None;
    }
}

fn lock(token: &Mutex<Option<Token>>) -> MutexGuard<'_, Option<Token>> {
    token.lock().unwrap_or_else(PoisonError::into_inner)
}
