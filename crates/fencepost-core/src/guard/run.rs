//! Work that runs only while a lock is held.

use std::pin::pin;

use futures_util::future::{Either, select};

use crate::acquire::{Acquire, How, Outcome, What};
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::guard::holder::ReentrantGuard;
use crate::guard::multi::MultiGuard;
use crate::guard::view::GuardView;

/// One lock that is held, or several. Only this crate implements it.
pub trait Held: Sized {
    /// What work under the lock gets: a [`GuardView`], or one for each of several locks.
    type View;

    #[doc(hidden)]
    fn views(&self) -> Self::View;
    #[doc(hidden)]
    fn loss(&self) -> impl Future<Output = Error> + Send;
    #[doc(hidden)]
    fn check(&self) -> Result<()>;
    #[doc(hidden)]
    fn end(self) -> impl Future<Output = Result<()>> + Send;
}

impl Held for Guard {
    type View = GuardView;

    fn views(&self) -> GuardView {
        self.view()
    }

    async fn loss(&self) -> Error {
        let why = self.lost().await;
        self.lost_error(why)
    }

    fn check(&self) -> Result<()> {
        self.ensure_held()
    }

    async fn end(self) -> Result<()> {
        self.release().await
    }
}

impl Held for ReentrantGuard {
    type View = GuardView;

    fn views(&self) -> GuardView {
        self.view()
    }

    async fn loss(&self) -> Error {
        Guard::loss(self).await
    }

    fn check(&self) -> Result<()> {
        self.ensure_held()
    }

    async fn end(self) -> Result<()> {
        self.release().await
    }
}

impl Held for MultiGuard {
    type View = Vec<GuardView>;

    fn views(&self) -> Vec<GuardView> {
        self.guards().iter().map(Guard::view).collect()
    }

    async fn loss(&self) -> Error {
        let (guard, why) = self.lost_one().await;
        guard.lost_error(why)
    }

    fn check(&self) -> Result<()> {
        self.ensure_held()
    }

    async fn end(self) -> Result<()> {
        self.release().await
    }
}

impl<W: What<Granted: Held>, H: How> Acquire<W, H> {
    /// Acquires the lock, runs `work`, releases the lock, and returns the result of `work`. This is the usual way to use a lock. A
    /// request that [tries](crate::request::Try) returns `None` if the lock is busy.
    ///
    /// If the lock is lost first, `work` is dropped at its next await, and the answer is [`is_lost`](Error::is_lost). Work that
    /// blocks its thread has no await: it asks [`ensure_held`](GuardView::ensure_held). Tasks that `work` has spawned go on,
    /// unless they end with what is dropped, as those of a `JoinSet` do. If `work` returns a `Result`, use
    /// [`run_result`](Acquire::run_result), so that there is one error to handle.
    ///
    /// Of several locks, the loss of one ends `work`.
    ///
    /// # Errors
    /// Those of [`Mutex::lock`](crate::Mutex::lock): `work` was not begun. [`is_lost`](Error::is_lost): `work` may have done a
    /// part, or all, while another holder was granted the lock; give [`token`](GuardView::token) to what the lock protects. A
    /// release that the engine does not confirm is no error: the lock is free at the end of its lease at the latest.
    ///
    /// # Cancel safety
    /// Dropped at any await, it drops `work` first. Then it withdraws its position in the queue or its grant, in the background.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let locks = fencepost_core::ClientBuilder::default().connect(&fencepost_core::Registry::new(), "memory:").await?;
    /// use std::time::Duration;
    ///
    /// let stock = locks.mutex("stock/42")?;
    /// let sold = stock.lock().wait(Duration::from_secs(5)).run(|lock| async move {
    ///     println!("fencing token {}", lock.token());
    ///     3
    /// });
    /// assert_eq!(sold.await?, 3);
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    pub async fn run<F: Future>(
        self,
        work: impl FnOnce(<W::Granted as Held>::View) -> F,
    ) -> Result<H::Answer<F::Output>> {
        let outcome = match self.what.perform().await? {
            Outcome::Granted(held) => Outcome::Granted(run_once(held, work).await?),
            Outcome::Busy => Outcome::Busy,
            Outcome::Timeout(error) => Outcome::Timeout(error),
        };
        H::answer(outcome)
    }

