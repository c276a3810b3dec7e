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

/// What a service needs that asks on behalf of another program.
impl<W: OneClaim, H: How> Acquire<W, H> {
    /// Makes the claim with this id, so that a program that knows the id can find the grant: see
    /// [`DetachedLease::of`](crate::DetachedLease::of). One claim has an id, never two. So a claim whose place or grant is gone fails
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
