//! Work that goes on only while a lock is held, and begins anew when it was lost.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use crate::acquire::Acquire;
use crate::error::Result;
use crate::guard::Guard;
use crate::guard::view::GuardView;
use crate::lock::{AcquireAll, MultiGuard};

/// What is held: one lock, or several.
trait Grip: Sized {
    /// What the work is told of it.
    type View;

    fn view(&self) -> Self::View;
    fn lost(&self) -> impl Future<Output = ()>;
    fn ensure_held(&self) -> Result<()>;
    fn release(self) -> impl Future<Output = Result<()>>;
}

impl Grip for Guard {
    type View = GuardView;

    fn view(&self) -> GuardView {
        self.view()
    }

    async fn lost(&self) {
        Guard::lost(self).await;
    }

    fn ensure_held(&self) -> Result<()> {
        Guard::ensure_held(self)
    }

    async fn release(self) -> Result<()> {
        Guard::release(self).await
    }
}

impl Grip for MultiGuard {
    type View = Vec<GuardView>;

    fn view(&self) -> Vec<GuardView> {
        self.guards().iter().map(Guard::view).collect()
    }

    async fn lost(&self) {
        MultiGuard::lost(self).await;
    }

    fn ensure_held(&self) -> Result<()> {
        MultiGuard::ensure_held(self)
    }

    async fn release(self) -> Result<()> {
        MultiGuard::release(self).await
    }
}

impl Acquire<'_> {
    /// Waits for the lock and runs `work` under it. If the lock is lost, `work` is dropped unfinished, before anybody else can be granted
    /// the lock; then it stands in line again at once, and `work` is called anew. When a run of `work` ends under the
    /// lock, the lock is released, and this ends with its result.
    ///
    /// The result is that of a run which had the lock from its beginning to its end: one that ends after the loss, or just before the
    /// release finds that the engine knows the lock no more, does not count, and `work` begins anew. So `work` may run more than once,
    /// or stop at any of its awaits; what it does to the outside should bear that, and be given the [`token`](GuardView::token). Work that
    /// blocks its thread is not dropped before its next await: let it ask [`ensure_held`](GuardView::ensure_held). What it has spawned goes on,
    /// unless that ends with what is dropped (as a `JoinSet` does).
    ///
    /// The options are those of each acquisition: [`wait`](Acquire::wait) bounds every stay in line, the first one and each after a loss.
    ///
    /// # Errors
    /// Those of [`Mutex::lock`](crate::Mutex::lock), of any acquisition: the lock is not held then. What the engine says to the release is
    /// none, if the lock was held until then: it is free at the end of its lease at the latest.
    ///
    /// # Cancel safety
    /// Dropped at any await it drops `work` first, and leaves nothing behind: its place in line, or its grant, is withdrawn in the background.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let locks = fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await?;
    /// use fencepost_core::Eviction;
    ///
    /// let feed = locks.mutex("feed")?;
    /// let (mut runs, operator) = (0, &locks);
    /// let last = feed.lock().reason("feed").hold_while(|held| {
    ///     runs += 1;
    ///     let first = runs == 1;
    ///     async move {
    ///         if first {
    ///             operator.evict("feed", held.token(), &Eviction::default()).await.unwrap();
    ///             std::future::pending::<()>().await; // dropped here: the lock is lost
    ///         }
    ///         held.token()
    ///     }
    /// });
    /// println!("done under token {}", last.await?);
    /// assert_eq!(runs, 2);
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    pub async fn hold_while<W: Future>(self, work: impl FnMut(GuardView) -> W) -> Result<W::Output> {
        held_while(|| Acquire(self.0.clone()), work).await
    }
}

impl AcquireAll<'_> {
    /// As [`Acquire::hold_while`], for all of them: if one is lost, all are given up and waited for again.
    ///
    /// # Errors
    /// As for [`Acquire::hold_while`].
    ///
    /// # Cancel safety
    /// That of [`Acquire::hold_while`].
    pub async fn hold_while<W: Future>(self, work: impl FnMut(Vec<GuardView>) -> W) -> Result<W::Output> {
        held_while(|| self.again(), work).await
    }
}

async fn held_while<G, A, W>(acquire: impl Fn() -> A, mut work: impl FnMut(G::View) -> W) -> Result<W::Output>
where
    G: Grip,
    A: IntoFuture<Output = Result<G>>,
    W: Future,
{
    loop {
        let guard = acquire().into_future().await?;
        // Dropped here, the work goes before the guard.
        let done = {
            let (mut lost, mut work) = (pin!(guard.lost()), pin!(work(guard.view())));
            poll_fn(|cx| match lost.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(None),
                Poll::Pending => work.as_mut().poll(cx).map(Some),
            })
            .await
        };
        match done {
            // It may have been paused in its last step.
            Some(value) if guard.ensure_held().is_ok() => match guard.release().await {
                Err(error) if error.is_lost() => {}
                Ok(()) => return Ok(value),
                Err(error) => {
                    tracing::debug!(%error, "the work is done; its lock ends with the lease");
                    return Ok(value);
                }
            },
            // What is left of it at the engine goes in the background: nobody waits for an engine that may be away.
            _ => drop(guard),
        }
    }
}
