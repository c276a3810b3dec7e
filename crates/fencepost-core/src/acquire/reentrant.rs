//! Requests of a [`Holder`], which may call itself.

use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{Either, select};
use tokio::sync::OwnedMutexGuard;

use crate::acquire::options::{Options, Single};
use crate::acquire::request::{Boxed, in_span};
use crate::acquire::{Acquire, How, Outcome, What};
use crate::backend::admission::Mode;
use crate::error::{Error, Result};
use crate::guard::holder::{Grants, Holder, ReentrantGuard};
use crate::time::Moment;

/// A request that enters a lock again that its [`Holder`] has: see [`Acquire::reentrant`].
#[derive(Clone, Debug)]
pub struct Reentrant<'a>(Single<'a>);

impl<'a, H: How> Acquire<Single<'a>, H> {
    /// Enters the lock again if its [`Holder`] has it, without a request to the engine. Otherwise acquires it as a lock that can be
    /// entered again. The options of the first request count.
    ///
    /// An exclusive grant covers requests to read.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) without a holder, and for permits. [`is_lost`](Error::is_lost) if the holder's grant is lost,
    /// until its guards are dropped. [`is_would_deadlock`](Error::is_would_deadlock) if the holder has the lock by a plain
    /// request, or only reads and asks to write. Others as for [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// As for [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let locks = fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await?;
    /// use fencepost_core::Holder;
    ///
    /// let (holder, stock) = (Holder::new(), locks.mutex("stock/42")?);
    /// let outer = stock.lock().holder(&holder).reentrant().await?;
    /// let inner = stock.lock().holder(&holder).reentrant().await?;
    /// assert_eq!((inner.token(), inner.count()), (outer.token(), 2));
    ///
    /// let error = stock.lock().holder(&holder).await.unwrap_err();
    /// assert!(error.is_would_deadlock());
    /// drop(outer);
    /// inner.release().await?; // now others can have it
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    #[doc(alias("RLock", "InterProcessMutex", "ReentrantLock", "reentrant_lock"))]
    pub fn reentrant(self) -> Acquire<Reentrant<'a>, H> {
        Acquire::of(Reentrant(self.what))
    }
}

impl<'a> What for Reentrant<'a> {
    type Granted = ReentrantGuard;
    type Work = Boxed<'a, ReentrantGuard>;

    fn options(&mut self) -> &mut Options {
        &mut self.0.options
    }

    fn perform(self) -> Self::Work {
        in_span(self.0.span(), self.0.run_reentrant())
    }
}

/// The right of one holder's request to ask for a lock.
type Turn = OwnedMutexGuard<()>;

impl Single<'_> {
    /// Returns the holder that asks, if it is not a stranger.
    pub(super) fn asker(&self) -> Option<Holder> {
        self.by.clone().or_else(Holder::current)
    }

    /// A plain request of a holder.
    pub(super) async fn run_as(&self, holder: Holder) -> Result<Outcome> {
        let grants = holder.grants(self.client, self.name);
        let (start, mode) = (self.start(), self.mode);
        let _turn = match self.turn(&grants, start).await? {
            Ok(turn) => turn,
            Err(outcome) => return Ok(outcome),
        };
        if self.join {
            self.named(grants.check(mode))?;
        }
        let outcome = self.run_from(start).await?;
        if let Outcome::Granted(guard) = &outcome {
            grants.add_plain(mode, guard);
        }
        Ok(outcome)
    }

    async fn run_reentrant(self) -> Result<Outcome<ReentrantGuard>> {
        let holder = self.asker().ok_or_else(|| {
            Error::invalid("a reentrant request needs a holder; call holder(), or make it in Holder::scope")
        });
        let holder = self.named(holder)?;
        if let Mode::Permits { .. } = self.mode {
            return self.named(Err(Error::invalid("a permit is not entered again; make a plain request")));
        }
        self.client.check_open()?;
        let grants = holder.grants(self.client, self.name);
        if let Some(guard) = grants.enter(self.mode)? {
            return Ok(Outcome::Granted(guard));
        }
        let (start, mode) = (self.start(), self.mode);
        let _turn = match self.turn(&grants, start).await? {
            Ok(turn) => turn,
            Err(outcome) => return Ok(outcome),
        };
        if let Some(guard) = grants.enter(mode)? {
            return Ok(Outcome::Granted(guard));
        }
        self.named(grants.check(mode))?;
        Ok(self.run_from(start).await?.map(|guard| grants.add_reentrant(mode, guard)))
    }

    /// Waits until no other request of the holder is under way for this lock. It ends with the waiting time.
    async fn turn<G>(&self, grants: &Grants, start: Moment) -> Result<std::result::Result<Turn, Outcome<G>>> {
        let turn = Arc::clone(&grants.turn);
        if let Ok(turn) = Arc::clone(&turn).try_lock_owned() {
            return Ok(Ok(turn));
        }
        if !self.join {
            return Ok(Err(Outcome::Busy));
        }
        let until = self.wait.map_or(Moment::NEVER, |wait| start + wait);
        // From here on a close is told, also one that comes before it is first waited for.
        let closing = pin!(self.client.closing.notified());
        self.client.check_open()?;
        // Dropped here, it has asked for nothing. The other request may be a future that nobody polls: a close does not end it.
        let free = pin!(turn.lock_owned());
        if let Some(Either::Left((turn, _))) =
            self.client.runtime.clock().within(until, select(free, closing)).await
        {
            return Ok(Ok(turn));
        }
        self.client.check_open()?;
        Ok(Err(Outcome::Timeout(self.timeout_error(Vec::new(), None))))
    }

    /// Adds the name and the engine to an error.
    pub(crate) fn named<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.of(self.name.clone()).on(self.client.engine()))
    }
}
