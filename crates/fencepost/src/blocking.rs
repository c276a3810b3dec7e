//! The calls of a program without an async runtime: [`block`](Block::block) in place of `.await`.

use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use tokio::runtime::Handle;
use tokio::task::coop::poll_proceed;

use crate::{Error, ErrorKind, Loss, Name, Result, State};

/// Completes any call of this crate on the calling thread, for programs without an async runtime.
///
/// ```
/// use fencepost::{Block, Locks};
/// use std::time::Duration;
///
/// let locks = Locks::connect("memory:").block()?;
/// let stock = locks.mutex("stock/42")?;
///
/// let guard = stock.lock().wait(Duration::from_secs(5)).block()?; // `block` in place of `.await`
/// println!("fencing token {}", guard.token());
/// guard.release().block()?; // or drop it
///
/// let sold = stock.lock().run(async |lock| lock.token()).block()?; // fails if the lock was lost meanwhile
/// # let _ = sold;
/// # Ok::<(), fencepost::Error>(())
/// ```
///
/// # What is guaranteed
/// - A call has the same limits and answers as with `.await`: the client's own thread does its requests and keeps the time. No runtime is
///   started.
/// - Guards are `Send`: any thread may use or drop them, also one of `spawn_blocking` and one inside `block_in_place`.
/// - A call inside an async task of tokio is refused ([`is_invalid`](Error::is_invalid)), because it would block the thread of the task.
///
/// # What is not
/// - Work that blocks its thread is not stopped when its lock is lost: it asks [`ensure_held`](crate::GuardView::ensure_held). If the lock
///   was lost, `run` returns an error when the work has ended.
/// - The tasks of other runtimes are not found, nor those inside `tokio::task::unconstrained`. A call there blocks their thread.
pub trait Block: IntoFuture<Output: Answer> + Sized {
    /// Completes the call on this thread, which sleeps meanwhile.
    ///
    /// # Errors
    /// Those of the call. [`is_invalid`](Error::is_invalid) inside an async task: the call was not begun.
    fn block(self) -> Answered<Self::Output> {
        complete(self.into_future()).and_then(Answer::into_result)
    }
}

impl<F: IntoFuture<Output: Answer>> Block for F {}

/// What [`block`](Block::block) returns for an answer.
pub type Answered<A> = std::result::Result<<A as Answer>::Value, <A as Answer>::Error>;

/// An answer of an async call, which may be an error itself.
pub trait Answer {
    /// What a successful call returns.
    type Value;
    /// The error of the call.
    type Error: From<Error>;

    #[doc(hidden)]
    fn into_result(self) -> Answered<Self>;
}

impl<T, E: From<Error>> Answer for std::result::Result<T, E> {
    type Value = T;
    type Error = E;

    fn into_result(self) -> Answered<Self> {
        self
    }
}

impl<T, E: From<Error>> Answer for Option<std::result::Result<T, E>> {
    type Value = Option<T>;
    type Error = E;

    fn into_result(self) -> Answered<Self> {
        self.transpose()
    }
}

macro_rules! cannot_fail {
    ($($type:ty),*) => {$(
        impl Answer for $type {
            type Value = $type;
            type Error = Error;

            fn into_result(self) -> Result<$type> {
                Ok(self)
            }
        }
    )*};
}
cannot_fail!((), Loss, State, (Name, Loss));

/// More steps than a task of tokio may do before it has to yield: 128.
const STEPS: usize = 256;

/// Polls `future` on this thread until it is ready.
fn complete<F: Future, E: From<Error>>(future: F) -> std::result::Result<F::Output, E> {
    if is_in_task() {
        let message = "a blocking call inside an async task would block its thread; use `.await`, or call it in \
                       tokio::task::spawn_blocking";
        return Err(Error::new(ErrorKind::Invalid, message).into());
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

/// Wakes the thread that waits. It does not park, because the token of parking belongs to the caller.
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
