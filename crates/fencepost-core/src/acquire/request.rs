//! The request that users make: what is locked, how it is asked for, and what the answer is.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tracing::Instrument;

use crate::acquire::Outcome;
use crate::acquire::options::{OnBehalf, Options, Single};
use crate::backend::admission::Mode;
use crate::backend::claim_id::ClaimId;
use crate::client::shared::ClientShared;
use crate::error::Result;
use crate::guard::Guard;
use crate::guard::holder::Holder;
use crate::name::Name;
use crate::operator::holder::HolderInfo;

/// A request: set options, then await it, or [`run`](Acquire::run) work under the lock.
///
/// `W` is what it asks for, for example [one lock](Single) or [several](crate::request::Several). `H` says how the request is made, which
/// decides the type of the answer: [`Wait`] or [`Try`].
#[derive(Clone, Debug)]
#[must_use = "nothing is asked for until it is awaited"]
pub struct Acquire<W, H = Wait> {
    pub(crate) what: W,
    how: PhantomData<H>,
}

/// How a request is made. [`Wait`] and [`Try`] are the two ways.
pub trait How: Send + 'static {
    /// The answer to a request that is granted a `T`.
    type Answer<T>;

    /// Whether the request waits although it has no waiting time.
    #[doc(hidden)]
    const WAITS: bool;

    #[doc(hidden)]
    fn answer<T>(outcome: Outcome<T>) -> Result<Self::Answer<T>>;
}

/// The request waits, and the answer is what was granted. See [`Mutex::lock`](crate::Mutex::lock).
#[derive(Clone, Copy, Debug)]
pub enum Wait {}

impl How for Wait {
    type Answer<T> = T;

    const WAITS: bool = true;

    fn answer<T>(outcome: Outcome<T>) -> Result<T> {
        match outcome {
            Outcome::Granted(granted) => Ok(granted),
            Outcome::Busy => unreachable!("a claim in the queue is not answered busy"),
            Outcome::Timeout(error) => Err(error),
        }
    }
}

/// The answer is `None` if the lock is busy: at once, or after the [waiting time](Acquire::wait). See
/// [`Mutex::try_lock`](crate::Mutex::try_lock).
#[derive(Clone, Copy, Debug)]
pub enum Try {}

impl How for Try {
    type Answer<T> = Option<T>;

    const WAITS: bool = false;

    fn answer<T>(outcome: Outcome<T>) -> Result<Option<T>> {
        match outcome {
            Outcome::Granted(granted) => Ok(Some(granted)),
            // The waiting time is over because the lock is busy, or because the engine did not answer.
            Outcome::Timeout(error) if !error.is_timeout() => Err(error),
            Outcome::Busy | Outcome::Timeout(_) => Ok(None),
        }
    }
}

/// What a request asks for. Only this crate implements it.
pub trait What: Send + Sized {
    /// What is granted.
    type Granted: Send;

    /// The request under way. The trait names the type, because a bound such as `W: 'a` in its place would keep `Acquire` from being awaited
    /// in a generic function whose future is spawned.
    type Work: Future<Output = Result<Outcome<Self::Granted>>> + Send + Unpin;

    #[doc(hidden)]
    fn options(&mut self) -> &mut Options;

    /// Makes the request.
    #[doc(hidden)]
    fn perform(self) -> Self::Work;
}

/// A request under way. It is large, and the work under the lock lives beside it.
pub(crate) type Boxed<'a, G> = Pin<Box<dyn Future<Output = Result<Outcome<G>>> + Send + 'a>>;

/// Boxes a request, and makes it in its span.
pub(crate) fn in_span<'a, G>(
    span: tracing::Span,
    work: impl Future<Output = Result<Outcome<G>>> + Send + 'a,
) -> Boxed<'a, G> {
    if span.is_disabled() { Box::pin(work) } else { Box::pin(work.instrument(span)) }
}

/// A request that makes one claim with a run or a grant of its own, which a service can make on behalf of another program.
pub trait OneClaim: What {
    #[doc(hidden)]
    fn on_behalf(&mut self) -> &mut OnBehalf;
}

impl<'a> What for Single<'a> {
    type Granted = Guard;
    type Work = Boxed<'a, Guard>;

    fn options(&mut self) -> &mut Options {
        &mut self.options
    }

    fn perform(self) -> Self::Work {
        in_span(self.span(), self.run())
    }
}

impl Single<'_> {
    pub(crate) fn span(&self) -> tracing::Span {
        match self.join {
            true => tracing::debug_span!("lock", name = %self.name, mode = %self.mode),
            false => tracing::debug_span!("try_lock", name = %self.name, mode = %self.mode),
        }
    }
}

impl OneClaim for Single<'_> {
    fn on_behalf(&mut self) -> &mut OnBehalf {
        &mut self.on_behalf
    }
}

impl<'a, H: How> Acquire<Single<'a>, H> {
    pub(crate) fn new(client: &'a Arc<ClientShared>, name: &'a Name, mode: Mode) -> Self {
        Acquire::of(Single::new(client, name, mode, H::WAITS))
    }
}