    /// [Runs](Acquire::run) work that has an error type of its own, to which the errors of the lock are converted. The lock is released
    /// also if `work` fails.
    ///
    /// # Errors
    /// Those of `work`, and those of [`run`](Acquire::run) as an `E`. If the lock was lost before `work` ended, the loss is the error.
    ///
    /// # Cancel safety
    /// That of [`run`](Acquire::run).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let locks = fencepost_core::ClientBuilder::default().connect(&fencepost_core::Registry::new(), "memory:").await?;
    /// type BoxError = Box<dyn std::error::Error + Send + Sync>;
    ///
    /// let stock = locks.mutex("stock/42")?;
    /// let left: u32 = stock.lock().run_result(|_lock| async { Ok::<_, BoxError>("41".parse()?) }).await?;
    /// assert_eq!(left, 41);
    /// # Ok::<(), BoxError>(()) }).unwrap();
    /// ```
    pub async fn run_result<F, T, E>(
        self,
        work: impl FnOnce(<W::Granted as Held>::View) -> F,
    ) -> std::result::Result<H::Answer<T>, E>
    where
        F: Future<Output = std::result::Result<T, E>>,
        E: From<Error>,
    {
        let outcome = match self.what.perform().await? {
            Outcome::Granted(held) => Outcome::Granted(run_once(held, work).await??),
            Outcome::Busy => Outcome::Busy,
            Outcome::Timeout(error) => Outcome::Timeout(error),
        };
        Ok(H::answer(outcome)?)
    }
}

impl<W: What<Granted: Held> + Clone> Acquire<W> {
    /// Runs `work` again from its beginning after each loss of the lock, until one run had the lock from its beginning to its end.
    /// So `work` may run more than once, and may stop at any of its awaits.
    ///
    /// If the lock is lost, `work` is dropped unfinished, before another claim can be granted the lock. Then this call queues
    /// again at once and calls `work` again. A run that ends after the loss does not count, nor one whose release finds that
    /// the engine no longer knows the lock. The effects of `work` must allow repetition and be given the
    /// [`token`](GuardView::token). See [`run`](Acquire::run) for work that blocks its thread or spawns tasks.
    ///
    /// If one of several locks is lost, all are released and acquired again.
    ///
    /// The options apply to each acquisition: [`wait`](Acquire::wait) bounds each wait in the queue.
    ///
    /// # Errors
    /// Those of [`Mutex::lock`](crate::Mutex::lock), of any acquisition: the lock is not held then. A release that the engine does
    /// not confirm is no error if the lock was held until then.
    ///
    /// # Cancel safety
    /// That of [`run`](Acquire::run).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let locks = fencepost_core::ClientBuilder::default().connect(&fencepost_core::Registry::new(), "memory:").await?;
    /// use fencepost_core::Eviction;
    ///
    /// let feed = locks.mutex("feed")?;
    /// let (mut runs, operator) = (0, &locks);
    /// let last = feed.lock().reason("feed").run_until_done(|lock| {
    ///     runs += 1;
    ///     let first = runs == 1;
    ///     async move {
    ///         if first {
    ///             operator.evict("feed", lock.token(), &Eviction::default()).await.unwrap();
    ///             std::future::pending::<()>().await; // dropped here: the lock is lost
    ///         }
    ///         lock.token()
    ///     }
    /// });
    /// println!("done under token {}", last.await?);
    /// assert_eq!(runs, 2);
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    pub async fn run_until_done<F: Future>(
        self,
        mut work: impl FnMut(<W::Granted as Held>::View) -> F,
    ) -> Result<F::Output> {
        loop {
            let held = self.clone().await?;
            match run_while_held(&held, work(held.views())).await {
                // The guard is dropped after a loss: its rest at the engine is withdrawn in the background, because the engine may be away.
                Err(_) => drop(held),
                Ok(value) => {
                    if release(held).await.is_ok() {
                        return Ok(value);
                    }
                }
            }
        }
    }
}

/// Runs `work` to its end, or drops it when the lock is lost.
async fn run_while_held<H: Held, W: Future>(held: &H, work: W) -> Result<W::Output> {
    // Dropped here, `work` goes before the guard.
    let value = match select(pin!(held.loss()), pin!(work)).await {
        Either::Left((error, _)) => return Err(error),
        Either::Right((value, _)) => value,
    };
    // The process may have been paused during the last step of `work`.
    held.check().map(|()| value)
}

/// Releases the lock after the work. A release that finds the lock lost is an error, since the work may have run beside another
/// holder's. A release that is not confirmed is none.
async fn release<H: Held>(held: H) -> Result<()> {
    match held.end().await {
        Err(error) if error.is_lost() => Err(error),
        Err(error) => {
            tracing::debug!(%error, "the work is done; its lock ends with the lease");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

async fn run_once<H: Held, W: Future>(held: H, work: impl FnOnce(H::View) -> W) -> Result<W::Output> {
    let value = run_while_held(&held, work(held.views())).await?;
    release(held).await.map(|()| value)
}
