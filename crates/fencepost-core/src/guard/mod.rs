//! The user's proof that a lock is held.

pub(crate) mod holder;
pub(crate) mod lease;
pub(crate) mod multi;
pub(crate) mod owned;
pub(crate) mod run;
mod undo;
pub(crate) mod unfinished;
pub(crate) mod upgrade;
pub(crate) mod view;

use std::fmt;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use tracing::Instrument as _;

use crate::backend::claim::Claim;
use crate::backend::{Attempt, Removed};
use crate::client::shared::ClientShared;
use crate::entry::Entry;
use crate::entry::place::{How, Leave};
use crate::error::{Effect, Error, Result};
use crate::guard::lease::DetachedLease;
use crate::guard::owned::Owned;
use crate::guard::view::GuardView;
use crate::operator::run::RunEnd;
use crate::runtime::finish::Finish;
use crate::telemetry;
use crate::token::Token;
use crate::validity::{Loss, State};

/// A lock that is held, or was: see [`state`](GuardView::state).
///
/// Its lease is renewed in the background until it is released or dropped (unless it was acquired with a fixed lease). Mutual
/// exclusion holds as long as the guard is not lost; a process cannot prevent being paused past its lease, so give
/// [`token`](GuardView::token) to what the lock protects, and stop the work when [`lost`](GuardView::lost) says so.
///
/// # Drop
/// Releases in the background: the request is sent at once where the engine allows it, and the rest is done by the client's own
/// thread. It neither blocks nor needs a runtime nor panics. [`release`](Guard::release) also tells whether it worked.
///
/// # Fork
/// A guard belongs to the process that acquired it. In a process that was forked off that one without `exec`, its drop does
/// nothing, and its other calls fail ([`is_closed`](Error::is_closed)). The lock is [lost](Loss::Forked) there, and
/// [`remaining`](GuardView::remaining) is zero. The same is true of views and of the client.
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard {
    owned: Owned,
    view: GuardView,
}

/// How the lock stands is asked of its view.
impl Deref for Guard {
    type Target = GuardView;

    fn deref(&self) -> &GuardView {
        &self.view
    }
}

impl Guard {
    pub(crate) fn new(mut owned: Owned, token: Token) -> Guard {
        owned.become_granted(token);
        let view = GuardView::new(Arc::clone(&owned.claim), token, owned.client.engine());
        Guard { owned, view }
    }

    /// Takes up a detached lease. Until the engine has granted it, nothing is owned: a failure ends nothing of the lease, but after a
    /// lost reply it may have the length and the owner that were asked for.
    pub(crate) async fn attach(client: &Arc<ClientShared>, claim: Arc<Claim>) -> Result<Option<Guard>> {
        let mut entry = client.entry(&claim, How::Attach);
        let Attempt::Granted(token) = entry.attempt().await? else { return Ok(None) };
        telemetry::attached(client.engine(), &claim.want().name, token);
        Ok(Some(Guard::new(Owned::attached(client, claim, entry), token)))
    }

    /// Returns a view for work that does not own the guard.
    pub fn view(&self) -> GuardView {
        self.view.clone()
    }

