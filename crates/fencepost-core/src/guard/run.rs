//! Work that runs only while a lock is held.

use std::pin::pin;

use futures_util::future::{Either, select};

use crate::acquire::reentrant::{AcquireReentrant, TryAcquireReentrant};
use crate::acquire::{Acquire, TryAcquire};
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::guard::holder::ReentrantGuard;
use crate::guard::multi::MultiGuard;
use crate::guard::view::GuardView;
use crate::lock::{AcquireAll, TryAcquireAll};

/// One lock that is held, or several.
trait Held: Sized {
    /// The argument of the work.
    type View;

    fn view(&self) -> Self::View;
    fn lost(&self) -> impl Future<Output = Error>;
    fn ensure_held(&self) -> Result<()>;
    fn release(self) -> impl Future<Output = Result<()>>;
}

impl Held for Guard {
    type View = GuardView;

    fn view(&self) -> GuardView {
        self.view()
    }

    async fn lost(&self) -> Error {
        let why = Guard::lost(self).await;
        self.lost_error(why)
    }

    fn ensure_held(&self) -> Result<()> {
        Guard::ensure_held(self)
    }

    async fn release(self) -> Result<()> {
        Guard::release(self).await
    }
}

impl Held for ReentrantGuard {
    type View = GuardView;

    fn view(&self) -> GuardView {
        Guard::view(self)
    }

    async fn lost(&self) -> Error {
        Held::lost(&**self).await
    }

    fn ensure_held(&self) -> Result<()> {
        Guard::ensure_held(self)
    }

    async fn release(self) -> Result<()> {
        ReentrantGuard::release(self).await
    }
}

impl Held for MultiGuard {
    type View = Vec<GuardView>;

    fn view(&self) -> Vec<GuardView> {
        self.guards().iter().map(Guard::view).collect()
    }

    async fn lost(&self) -> Error {
        let (guard, why) = self.lost_one().await;
        guard.lost_error(why)
    }

    fn ensure_held(&self) -> Result<()> {
        MultiGuard::ensure_held(self)
    }

    async fn release(self) -> Result<()> {
        MultiGuard::release(self).await
    }
}

impl Acquire<'_> {
    /// Acquires the lock, runs `work`, releases the lock, and returns the result of `work`. This is the usual way to use a lock.
    ///
    /// If the lock is lost first, `work` is dropped at its next await, and the answer is [`is_lost`](Error::is_lost). Work that
    /// blocks its thread has no await: it asks [`ensure_held`](GuardView::ensure_held). Tasks that `work` has spawned go on,
    /// unless they end with what is dropped, as those of a `JoinSet` do. Work that returns a `Result` itself gives `.await??`.
    ///
    /// # Errors
    /// Those of [`Mutex::lock`](crate::Mutex::lock): `work` was not begun. [`is_lost`](Error::is_lost): `work` may have done a
    /// part, or all, while another holder was granted the lock; give [`token`](GuardView::token) to what the lock protects. A
    /// release that the engine does not confirm is no error: the lock is free at the end of its lease at the latest.
    ///
    /// # Cancel safety
    /// Dropped at any await, it drops `work` first. Then it withdraws its place in the queue or its grant, in the background.
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
    pub async fn run<W: Future>(self, work: impl FnOnce(GuardView) -> W) -> Result<W::Output> {
        run_once(self.await?, work).await
    }

    /// Runs `work` again from its beginning after each loss of the lock, until one run had the lock from its beginning to its end.
    /// So `work` may run more than once, and may stop at any of its awaits.
    ///
    /// If the lock is lost, `work` is dropped unfinished, before another claim can be granted the lock. Then this call queues
    /// again at once and calls `work` again. A run that ends after the loss does not count, nor one whose release finds that
    /// the engine no longer knows the lock. The effects of `work` must allow repetition and be given the
    /// [`token`](GuardView::token). See [`run`](Acquire::run) for work that blocks its thread or spawns tasks.
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
    pub async fn run_until_done<W: Future>(self, work: impl FnMut(GuardView) -> W) -> Result<W::Output> {
        run_again(|| Acquire(self.0.clone()), work).await
    }
}

impl TryAcquire<'_> {
    /// Runs `work` if the lock is free, as [`Acquire::run`] does; `None` if it is busy.
    ///
    /// # Errors
    /// Those of [`Mutex::try_lock`](crate::Mutex::try_lock) and of [`Acquire::run`].
    ///
    /// # Cancel safety
    /// That of [`Acquire::run`].
    pub async fn run<W: Future>(self, work: impl FnOnce(GuardView) -> W) -> Result<Option<W::Output>> {
        match self.await? {
            Some(guard) => run_once(guard, work).await.map(Some),
            None => Ok(None),
        }
    }
}