impl<W: What, H: How> Acquire<W, H> {
    /// The request for `what`, whose option `join` says whether it waits.
    pub(crate) fn of(what: W) -> Self {
        Acquire { what, how: PhantomData }
    }
}

impl<W: What, H: How> IntoFuture for Acquire<W, H> {
    type Output = Result<H::Answer<W::Granted>>;
    type IntoFuture = Asking<W, H>;

    fn into_future(self) -> Asking<W, H> {
        Asking { work: self.what.perform(), how: PhantomData }
    }
}

/// A request under way: the future of an [`Acquire`].
#[must_use = "nothing is asked for until it is polled"]
pub struct Asking<W: What, H> {
    work: W::Work,
    how: PhantomData<fn() -> H>,
}

impl<W: What, H> fmt::Debug for Asking<W, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asking").finish_non_exhaustive()
    }
}

impl<W: What, H: How> Future for Asking<W, H> {
    type Output = Result<H::Answer<W::Granted>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.work).poll(cx).map(|outcome| H::answer(outcome?))
    }
}

impl<W: What, H> Acquire<W, H> {
    /// Waits at most `wait`, connecting and retries included. When the time is over, a request that [waits](Wait) fails with an error
    /// that [`is_timeout`](crate::Error::is_timeout) and names who holds the lock, and one that [tries](Try) answers `None`.
    ///
    /// One attempt is always made, also with a waiting time of zero, and may take as long as
    /// [`attempt_timeout`](crate::ClientBuilder::attempt_timeout). So the call returns after the longer of the two. An engine
    /// that says nothing in that time is an error, which [`is_unreachable`](crate::Error::is_unreachable): a lock
    /// is called busy only where the engine said so.
    #[doc(alias("waitTime", "acquire_timeout", "blocking_timeout", "tryLock"))]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.what.options().wait = Some(wait);
        self.what.options().join = true;
        self
    }

    /// Sets the length of the lease. The client renews the lease at a third of it as long as the guard lives.
    #[doc(alias("leaseTime", "lockAtMostFor", "lockWatchdogTimeout", "expiry"))]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.what.options().ttl = Some(ttl);
        self
    }

    /// Does not renew the lease: it ends `ttl` after the grant, unless the guard is [extended](crate::Guard::extend).
    #[doc(alias("watchdog", "leaseTime", "tryLock"))]
    pub fn no_renewal(mut self) -> Self {
        self.what.options().fixed = true;
        self
    }

    /// Ends the grant this long after it was made, however often it is renewed. The holder is told first
    /// ([`Loss::MaxHold`](crate::Loss::MaxHold)), then the client releases the lock: work that hangs keeps nobody waiting.
    ///
    /// Work that does not ask whether the lock is held goes on, as after each loss. In a process that is stopped, the lock ends
    /// with its lease. Operators see this limit beside the grant, and evict a holder that is
    /// [past it](crate::ClaimInfo::is_overdue). It applies to leases that are renewed: a fixed one has its [`ttl`](Self::ttl).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let locks = fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await?;
    /// use fencepost_core::Loss;
    /// use std::time::Duration;
    ///
    /// let stock = locks.mutex("stock/42")?;
    /// let guard = stock.lock().max_hold(Duration::from_millis(50)).await?;
    /// assert_eq!(guard.lost().await, Loss::MaxHold);
    /// stock.lock().await?.release().await?; // free, although the first guard is still there
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    #[doc(alias("lockAtMostFor", "timeout"))]
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.what.options().max_hold = Some(max_hold);
        self
    }

    /// Evicts holders that are [overdue](crate::ClaimInfo::is_overdue) for 2 s while the claim waits, as an operator does it. Such
    /// a holder hangs, although its lease is renewed. It is told, and the next grant follows its release or the end of its
    /// lease. A holder that has no [`max_hold`](Self::max_hold) is never evicted.
    ///
    /// Where the engine keeps [the arrival](crate::ClaimInfo::from_arrival) alone, the clocks of two hosts would decide, and one
    /// of them may be wrong. There the claim evicts a holder that it has watched for `max_hold` and 2 s itself.
    ///
    /// A claim that is granted at once costs no request. One that waits looks at the holders after 1 s, and when the next of them
    /// is overdue. In between it looks after pauses that double from 2 s to 60 s. A look or an eviction that fails does not end
    /// the wait. A request that does not wait, and an engine that cannot inspect and evict, are refused.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let registry = fencepost_core::Registry::new();
    /// # let builder = fencepost_core::Client::builder().max_hold_hint(std::time::Duration::from_millis(50));
    /// # let locks = builder.connect(&registry, "memory:").await?;
    /// use fencepost_core::Loss;
    ///
    /// let stock = locks.mutex("stock/42")?;
    /// let hangs = stock.lock().await?; // its program has announced to end it within 50 ms, and does not
    /// let (next, lost) = tokio::join!(async { stock.lock().evict_overdue().await }, async {
    ///     let lost = hangs.lost().await;
    ///     drop(hangs);
    ///     lost
    /// });
    /// assert_eq!(lost, Loss::Evicted);
    /// next?.release().await?;
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    #[doc(alias("steal", "break_lock"))]
    pub fn evict_overdue(mut self) -> Self {
        self.what.options().evict_overdue = true;
        self
    }

    /// Keeps the lock at least this long after it was granted. A release or drop before that returns at once, and the client
    /// releases the lock later. So the second of two programs that start nearly together finds the lock busy.
    ///
    /// The client has to live that long: its [`close`](crate::Client::close), or the end of its process, frees the lock
    /// sooner. A lease that is [not renewed](Acquire::no_renewal) has to be as long: otherwise the request is
    /// [invalid](crate::Error::is_invalid).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let locks = fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await?;
    /// use std::time::Duration;
    ///
    /// let report = locks.mutex("nightly report")?;
    /// report.lock().at_least(Duration::from_secs(60)).run(|_| async { /* a short job */ }).await?;
    /// assert!(report.try_lock().await?.is_none());
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    #[doc(alias("lockAtLeastFor"))]
    pub fn at_least(mut self, at_least: Duration) -> Self {
        self.what.options().at_least = Some(at_least);
        self
    }

    /// Passes the claims that wait: if the lock can be held beside the present holders, it is granted at once. A reader passes a
    /// writer that waits, and a claim for one permit passes one for ten. Otherwise the request waits in the order of arrival, as
    /// any other. It never passes an [upgrade](crate::Guard::upgrade) that waits. An engine
    /// [without it](crate::Capabilities::barging) refuses.
    ///
    /// With enough of these requests, a claim that they pass may never get its turn.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let locks = fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await?;
    /// use std::time::Duration;
    ///
    /// let prices = locks.rwlock("prices")?;
    /// let first = prices.read().await?;
    /// let writer = prices.clone();
    /// let writer = async move { writer.write().wait(Duration::from_millis(50)).await };
    /// let reader = async {
    ///     assert!(prices.try_read().await?.is_none(), "the writer waits before it");
    ///     prices.try_read().unfair().await
    /// };
    /// let (writer, reader) = tokio::join!(writer, reader);
    /// assert!(writer.is_err() && reader?.is_some());
    /// # drop(first);
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    #[doc(alias("barging", "nonfair", "preferred"))]
    pub fn unfair(mut self) -> Self {
        self.what.options().unfair = true;
        self
    }

    /// The grant counts only when so many replicas of the engine have it: else it is given back, and the answer is an
    /// error. A renewal that fewer have is none: the lock is lost at the end of its lease if that goes on. Zero:
    /// none. An engine [without replicas](crate::Capabilities::replicas) refuses.
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.what.options().replicas = Some(replicas);
        self
    }

    /// Makes it a request of this holder: see [`Holder`].
    pub fn holder(mut self, holder: &Holder) -> Self {
        self.what.options().by = Some(holder.clone());
        self
    }

    /// How this holder is shown to operators, instead of the client's label: up to
    /// [`HolderInfo::MAX_BYTES`](crate::HolderInfo::MAX_BYTES).
    pub fn label(mut self, label: &str) -> Self {
        self.what.options().holder = Some(HolderInfo::labelled(label));
        self
    }

    /// Sets the reason that operators see, in up to [`HolderInfo::MAX_BYTES`](crate::HolderInfo::MAX_BYTES).
    pub fn reason(mut self, reason: &str) -> Self {
        self.what.options().reason = Some(reason.into());
        self
    }
}

