//! A connection's task, and the signs that it is alive.

use fencepost_core::sync::Mutex;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use fencepost_core::{Clock, Moment, Task};
use tokio::task::AbortHandle;

/// The signs that a connection's task is alive.
pub(crate) struct Liveness {
    /// How often it has been polled.
    polls: AtomicU64,
    /// How many answers have come.
    pub(crate) heard: AtomicU64,
    over: AtomicBool,
    /// Wakes those who wait for answers when it is over.
    clock: Clock,
    /// See [`Inbox`](crate::conn::connect::Inbox).
    replaced: Arc<AtomicBool>,
    abort: Mutex<Option<AbortHandle>>,
    /// The work itself. `None`: it ended or was stopped.
    work: Mutex<Option<Task>>,
}

/// Why a request has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoAnswer {
    /// The connection has ended.
    Ended,
    /// The time is over.
    Late,
}

impl Liveness {
    /// Starts `task` on the runtime that this is called in; `ended` is called at its end, also when its runtime drops it.
    pub(crate) fn start(
        clock: &Clock,
        task: Task,
        replaced: Arc<AtomicBool>,
        ended: impl FnOnce() + Send + 'static,
    ) -> Arc<Liveness> {
        let liveness = Arc::new(Liveness {
            polls: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            over: AtomicBool::new(false),
            clock: clock.clone(),
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

    /// Waits until `until` for the driver's answer to a request, or until the connection ends.
    ///
    /// The driver itself fails the requests that it has when it ends. But one that is sent at that moment may stay in its queue, which nobody
    /// reads any more, and which the asker's own handle keeps from being dropped: `tokio::sync::mpsc` accepts a message while its receiver
    /// is being dropped, and then neither the channel nor the receiver drops it.
    pub(crate) async fn answer<T>(
        &self,
        until: Moment,
        asked: impl Future<Output = T>,
    ) -> Result<T, NoAnswer> {
        let mut answer = pin!(self.clock.within(until, asked));
        poll_fn(|cx| {
            let mut polled = answer.as_mut().poll(cx);
            // Looked at when it sleeps, because the end wakes those that sleep.
            if polled.is_pending() && self.is_over() {
                // The answer may have come before the end.
                polled = answer.as_mut().poll(cx);
                if polled.is_pending() {
                    return Poll::Ready(Err(NoAnswer::Ended));
                }
            }
            polled.map(|answer| answer.ok_or(NoAnswer::Late))
        })
        .await
    }

    fn end(&self, work: Option<Task>) {
        self.over.store(true, Ordering::SeqCst);
        drop(work);
        self.clock.wake_all();
    }

    /// Ends the task. Its requests without a reply fail, even where its runtime is blocked and polls no task any more.
    pub(crate) fn stop(&self) {
        let abort = self.abort.lock().take();
        if let Some(abort) = abort {
            abort.abort();
        }
        // A runtime that polls it now is not blocked, and drops it after this poll.
        let work = self.work.try_lock().and_then(|mut work| work.take());
        if work.is_some() {
            self.end(work);
        }
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
        let work = self.liveness.work.lock().take();
        self.liveness.end(work);
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

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    type Asked = tokio::task::JoinHandle<Result<(), NoAnswer>>;

    /// Waits for the answer to a request that the driver has forgotten. Returns the waiting task, which sleeps by now.
    async fn forgotten(liveness: &Arc<Liveness>, until: Moment) -> Asked {
        let (tell, told) = oneshot::channel();
        let liveness = Arc::clone(liveness);
        let asked = tokio::spawn(async move {
            let request = async {
                tell.send(()).expect("the test waits for it");
                pending().await
            };
            liveness.answer(until, request).await
        });
        told.await.expect("it asks");
        asked
    }

    async fn result(asked: Asked) -> Result<(), NoAnswer> {
        let asked = tokio::time::timeout(Duration::from_secs(5), asked).await;
        asked.expect("the end wakes it").expect("it does not panic")
    }

    #[tokio::test]
    async fn a_request_that_the_driver_has_forgotten_ends_with_its_connection() {
        let clock = Clock::manual();
        let until = clock.now() + Duration::from_secs(2);
        // By itself.
        let (end, ended) = oneshot::channel::<()>();
        let task: Task = Box::pin(async { drop(ended.await) });
        let liveness = Liveness::start(&clock, task, Arc::default(), || {});
        let asked = forgotten(&liveness, until).await;
        drop(end);
        assert_eq!(result(asked).await, Err(NoAnswer::Ended));
        // By a decision, although its runtime does not run it any more.
        let liveness = Liveness::start(&clock, Box::pin(pending()), Arc::default(), || {});
        let asked = forgotten(&liveness, until).await;
        liveness.stop();
        assert!(liveness.is_over(), "before anything else runs");
        assert_eq!(result(asked).await, Err(NoAnswer::Ended));
        assert_eq!(liveness.answer(until, ready(())).await, Ok(()), "an answer that is there counts");
    }

    #[tokio::test]
    async fn a_request_has_until_its_time_is_over() {
        let clock = Clock::manual();
        let until = clock.now() + Duration::from_secs(2);
        let liveness = Liveness::start(&clock, Box::pin(pending()), Arc::default(), || {});
        let asked = forgotten(&liveness, until).await;
        clock.wake_all();
        tokio::task::yield_now().await;
        assert!(!asked.is_finished(), "it sleeps again");
        clock.advance_to(until);
        assert_eq!(result(asked).await, Err(NoAnswer::Late));
        liveness.stop();
    }
}
