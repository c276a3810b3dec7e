//! A connection's task, and the signs that it is alive.

use fencepost_core::sync::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use fencepost_core::Task;
use tokio::task::AbortHandle;

/// The signs that a connection's task is alive.
pub(crate) struct Pulse {
    /// How often it has been polled.
    polls: AtomicU64,
    /// How many answers have come.
    pub(crate) heard: AtomicU64,
    over: AtomicBool,
    /// See [`Inbox`](crate::conn::connect::Inbox).
    replaced: Arc<AtomicBool>,
    abort: Mutex<Option<AbortHandle>>,
}

impl Pulse {
    /// Starts `task` on the runtime that this is called in; `ended` is called at its end, also when its runtime drops it.
    pub(crate) fn start(
        task: Task,
        replaced: Arc<AtomicBool>,
        ended: impl FnOnce() + Send + 'static,
    ) -> Arc<Pulse> {
        let pulse = Arc::new(Pulse {
            polls: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            over: AtomicBool::new(false),
            replaced,
            abort: Mutex::new(None),
        });
        let end = End { pulse: Arc::clone(&pulse), ended: Some(Box::new(ended)) };
        let task = tokio::spawn(Work { task, end });
        *pulse.abort.lock() = Some(task.abort_handle());
        pulse
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

    pub(crate) fn stop(&self) {
        let abort = self.abort.lock().take();
        if let Some(abort) = abort {
            abort.abort();
        }
    }
}

struct Work {
    task: Task,
    end: End,
}

impl Future for Work {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.end.pulse.polls.fetch_add(1, Ordering::Relaxed);
        self.task.as_mut().poll(cx)
    }
}

/// Tells of the end when it is dropped.
struct End {
    pulse: Arc<Pulse>,
    ended: Option<Box<dyn FnOnce() + Send>>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.pulse.over.store(true, Ordering::SeqCst);
        if let Some(ended) = self.ended.take() {
            ended();
        }
    }
}