impl AcquireReentrant<'_> {
    /// Enters the lock, runs `work` and leaves the lock, as [`Acquire::run`] does.
    ///
    /// # Errors
    /// Those of [`Acquire::reentrant`] and of [`Acquire::run`].
    ///
    /// # Cancel safety
    /// That of [`Acquire::run`].
    pub async fn run<W: Future>(self, work: impl FnOnce(GuardView) -> W) -> Result<W::Output> {
        run_once(self.await?, work).await
    }
}

impl TryAcquireReentrant<'_> {
    /// Runs `work` if the lock can be entered, as [`TryAcquire::run`] does; `None` if it is busy.
    ///
    /// # Errors
    /// Those of [`Acquire::reentrant`] and of [`Acquire::run`].
    ///
    /// # Cancel safety
    /// That of [`Acquire::run`].
    pub async fn run<W: Future>(self, work: impl FnOnce(GuardView) -> W) -> Result<Option<W::Output>> {
        match self.await? {
            Some(guard) => run_once(guard, work).await.map(Some),
            None => Ok(None),
        }
    }
}

impl AcquireAll<'_> {
    /// Acquires all locks, runs `work`, and releases them, as [`Acquire::run`] does. The loss of one ends `work`.
    ///
    /// # Errors
    /// As for [`Acquire::run`].
    ///
    /// # Cancel safety
    /// That of [`Acquire::run`].
    pub async fn run<W: Future>(self, work: impl FnOnce(Vec<GuardView>) -> W) -> Result<W::Output> {
        run_once(self.await?, work).await
    }

    /// Runs `work` again after each loss, as [`Acquire::run_until_done`] does. If one lock is lost, all are released and acquired
    /// again.
    ///
    /// # Errors
    /// As for [`Acquire::run_until_done`].
    ///
    /// # Cancel safety
    /// That of [`Acquire::run`].
    pub async fn run_until_done<W: Future>(self, work: impl FnMut(Vec<GuardView>) -> W) -> Result<W::Output> {
        run_again(|| self.again(), work).await
    }
}

impl TryAcquireAll<'_> {
    /// Runs `work` if all locks are free, as [`Acquire::run`] does; `None` if one is busy.
    ///
    /// # Errors
    /// As for [`TryAcquire::run`].
    ///
    /// # Cancel safety
    /// That of [`Acquire::run`].
    pub async fn run<W: Future>(self, work: impl FnOnce(Vec<GuardView>) -> W) -> Result<Option<W::Output>> {
        match self.await? {
            Some(guard) => run_once(guard, work).await.map(Some),
            None => Ok(None),
        }
    }
}

/// Runs `work` to its end, or drops it when the lock is lost.
async fn run_while_held<H: Held, W: Future>(held: &H, work: W) -> Result<W::Output> {
    // Dropped here, `work` goes before the guard.
    let value = match select(pin!(held.lost()), pin!(work)).await {
        Either::Left((error, _)) => return Err(error),
        Either::Right((value, _)) => value,
    };
    // The process may have been paused during the last step of `work`.
    held.ensure_held().map(|()| value)
}

/// Releases the lock after the work. A release that finds the lock lost is an error, since the work may have run beside another
/// holder's. A release that is not confirmed is none.
async fn release<H: Held>(held: H) -> Result<()> {
    match held.release().await {
        Err(error) if error.is_lost() => Err(error),
        Err(error) => {
            tracing::debug!(%error, "the work is done; its lock ends with the lease");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

async fn run_once<H: Held, W: Future>(held: H, work: impl FnOnce(H::View) -> W) -> Result<W::Output> {
    let value = run_while_held(&held, work(held.view())).await?;
    release(held).await.map(|()| value)
}

async fn run_again<H, A, W>(acquire: impl Fn() -> A, mut work: impl FnMut(H::View) -> W) -> Result<W::Output>
where
    H: Held,
    A: IntoFuture<Output = Result<H>>,
    W: Future,
{
    loop {
        let held = acquire().into_future().await?;
        match run_while_held(&held, work(held.view())).await {
            // The guard is dropped after a loss: its rest at the engine is withdrawn in the background, for the engine may be away.
            Err(_) => drop(held),
            Ok(value) => {
                if release(held).await.is_ok() {
                    return Ok(value);
                }
            }
        }
    }
}
