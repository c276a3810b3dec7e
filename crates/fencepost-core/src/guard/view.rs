//! A guard seen by work that does not own it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::claim::Claim;
use crate::backend::degraded::Degraded;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::time::{Clock, Moment};
use crate::token::Token;
use crate::validity::{Loss, State};

/// A view of a lock that is held, for the work that is [held to it](crate::Acquire::run): it tells how the lock stands and
/// cannot release it. Clones see the same lock. One that outlives the work says that the lock is [lost](Loss::Released) from the moment
/// at which it is given back, before anybody else can be granted it.
#[derive(Clone)]
pub struct GuardView {
    claim: Arc<Claim>,
    token: Token,
    engine: &'static str,
}

impl GuardView {
    pub(crate) fn new(claim: Arc<Claim>, token: Token, engine: &'static str) -> GuardView {
        GuardView { claim, token, engine }
    }

    /// The guard has been upgraded.
    pub(super) fn set_token(&mut self, token: Token) {
        self.token = token;
    }

    fn clock(&self) -> &Clock {
        self.claim.runtime.clock()
    }

    /// The resource.
    pub fn name(&self) -> &Name {
        &self.claim.want().name
    }

    /// The fencing token of this grant: greater than that of every earlier grant of the resource. Give it to what the lock protects. An
    /// [upgrade](crate::Guard::upgrade) gives the guard a new one.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Returns what this grant is worth, if it was made while the engine was away: see [`Degraded`]. `None`: the engine
    /// granted it, or has confirmed it since.
    pub fn degraded(&self) -> Option<Degraded> {
        self.claim.degraded.get()
    }

    /// How the lock stands now. Never says `Held` after it has once said `Lost`.
    pub fn state(&self) -> State {
        self.claim.validity.seen(self.clock())
    }

    /// How long the lock is still valid if no renewal gets through. Zero: it is lost.
    pub fn remaining(&self) -> Duration {
        self.claim.validity.remaining(self.clock())
    }

    /// Until when the lock is valid if no renewal gets through, on the client's clock ([`Moment::NEVER`]: until it is told;
    /// [`Moment::ZERO`]: it is lost). Grows with each renewal.
    pub fn valid_until(&self) -> Moment {
        self.claim.validity.valid_until(self.clock())
    }

    /// Fails if the lock is lost: ask before each step that must not run without it. No I/O.
    ///
    /// # Errors
    /// [`is_lost`](Error::is_lost), with the reason.
    #[doc(alias("isHeldByCurrentThread", "isAcquiredInThisProcess", "assertLocked"))]
    pub fn ensure_held(&self) -> Result<()> {
        match self.state() {
            State::Held | State::Suspect => Ok(()),
            State::Lost(why) => Err(self.lost_error(why)),
        }
    }

    pub(super) fn lost_error(&self, why: Loss) -> Error {
        self.claim.lost_error(why).on(self.engine)
    }

    /// Fails if the lock is lost, or valid for less than `needed`: ask before a write that takes this long. No I/O.
    ///
    /// # Errors
    /// [`is_lost`](Error::is_lost), with the reason. [`is_timeout`](Error::is_timeout) if less time is left: renewals are
    /// late, or `needed` is longer than the lease.
    pub fn ensure_held_for(&self, needed: Duration) -> Result<()> {
        self.ensure_held()?;
        let remaining = self.remaining();
        if remaining >= needed {
            return Ok(());
        }
        let message =
            format!("the lock is valid for {remaining:?} more and {needed:?} are needed; wait for a renewal");
        Err(Error::new(ErrorKind::Timeout, message).transient(true).of(self.name().clone()).on(self.engine))
    }

    /// Returns the error of the last renewal, unless a later renewal was confirmed. For a lock that is Suspect or lost it is most likely
    /// the cause.
    pub fn last_renewal_error(&self) -> Option<Arc<str>> {
        self.claim.validity.trouble()
    }

    /// Returns what the engine knows of the loss beside its kind: which key is gone, or who evicted and why.
    pub fn loss_detail(&self) -> Option<Arc<str>> {
        self.claim.validity.detail()
    }

    /// Completes when the lock is in doubt or lost, with its state: the warning before [`lost`](GuardView::lost). A lock is in doubt after a
    /// renewal has failed, or when half of its lease has passed without one. A later renewal may confirm it again.
    ///
    /// # Cancel safety
    /// Safe; it only looks.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let locks = fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await?;
    /// use fencepost_core::State;
    /// use std::time::Duration;
    ///
    /// let stock = locks.mutex("stock/42")?;
    /// let guard = stock.lock().ttl(Duration::from_millis(400)).no_renewal().await?;
    /// assert_eq!(guard.suspect().await, State::Suspect); // finish, or extend it
    /// guard.release().await?;
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    pub async fn suspect(&self) -> State {
        self.claim.validity.suspect(self.clock()).await
    }

    /// Completes when the lock is lost, with the reason: before anybody else can be granted it, as long as this process runs.
    ///
    /// # Cancel safety
    /// Safe; it only looks.
    pub async fn lost(&self) -> Loss {
        self.claim.validity.lost(self.clock()).await
    }
}

impl fmt::Debug for GuardView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardView")
            .field("name", self.name())
            .field("token", &self.token)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
