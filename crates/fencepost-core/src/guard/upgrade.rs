//! Read locks that become write locks, and write locks that become read locks.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use tracing::Instrument;

use crate::acquire::ask::Ask;
use crate::acquire::options::Single;
use crate::acquire::wait::Waited;
use crate::backend::admission::Mode;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::operator::holder::ClaimInfo;
use crate::telemetry;
use crate::time::Moment;

/// A request to make a read lock a write lock: await it, or set its waiting time first. See [`Guard::upgrade`].
#[derive(Debug)]
#[must_use = "nothing is asked for until it is awaited"]
pub struct Upgrade<'a> {
    guard: &'a mut Guard,
    wait: Option<Duration>,
    evict_overdue: bool,
}

/// A request to make a read lock a write lock if nobody else reads: await it. See [`Guard::try_upgrade`].
#[derive(Debug)]
#[must_use = "nothing is asked for until it is awaited"]
pub struct TryUpgrade<'a>(&'a mut Guard);

impl Guard {
    /// Returns how the lock is held: [`Shared`](Mode::Shared) by a reader, [`Exclusive`](Mode::Exclusive) by a writer.
    pub fn mode(&self) -> Mode {
        self.owned.claim.mode()
    }

    /// Makes a read lock a write lock, without giving it up: what was read is still true when it is written. Waits until the other
    /// readers have left. Meanwhile nobody else is admitted, so it goes before all that wait. Only one reader can upgrade at
    /// a time, so two never wait for each other. A write lock stays as it is.
    ///
    /// # Guarantees
    /// The lock is held all the time, by the same lease, and a loss is told by this guard. With a success it has a new
    /// [`token`](crate::GuardView::token), greater than all before. With a failure, or if the future is dropped, it is a read lock as before,
    /// with its old token, and other readers are admitted again. If the engine does not confirm that in time, they are admitted when the read
    /// lock is released or its lease ends.
    ///
    /// # What is not guaranteed
    /// That the upgrade succeeds: a second reader that upgrades is refused. It has to release its read lock, and to read again
    /// under a write lock. A [`ReentrantGuard`](crate::ReentrantGuard) has no upgrade.
    ///
    /// # Errors
    /// The guard is a read lock as before, unless it is lost.
    /// - [`is_upgrade_conflict`](Error::is_upgrade_conflict): another reader upgrades already. The answer comes at once.
    /// - [`is_timeout`](Error::is_timeout) after the [waiting time](Upgrade::wait), with the other readers.
    /// - [`is_lost`](Error::is_lost): the lock is lost, also while it waits.
    /// - [`is_unsupported`](Error::is_unsupported) where the engine [cannot do that](crate::Capabilities::upgrade).
    /// - [`is_invalid`](Error::is_invalid) for permits.
    /// - The engine's error if it fails for longer than the client's [outage](crate::ClientBuilder::outage).
    ///
    /// # Cancel safety
    /// Dropped at any await, the lock is a read lock as before. The request to undo the upgrade is sent by the drop, and repeated in
    /// the background. The next call of this guard waits for that.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let locks = fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await?;
    /// use std::time::Duration;
    ///
    /// let prices = locks.rwlock("prices")?;
    /// let mut guard = prices.read().await?;
    /// let read = guard.token();
    ///
    /// guard.upgrade().wait(Duration::from_secs(5)).await?;
    /// assert!(guard.token() > read && prices.try_read().await?.is_none());
    ///
    /// guard.downgrade().await?;
    /// assert!(prices.try_read().await?.is_some());
    /// guard.release().await?;
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    #[doc(alias("upgradable_read", "tryConvertToWriteLock"))]
    pub fn upgrade(&mut self) -> Upgrade<'_> {
        Upgrade { guard: self, wait: None, evict_overdue: false }
    }

    /// Makes a read lock a write lock if there is no other reader, and answers `false` otherwise. It does not wait for others.
    ///
    /// # Errors
    /// Those of [`upgrade`](Guard::upgrade), but for the timeout.
    ///
    /// # Cancel safety
    /// That of [`upgrade`](Guard::upgrade).
    pub fn try_upgrade(&mut self) -> TryUpgrade<'_> {
        TryUpgrade(self)
    }

    /// Makes a write lock a read lock, without giving it up. Readers that wait at the head of the queue are admitted beside it. A read lock
    /// stays as it is. The [`token`](crate::GuardView::token) stays, and each later writer has a greater one.
    ///
    /// Waits for the engine's confirmation, for the client's [`release_timeout`](crate::ClientBuilder::release_timeout) at most.
    ///
    /// # Errors
    /// [`is_lost`](Error::is_lost), [`is_unsupported`](Error::is_unsupported) where the engine
    /// [cannot do that](crate::Capabilities::upgrade), [`is_invalid`](Error::is_invalid) for permits. The engine's error if it did not confirm
    /// in time: the guard is a read lock all the same, and the request is repeated in the background.
    ///
    /// # Cancel safety
    /// Dropped midway, the guard is a read lock. The request is repeated in the background until the engine has confirmed it.
    pub async fn downgrade(&mut self) -> Result<()> {
        self.check_upgrade("way to downgrade a lock")?;
        let until = self.owned.client.release_until().min(self.valid_until());
        self.settle(until).await?;
        // Others may read from now on.
        self.owned.claim.convert(false);
        let mut answer = self.owned.undo_upgrade(self.token());
        if answer.is_ok() {
            answer = self.settle(until).await;
        }
        match answer {
            Err(error) if error.is_lost() => return Err(self.find_loss(until).await),
            answer => answer?,
        }
        self.ensure_held()?;
        telemetry::converted(self.owned.client.engine(), self.name(), self.token(), "lock downgraded");
        Ok(())
    }

    /// Waits until an upgrade that was given up is undone, until then at most.
    pub(super) async fn settle(&mut self, until: Moment) -> Result<()> {
        let settled = self.owned.settle(until).await;
        settled.map_err(|error| error.of(self.name().clone()).on(self.owned.client.engine()))
    }

    /// Whether it can be upgraded or downgraded at all.
    fn check_upgrade(&self, what: &str) -> Result<()> {
        let client = &self.owned.client;
        client.check_open()?;
        let checked = client.require(client.capabilities.upgrade, what).and_then(|()| match self.mode() {
            Mode::Permits { .. } => {
                Err(Error::invalid("permits are neither upgraded nor downgraded; use a read-write lock"))
            }
            Mode::Exclusive | Mode::Shared => self.ensure_held(),
        });
        checked.map_err(|error| error.of(self.name().clone()).on(client.engine()))
    }

    /// Returns whether it is a write lock now. `join`: waits for the other readers.
    async fn become_exclusive(
        &mut self,
        wait: Option<Duration>,
        join: bool,
        evict_overdue: bool,
    ) -> Result<bool> {
        self.check_upgrade("way to upgrade a read lock")?;
        let client = Arc::clone(&self.owned.client);
        let (name, clock) = (self.name().clone(), client.runtime.clock());
        let mut request = Single::new(&client, &name, Mode::Exclusive, join);
        (request.options.wait, request.options.evict_overdue) = (wait, evict_overdue);
        let able = request.check_evict_overdue();
        able.map_err(|error| error.of(name.clone()).on(client.engine()))?;
        let (deadline, first) = request.limits(clock.now(), None);
        self.settle(first).await?;
        if self.mode() == Mode::Exclusive {
            return Ok(true);
        }
        let validity = Arc::clone(&self.owned.claim.validity);
        let from = self.token();
        let mut undo = Undo(Some(self));
        // Taken back for as long as this lasts: the client ends a lock at the end of its longest time only while it has the entry.
        if undo.guard().owned.slot().is_none() {
            return Err(undo.guard().find_loss(first).await);
        }
        let standing =
            request.wait_for_grant(&mut undo.guard().owned, deadline, first, Ask::Upgrade { from });
        let stand = match select(pin!(validity.lost(clock)), pin!(standing)).await {
            Either::Left(_) => Ok(Waited::Gone),
            Either::Right((stand, _)) => stand,
        };
        let stand = stand.map_err(|error| error.of(name.clone()).on(client.engine()))?;
        let guard = match stand {
            Waited::Granted(token) => {
                let guard = undo.done();
                guard.owned.claim.convert(true);
                guard.view.set_token(token);
                guard.owned.become_upgraded(token);
                telemetry::converted(client.engine(), &name, token, "lock upgraded");
                return Ok(true);
            }
            Waited::Busy => return Ok(false),
            Waited::TimedOut { holders, failure: None } => {
                return Err(undo.guard().still_shared(wait, holders));
            }
            Waited::TimedOut { holders, failure } => return Err(request.timeout_error(holders, failure)),
            Waited::Gone => undo.guard(),
        };
        Err(guard.find_loss(first).await)
    }

    /// The engine knows the grant no more. A renewal finds the reason, until then at most.
    async fn find_loss(&mut self, until: Moment) -> Error {
        if self.ensure_held().is_ok()
            && let Some(renewal) = self.owned.renewal()
        {
            let round = renewal.session.renew(std::slice::from_ref(&renewal.claim));
            let _ = self.owned.client.runtime.clock().within(until, round).await;
        }
        let gone = || self.owned.claim.gone().on(self.owned.client.engine());
        self.ensure_held().err().unwrap_or_else(gone)
    }

    /// Makes the error of a waiting time that has ended.
    fn still_shared(&self, wait: Option<Duration>, mut holders: Vec<ClaimInfo>) -> Error {
        holders.retain(|claim| claim.token != Some(self.token()));
        let wait = wait.unwrap_or_default();
        let message = format!(
            "others still read after {wait:?}, so it is a read lock as before; wait longer, or release it"
        );
        let error = Error::new(ErrorKind::Timeout, message).transient(true).held_by(holders);
        error.of(self.name().clone()).on(self.owned.client.engine())
    }
}

