//! Cleanup that nobody waits for any more.

use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::host::Host;

/// Finishes what was dropped, on the client's own thread: never on the caller's runtime, which may be gone, and never under the
/// caller's cancellation. The first poll happens at once, in the caller's `drop`, so that a request is on its way.
#[derive(Clone)]
pub struct Reaper(Arc<Inner>);

struct Inner {
    host: Arc<dyn Host>,
    pending: AtomicUsize,
    idle: Mutex<Vec<Waker>>,
}

impl Reaper {
    pub(crate) fn new(host: Arc<dyn Host>) -> Reaper {
        Reaper(Arc::new(Inner { host, pending: AtomicUsize::new(0), idle: Mutex::default() }))
    }

    /// Polls `work` at once and, if it is not done by that, on the host until it is.
    pub fn finish(&self, work: impl Future<Output = ()> + Send + 'static) {
        let pending = self.pending();
        let mut job = Box::pin(async move {
            work.await;
            drop(pending);
        });
        if job.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.0.host.spawn(job);
        }
    }

    /// How many cleanups are under way.
    pub fn backlog(&self) -> usize {
        self.0.pending.load(Ordering::SeqCst)
    }

    /// Completes when nothing is left to clean up.
    ///
    /// # Cancel safety
    /// Safe; cleanup goes on.
    pub async fn idle(&self) {
        poll_fn(|cx| {
            let mut idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner);
            if self.backlog() == 0 {
                return Poll::Ready(());
            }
            idle.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn pending(&self) -> Pending {
        self.0.pending.fetch_add(1, Ordering::SeqCst);
        Pending(Arc::clone(&self.0))
    }
}

/// One cleanup; counted out when dropped, be it that its host stopped.
struct Pending(Arc<Inner>);

impl Drop for Pending {
    fn drop(&mut self) {
        let mut idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if self.0.pending.fetch_sub(1, Ordering::SeqCst) == 1 {
            let wakers = std::mem::take(&mut *idle);
            drop(idle);
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}
