//! Drives a future on the calling thread.

use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use tokio::runtime::Handle;
use tokio::task::coop::poll_proceed;

use crate::{Error, Result};

/// More steps than a task of tokio may do before it has to yield: 128.
const STEPS: usize = 256;

/// Completes `future` on this thread, which sleeps meanwhile. The client's own thread, or that of the runtime that the client was made
/// in, does its requests and keeps its time.
///
/// # Errors
/// [`is_invalid`](Error::is_invalid) inside an async task: `future` was not begun.
pub(super) fn drive<F: Future>(future: F) -> Result<F::Output> {
    if is_in_task() {
        let message = "a blocking call inside an async task would block its thread; use the async API, or call it in \
                       tokio::task::spawn_blocking";
        return Err(Error::new(crate::ErrorKind::Invalid, message));
    }
    let (mut future, wakes) = (pin!(future), Arc::new(Wakes::default()));
    let waker = Waker::from(Arc::clone(&wakes));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return Ok(value);
        }
        wakes.wait();
    }
}

/// Completes a future that can fail itself.
///
/// # Errors
/// Those of [`drive`] and of `future`.
pub(super) fn complete<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    drive(future)?
}

/// Whether this code is polled by tokio. A thread of `spawn_blocking` has a runtime, too, but only a task has a limited number of
/// steps. The steps that are taken here are given back.
fn is_in_task() -> bool {
    if Handle::try_current().is_err() {
        return false;
    }
    let mut context = Context::from_waker(Waker::noop());
    let mut steps = Vec::with_capacity(STEPS);
    let mut limited = false;
    while steps.len() < STEPS && !limited {
        match poll_proceed(&mut context) {
            Poll::Ready(step) => steps.push(step),
            Poll::Pending => limited = true,
        }
    }
    // Each one restores the number from before it, so the first goes last.
    while steps.pop().is_some() {}
    limited
}

/// Wakes the thread that waits. It does not park: the token of that belongs to the caller.
#[derive(Default)]
struct Wakes {
    woken: Mutex<bool>,
    told: Condvar,
}

impl Wakes {
    fn wait(&self) {
        let woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        // A future of the client ends by the client's clock, so this wait does, too.
        let woken = self.told.wait_while(woken, |woken| !*woken);
        *woken.unwrap_or_else(PoisonError::into_inner) = false;
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Wakes>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Wakes>) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.told.notify_one();
    }
}
