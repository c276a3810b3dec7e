//! The thread of a client: renewer, cleaner, timers and the engines' pumps run there, so that a blocked or dropped runtime of the
//! user neither delays a renewal nor leaks a grant.

use crate::sync::Mutex;
use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::error::{Error, ErrorKind, Result};
use crate::runtime::Runtime;
use crate::runtime::spawner::HandleSpawner;
use crate::runtime::timer::Timer;
use crate::time::Clock;

/// How long a client that was dropped goes on cleaning up, at most.
const LAST_CLEANUP: Duration = Duration::from_secs(60);

thread_local! {
    /// This is the thread of a client. A constant without a destructor can be read at any time.
    static OWN: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this is the thread of a client.
pub(crate) fn is_own() -> bool {
    OWN.get()
}

/// A thread with a tokio runtime of its own.
pub(crate) struct Thread {
    /// Sends how long it goes on cleaning up.
    stop: Mutex<Option<oneshot::Sender<Duration>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Thread {
    /// Starts the thread. It ends when it is told to stop, once the cleaner is idle or the time for that is over.
    ///
    /// # Errors
    /// When the system has no thread or descriptor left.
    pub(crate) fn start(label: String, clock: Clock) -> Result<(Thread, Runtime)> {
        let failed = |error: io::Error| {
            Error::new(
                ErrorKind::Configuration,
                "the client's thread cannot start; free threads or descriptors",
            )
            .because(error)
        };
        // The thread first, the runtime after it: a runtime must not be dropped in the caller's async context, where a
        // failing `spawn` would drop it. If the rest fails the channel closes and the thread ends.
        let (start, started) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let wait = move || {
            OWN.set(true);
            if let Ok(run) = started.recv() {
                run();
            }
        };
        let thread = std::thread::Builder::new().name("fencepost".to_owned()).spawn(wait).map_err(failed)?;
        let tokio = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let timer = {
            let _entered = tokio.enter();
            Timer::new()
        };
        let timer = match timer {
            Ok(timer) => timer,
            Err(error) => {
                tokio.shutdown_background();
                return Err(failed(error));
            }
        };
        let runtime = Runtime::new(label, clock.clone(), Arc::new(HandleSpawner(tokio.handle().clone())));
        let (stop, told) = oneshot::channel();
        let cleaner = runtime.cleaner().clone();
        let run = move || {
            tokio.block_on(async move {
                let last = clock.clone();
                tokio::spawn(drive(clock, timer));
                let limit = told.await.unwrap_or(LAST_CLEANUP);
                let until = last.now() + limit;
                last.within(until, cleaner.idle()).await;
                last.stop();
            });
            // A name that is being looked up, by a thread of the runtime's own, is not waited for.
            tokio.shutdown_background();
        };
        // It waits for this, so it is there to take it.
        let _ = start.send(Box::new(run));
        Ok((Thread { stop: Mutex::new(Some(stop)), thread: Mutex::new(Some(thread)) }, runtime))
    }

    /// Tells the thread to stop. It goes on cleaning up for `limit` at most. The first call counts.
    pub(crate) fn stop(&self, limit: Duration) {
        let stop = self.stop.lock().take();
        // One that has ended is not there to take it.
        let _ = stop.map(|stop| stop.send(limit));
    }

    /// Has the thread ended? Joins it if so.
    pub(crate) fn has_ended(&self) -> bool {
        let mut thread = self.thread.lock();
        if thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return false;
        }
        thread.take().map(JoinHandle::join);
        true
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.stop(LAST_CLEANUP);
    }
}

async fn drive(clock: Clock, mut timer: Timer) {
    let mut armed = None;
    poll_fn(|cx| {
        loop {
            let next = clock.poll_drive(cx);
            if next != armed {
                if let Err(error) = timer.arm(&clock, next) {
                    tracing::error!(%error, "the timer cannot be armed; locks of this client will be lost");
                }
                armed = next;
            }
            match timer.poll_fired(cx) {
                Poll::Ready(Ok(())) => armed = None,
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await;
}
