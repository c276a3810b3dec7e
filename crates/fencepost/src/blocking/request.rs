//! Requests for a lock, their options, and work under it.

use std::time::Duration;

use super::drive::complete;
use crate::{
    Acquire, AcquireAll, AcquireReentrant, Begin, GuardView, Holder, Result, TryAcquire, TryAcquireAll,
    TryAcquireReentrant,
};

/// A request for a lock: set options, then [`call`](Request::call) it, or `run` work under the lock.
#[must_use = "nothing is asked for until `call`"]
#[derive(Debug)]
pub struct Request<A>(pub(super) A);

impl<A: IntoFuture<Output = Result<T>>, T: Blocking> Request<A> {
    /// Makes the request, and blocks this thread until the answer is there.
    ///
    /// # Errors
    /// Those of the async request. [`is_invalid`](crate::Error::is_invalid) inside an async task.
    pub fn call(self) -> Result<T::Twin> {
        complete(self.0.into_future()).map(Blocking::into_blocking)
    }
}

/// A result of the async API that has a blocking twin.
pub trait Blocking {
    /// The twin.
    type Twin;

    /// Makes it the twin.
    fn into_blocking(self) -> Self::Twin;
}

impl<T: Blocking> Blocking for Option<T> {
    type Twin = Option<T::Twin>;

    fn into_blocking(self) -> Self::Twin {
        self.map(T::into_blocking)
    }
}

/// The options of an async request.
#[doc(hidden)]
pub trait Options: Sized {
    fn wait(self, wait: Duration) -> Self;
    fn ttl(self, ttl: Duration) -> Self;
    fn no_renewal(self) -> Self;
    fn unfair(self) -> Self;
    fn max_hold(self, max_hold: Duration) -> Self;
    fn evict_overdue(self) -> Self;
    fn at_least(self, at_least: Duration) -> Self;
    fn replicas(self, replicas: u32) -> Self;
    fn holder(self, holder: &Holder) -> Self;
    fn label(self, label: &str) -> Self;
    fn reason(self, reason: &str) -> Self;
}

macro_rules! options {
    ($($request:ident)*) => {$(
        impl Options for $request<'_> {
            fn wait(self, wait: Duration) -> Self {
                self.wait(wait)
            }
            fn ttl(self, ttl: Duration) -> Self {
                self.ttl(ttl)
            }
            fn no_renewal(self) -> Self {
                self.no_renewal()
            }
            fn unfair(self) -> Self {
                self.unfair()
            }
            fn max_hold(self, max_hold: Duration) -> Self {
                self.max_hold(max_hold)
            }
            fn evict_overdue(self) -> Self {
                self.evict_overdue()
            }
            fn at_least(self, at_least: Duration) -> Self {
                self.at_least(at_least)
            }
            fn replicas(self, replicas: u32) -> Self {
                self.replicas(replicas)
            }
            fn holder(self, holder: &Holder) -> Self {
                self.holder(holder)
            }
            fn label(self, label: &str) -> Self {
                self.label(label)
            }
            fn reason(self, reason: &str) -> Self {
                self.reason(reason)
            }
        }
    )*};
}
options!(Acquire TryAcquire AcquireAll TryAcquireAll Begin);

impl<A: Options> Request<A> {
    /// See [`Acquire::wait`].
    pub fn wait(self, wait: Duration) -> Self {
        Request(self.0.wait(wait))
    }

    /// See [`Acquire::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        Request(self.0.ttl(ttl))
    }

    /// See [`Acquire::no_renewal`].
    pub fn no_renewal(self) -> Self {
        Request(self.0.no_renewal())
    }

    /// See [`Acquire::unfair`].
    pub fn unfair(self) -> Self {
        Request(self.0.unfair())
    }

    /// See [`Acquire::max_hold`].
    pub fn max_hold(self, max_hold: Duration) -> Self {
        Request(self.0.max_hold(max_hold))
    }

    /// See [`Acquire::evict_overdue`].
    pub fn evict_overdue(self) -> Self {
        Request(self.0.evict_overdue())
    }

    /// See [`Acquire::at_least`].
    pub fn at_least(self, at_least: Duration) -> Self {
        Request(self.0.at_least(at_least))
    }

    /// See [`Acquire::replicas`].
    pub fn replicas(self, replicas: u32) -> Self {
        Request(self.0.replicas(replicas))
    }

    /// See [`Acquire::holder`].
    pub fn holder(self, holder: &Holder) -> Self {
        Request(self.0.holder(holder))
    }

    /// See [`Acquire::label`].
    pub fn label(self, label: &str) -> Self {
        Request(self.0.label(label))
    }

    /// See [`Acquire::reason`].
    pub fn reason(self, reason: &str) -> Self {
        Request(self.0.reason(reason))
    }
}

impl<'a> Request<Acquire<'a>> {
    /// See [`Acquire::reentrant`].
    pub fn reentrant(self) -> Request<AcquireReentrant<'a>> {
        Request(self.0.reentrant())
    }

    /// See [`Acquire::run_until_done`]. Work that is under way when the lock is lost goes on to its end, and then runs again.
    ///
    /// # Errors
    /// Those of the async call.
    pub fn run_until_done<T>(self, mut work: impl FnMut(GuardView) -> T) -> Result<T> {
        complete(self.0.run_until_done(|lock| {
            let value = work(lock);
            async { value }
        }))
    }
}

impl<'a> Request<TryAcquire<'a>> {
    /// See [`TryAcquire::reentrant`].
    pub fn reentrant(self) -> Request<TryAcquireReentrant<'a>> {
        Request(self.0.reentrant())
    }
}

impl Request<Begin<'_>> {
    /// See [`Begin::wait_until_free`].
    pub fn wait_until_free(self) -> Self {
        Request(self.0.wait_until_free())
    }
}

macro_rules! run {
    ($($request:ident($view:ty) -> $answer:ty;)*) => {$(
        impl Request<$request<'_>> {
            #[doc = concat!("Runs `work` under the lock on this thread: see [`", stringify!($request), "::run`].")]
            /// A loss does not stop `work`, and the answer is an error then.
            ///
            /// # Errors
            /// Those of the async call.
            pub fn run<T>(self, work: impl FnOnce($view) -> T) -> Result<$answer> {
                complete(self.0.run(|lock| async { work(lock) }))
            }
        }
    )*};
}
run! {
    Acquire(GuardView) -> T;
    TryAcquire(GuardView) -> Option<T>;
    AcquireReentrant(GuardView) -> T;
    TryAcquireReentrant(GuardView) -> Option<T>;
    AcquireAll(Vec<GuardView>) -> T;
    TryAcquireAll(Vec<GuardView>) -> Option<T>;
}
