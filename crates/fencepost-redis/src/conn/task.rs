//! A connection's task, and the signs that it is alive.

use fencepost_core::sync::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use fencepost_core::Task;
use tokio::task::AbortHandle;

/// The signs that a connection's task is alive.
pub(crate) struct Liveness {
    /// How often it has been polled.
    polls: AtomicU64,
    /// How many answers have come.
    pub(crate) heard: AtomicU64,
    over: AtomicBool,
    /// See [`Inbox`](crate::conn::connect::Inbox).
    replaced: Arc<AtomicBool>,
    abort: Mutex<Option<AbortHandle>>,
    /// The work itself. `None`: it ended or was stopped.
    work: Mutex<Option<Task>>,
}

impl Liveness {
    /// Starts `task` on the runtime that this is called in; `ended` is called at its end, also when its runtime drops it.
    pub(crate) fn start(
        task: Task,
        replaced: Arc<AtomicBool>,
        ended: impl FnOnce() + Send + 'static,
    ) -> Arc<Liveness> {
        let liveness = Arc::new(Liveness {
            polls: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            over: AtomicBool::new(false),
            replaced,
            abort: Mutex::new(None),
            work: Mutex::new(Some(task)),
        });
        let end = End { liveness: Arc::clone(&liveness), ended: Some(Box::new(ended)) };
        let task = tokio::spawn(Work { end });
        *liveness.abort.lock() = Some(task.abort_handle());
        liveness
    }

    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Has the server said that its data was replaced? Later replies do not count.
    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::SeqCst)
    }

    /// Ends the task. Its requests without a reply fail, even where its runtime is blocked and polls no task any more.
    pub(crate) fn stop(&self) {
        let abort = self.abort.lock().take();
        if let Some(abort) = abort {
            abort.abort();
        }
        // A runtime that polls it now is not blocked, and drops it after this poll.
        let work = self.work.try_lock().and_then(|mut work| work.take());
        drop(work);
    }
}

struct Work {
    end: End,
}

impl Future for Work {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let liveness = &self.end.liveness;
        liveness.polls.fetch_add(1, Ordering::Relaxed);
        match &mut *liveness.work.lock() {
            Some(work) => work.as_mut().poll(cx),
            None => Poll::Ready(()),
        }
    }
}

/// Tells of the end when it is dropped.
struct End {
    liveness: Arc<Liveness>,
    ended: Option<Box<dyn FnOnce() + Send>>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.liveness.over.store(true, Ordering::SeqCst);
        let work = self.liveness.work.lock().take();
        drop(work);
        if let Some(ended) = self.ended.take() {
            ended();
        }
    }
}

/// A task that is aborted on drop.
pub(crate) struct Aborted(pub(crate) AbortHandle);

impl Drop for Aborted {
    fn drop(&mut self) {
        self.0.abort();
    }
}
