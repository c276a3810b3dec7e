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

    fn clock(&self) -> &Clock {
        self.claim.runtime.clock()
    }

    /// The resource.
    pub fn name(&self) -> &Name {
        &self.claim.want().name
    }

    /// The fencing token of the grant: give it to what the lock protects.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Returns the worth of a grant that was made while the engine was away: see [`Guard::degraded`](crate::Guard::degraded).
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

    /// Until when the lock is valid if no renewal gets through: see [`Guard::valid_until`](crate::Guard::valid_until).
    pub fn valid_until(&self) -> Moment {
        self.claim.validity.valid_until(self.clock())
    }

    /// Fails if the lock is lost: ask before each step that must not run without it. No I/O.
    ///
    /// # Errors
    /// [`is_lost`](Error::is_lost), with the reason.
    pub fn ensure_held(&self) -> Result<()> {
        match self.state() {
            State::Held | State::Suspect => Ok(()),
            State::Lost(why) => Err(self.claim.lost_error(why).on(self.engine)),
        }
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

    /// Returns the error of the last renewal, unless a later renewal was confirmed.
    pub fn last_renewal_error(&self) -> Option<Arc<str>> {
        self.claim.validity.trouble()
    }

    /// Returns what the engine knows of the loss beside its kind: see [`Guard::loss_detail`](crate::Guard::loss_detail).
    pub fn loss_detail(&self) -> Option<Arc<str>> {
        self.claim.validity.detail()
    }

    /// Completes when the lock is in doubt or lost: see [`Guard::suspect`](crate::Guard::suspect).
    ///
    /// # Cancel safety
    /// Safe; it only looks.
    pub async fn suspect(&self) -> State {
        self.claim.validity.suspect(self.clock()).await
    }

    /// Completes when the lock is lost, with the reason.
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