/// What a service needs that asks on behalf of another program.
impl<H: How> Acquire<Single<'_>, H> {
    /// Has the engine keep no run of the grant, also if the client asks for a [history](crate::ClientBuilder::history): for locks that
    /// are a part of something else.
    pub fn without_run(mut self) -> Self {
        self.what.history = None;
        self
    }
}

impl<W: OneClaim, H: How> Acquire<W, H> {
    /// Makes the claim with this id, so that a program that knows the id can find the grant: see
    /// [`DetachedLease::of`](crate::DetachedLease::of). One claim has an id, never two. So a claim whose position or grant is gone fails
    /// ([`is_lost`](crate::Error::is_lost)) and does not queue again.
    pub fn claim_id(mut self, id: ClaimId) -> Self {
        self.what.on_behalf().id = Some(id);
        self
    }

    /// Calls `tell` when the claim waits, at the engine or behind others of this client, and again after each later attempt that
    /// finds it waiting.
    pub fn on_queued(mut self, tell: impl Fn() + Send + Sync + 'static) -> Self {
        self.what.on_behalf().queued = Some(Arc::new(tell));
        self
    }

    /// Shows this holder to operators, for a service that asks on behalf of another process, and the longest hold and wait that the
    /// process itself keeps. The holder's label has up to [`HolderInfo::MAX_BYTES`](crate::HolderInfo::MAX_BYTES).
    pub fn on_behalf_of(
        mut self,
        holder: HolderInfo,
        max_hold: Option<Duration>,
        max_wait: Option<Duration>,
    ) -> Self {
        self.what.options().holder = Some(Arc::new(holder));
        self.what.on_behalf().shown_limits = Some((max_hold, max_wait));
        self
    }
}