    /// Runs `work`, and drops it unfinished if the lock is lost first.
    ///
    /// # Errors
    /// [`is_lost`](Error::is_lost) if the lock was lost before `work` was done.
    ///
    /// # Cancel safety
    /// That of `work`; the guard stays as it is.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let locks = fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await?;
    /// let guard = locks.mutex("stock/42")?.lock().await?;
    /// let sold = guard.run(async { 3 }).await?;
    /// assert_eq!(sold, 3);
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        match select(pin!(self.lost()), pin!(work)).await {
            Either::Left((why, _)) => Err(self.lost_error(why)),
            // The process may have been paused during the last step of `work`.
            Either::Right((value, _)) => self.ensure_held().map(|()| value),
        }
    }

    /// Makes the lease end `ttl` from now at the earliest, and be that long from now on: one round trip. It never shortens what is
    /// granted already. A guard with a fixed lease is extended only by this.
    ///
    /// # Errors
    /// [`is_lost`](Error::is_lost) if the lock is lost, [`is_invalid`](Error::is_invalid) for a `ttl` out of bounds, or what the
    /// engine says. The lock is held as before then. Its lease at the engine may last longer if the error says that the request
    /// [may have taken effect](Error::effect).
    ///
    /// # Cancel safety
    /// Dropped midway, the lease is extended or not.
    pub async fn extend(&mut self, ttl: Duration) -> Result<()> {
        self.owned.client.check_process()?;
        self.owned.client.check_ttl(ttl)?;
        self.ensure_held()?;
        self.settle(self.valid_until()).await?;
        let Some(renewal) = self.owned.renewal() else { return self.ensure_held() };
        let before = renewal.claim.ttl();
        renewal.claim.set_ttl(ttl);
        let clock = self.owned.client.runtime.clock();
        let until = self.valid_until();
        let renewed = clock.within(until, renewal.session.renew(std::slice::from_ref(&renewal.claim))).await;
        self.ensure_held()?;
        let failed = match renewed {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(error),
            None => Some(Error::no_answer().unknown()),
        };
        if let Some(error) = failed {
            renewal.claim.set_ttl(before);
            return Err(error.of(self.name().clone()).on(self.owned.client.engine()));
        }
        self.owned.schedule_renewal();
        Ok(())
    }

    /// Notes the exit code of the work under the lock, for the [runs](crate::Runs) that the engine keeps; zero is good. The next
    /// release or drop carries it to the engine, also when the lock is lost. The first report counts. No I/O. Without a
    /// [history](crate::ClientBuilder::history) it does nothing.
    pub fn report(&self, exit_code: i32) {
        self.report_end(exit_code, RunEnd::Exited);
    }

    /// As [`report`](Guard::report), for work that was stopped: its run is never good, whatever the exit code.
    pub fn report_end(&self, exit_code: i32, end: RunEnd) {
        self.owned.claim.report(exit_code, end);
    }

    /// Releases the lock and waits until the engine has confirmed it, for the client's
    /// [`release_timeout`](crate::ClientBuilder::release_timeout) at most, and no longer than the lease still lasts.
    ///
    /// A program that must answer at once, such as a request handler, drops the guard instead: the request is sent by the drop,
    /// and nothing waits for the engine. Such a program calls [`ensure_held`](GuardView::ensure_held) before the drop, to learn of a loss.
    ///
    /// # Errors
    /// [`is_lost`](Error::is_lost) if the guard was lost before, for whatever [reason](Error::loss), or the engine knows the grant no more:
    /// the work may have overlapped with that of another holder. A guard that is lost is not waited for: what is left of it at
    /// the engine is removed in the background. The engine's error if it did not confirm in time; cleanup then goes on in
    /// the background.
    ///
    /// # Cancel safety
    /// Dropped midway, the lock is released in the background.
    #[doc(alias("unlock"))]
    pub async fn release(self) -> Result<()> {
        let span = tracing::debug_span!("release", name = %self.name());
        if span.is_disabled() {
            return self.give_back().await;
        }
        Box::pin(self.give_back().instrument(span)).await
    }

    async fn give_back(self) -> Result<()> {
        let Guard { mut owned, .. } = self;
        owned.client.check_process()?;
        let now = owned.client.runtime.clock().now();
        let lost = |owned: &Owned, why| {
            owned.tell_lost(why);
            Err(owned.claim.lost_error(why).on(owned.client.engine()))
        };
        if let State::Lost(why) = owned.claim.validity.state(now) {
            owned.clean_up();
            return lost(&owned, why);
        }
        if owned.hold_for_least() {
            return Ok(());
        }
        let until = (now + owned.client.release_timeout).min(owned.claim.validity.until());
        let left = owned.leave(Leave::Release, until).await;
        let removed = left.inspect_err(|_| owned.tell_released("release"))?;
        if removed == Removed::Released {
            owned.tell_released("release");
            return Ok(());
        }
        match owned.state() {
            State::Lost(why) => lost(&owned, why),
            State::Held | State::Suspect => lost(&owned, Loss::Deleted),
        }
    }

    /// Returns a lease that names this grant. The grant stays with this client, which renews it. No I/O.
    ///
    /// A supervisor [releases](crate::Client::release) the grant with the lease after this process has died. Others then do not wait
    /// until the lease ends.
    ///
    /// # Errors
    /// [`is_unsupported`](Error::is_unsupported) where the engine has no [detached leases](crate::Capabilities::detach).
    pub fn to_lease(&self) -> Result<DetachedLease> {
        self.owned.client.require_detach()?;
        Ok(DetachedLease::new(&self.owned.claim, self.token()))
    }

    /// Cuts the lock loose from this process: it is held by the lease that this returns, and ends with it unless that is extended.
    ///
    /// # Errors
    /// [`is_unsupported`](Error::is_unsupported) where the engine has no such leases, [`is_invalid`](Error::is_invalid) for a lock with
    /// a [longest time](crate::Acquire::max_hold), [`is_lost`](Error::is_lost), or what the engine says. The lock is released then.
    ///
    /// # Cancel safety
    /// Dropped midway, the lock is released in the background.
    pub async fn detach(self) -> Result<DetachedLease> {
        self.cut_loose(false).await
    }

    /// `mark`: others may have seen it as detached after the request was sent, so it is not withdrawn then.
    async fn cut_loose(mut self, mark: bool) -> Result<DetachedLease> {
        self.owned.client.check_process()?;
        self.owned.client.require_detach()?;
        self.ensure_held()?;
        // A lease that is not renewed has one only if another process holds it, through a service, and ends it in time.
        if self.owned.claim.renewed && self.owned.claim.max_hold.is_some() {
            let message = "a grant with a longest time cannot be detached, because nobody would end it in time; \
                           take the lock without max_hold, or release it here";
            return Err(Error::invalid(message).of(self.name().clone()));
        }
        self.settle(self.valid_until()).await?;
        let token = self.token();
        let Guard { mut owned, .. } = self;
        owned.client.renewer.forget(&owned.claim);
        // Without renewals it cannot be held for its least time. It is released at once if it is not detached.
        owned.drop_limits();
        // Whatever the outcome, this process holds it no more. Its lease may end before the last one that was confirmed.
        owned.claim.validity.give_back();
        let Some(entry) = owned.slot() else { return Err(owned.claim.gone().on(owned.client.engine())) };
        let detached = entry.detach().await.map_err(|error| error.of(owned.claim.want().name.clone()));
        if detached.is_ok() || mark && detached.as_ref().is_err_and(|error| error.effect() != Effect::None) {
            owned.slot().take().into_iter().for_each(Entry::forget);
            owned.tell_released("detach");
        }
        detached?;
        Ok(DetachedLease::new(&owned.claim, token))
    }

    /// Makes a mark of the grant that stays for `ttl`, whether this process goes on or not.
    ///
    /// Once its request is sent, the mark is not taken back: others may have seen it. So a call that is dropped midway goes on in the
    /// background. After an error with an unknown effect the grant ends with its own lease, unless it has become the mark.
    ///
    /// # Errors
    /// Those of [`detach`](Guard::detach), and [`is_invalid`](Error::is_invalid) for a `ttl` out of bounds.
    ///
    /// # Cancel safety
    /// Dropped midway, it goes on in the background.
    pub async fn leave_mark(self, ttl: Duration) -> Result<()> {
        self.owned.client.check_ttl(ttl).map_err(|error| error.of(self.name().clone()))?;
        let runtime = self.owned.client.runtime.clone();
        self.owned.claim.set_ttl(ttl);
        Finish::new(runtime, self.cut_loose(true)).await.map(drop)
    }

    /// The engine's own strength, to be downcast to a type of its crate. A lock that has a [longest time](crate::Acquire::max_hold) is
    /// lost at its end all the same, but released only by its guard. `None` also while an upgrade that was given up is being undone.
    pub fn native(&mut self) -> Option<&mut (dyn std::any::Any + Send)> {
        if self.owned.client.is_forked() {
            return None;
        }
        self.owned.slot().as_mut()?.native()
    }

    /// Sets how the grant ends if this guard is dropped, or if a call that consumes it fails or is dropped. Without this call the grant is
    /// released. [`Leave::Withdraw`] is for a grant that nobody has learned of yet: the engine keeps no run of it. A drop
    /// cannot detach a grant, so [`Leave::Detach`] withdraws it as well.
    ///
    /// `None` is for a grant that others may take up, because they know the [id](crate::Acquire::claim_id) of its claim: it may be theirs,
    /// and ends with its lease or by a [release](Guard::release). Its lease must be one that is
    /// [not renewed](crate::Acquire::no_renewal): an engine may end a renewed one only with its process.
    pub fn set_on_drop(&mut self, how: Option<Leave>) {
        if let Some(entry) = self.owned.slot() {
            entry.set_on_drop(how);
        }
        self.owned.lend();
    }

    /// Withdraws the grant in the background, as if it had never been made: the engine keeps no run of it.
    pub fn withdraw(mut self) {
        if !self.owned.client.is_forked() {
            self.owned.become_withdrawn();
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", self.name())
            .field("token", &self.token())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