/// Undoes an upgrade that is given up.
struct Undo<'a>(Option<&'a mut Guard>);

impl<'a> Undo<'a> {
    fn guard(&mut self) -> &mut Guard {
        self.0.as_mut().expect("the guard is there until the upgrade is done")
    }

    fn done(mut self) -> &'a mut Guard {
        self.0.take().expect("the guard is there until the upgrade is done")
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(guard) = self.0.take()
            && !guard.owned.client.is_forked()
        {
            // The next call, or a renewal, tells of a loss.
            let _ = guard.owned.undo_upgrade(guard.token());
        }
    }
}

impl Upgrade<'_> {
    /// Waits at most `wait` for the other readers, connecting and retries included. Then the answer is an error that
    /// [`is_timeout`](Error::is_timeout) and names them. One attempt is always made, also with a waiting time of zero.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Evicts other readers that are overdue while it waits: see [`Acquire::evict_overdue`](crate::Acquire::evict_overdue). This
    /// reader is not evicted.
    pub fn evict_overdue(mut self) -> Self {
        self.evict_overdue = true;
        self
    }
}

impl<'a> IntoFuture for Upgrade<'a> {
    type Output = Result<()>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let span = tracing::debug_span!("upgrade", name = %self.guard.name());
        let work =
            async move { self.guard.become_exclusive(self.wait, true, self.evict_overdue).await.map(drop) };
        if span.is_disabled() { Box::pin(work) } else { Box::pin(work.instrument(span)) }
    }
}

impl<'a> IntoFuture for TryUpgrade<'a> {
    type Output = Result<bool>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<bool>> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let span = tracing::debug_span!("try_upgrade", name = %self.0.name());
        let work = async move { self.0.become_exclusive(Some(Duration::ZERO), false, false).await };
        if span.is_disabled() { Box::pin(work) } else { Box::pin(work.instrument(span)) }
    }
}
