//! Requests for a lock and their options.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{Acquire, What};
use crate::backend::admission::Mode;
use crate::backend::claim_id::ClaimId;
use crate::client::shared::ClientShared;
use crate::error::{Error, Result};
use crate::guard::holder::Holder;
use crate::name::Name;
use crate::operator::holder::HolderInfo;
use crate::time::Moment;

/// A request for one lock: what [`Acquire`] asks for by default.
#[derive(Clone)]
pub struct Single<'a> {
    pub(crate) client: &'a Arc<ClientShared>,
    pub(crate) name: &'a Name,
    pub(crate) mode: Mode,
    pub(crate) options: Options,
    /// When the call began; `None`: it begins when it is first polled.
    pub(crate) began: Option<Moment>,
    pub(crate) read_write: bool,
    /// How long the engine keeps the run. `None`: it keeps none.
    pub(crate) history: Option<Duration>,
    /// Its work rests on the record of its run.
    pub(crate) needs_run: bool,
    pub(crate) on_behalf: OnBehalf,
}

/// What a service sets that asks on behalf of another program.
#[derive(Clone, Default)]
pub struct OnBehalf {
    /// The id of its claim. `None`: a fresh one for each turn.
    pub(crate) id: Option<ClaimId>,
    /// Is called when its claim is queued.
    pub(crate) queued: Option<Arc<dyn Fn() + Send + Sync>>,
    /// The longest hold and wait as operators see them. `None`: those of the request.
    pub(crate) shown_limits: Option<(Option<Duration>, Option<Duration>)>,
}

/// The options of a request, for one name or several.
#[derive(Clone, Default, Debug)]
pub struct Options {
    /// `None`: that of the client.
    pub(crate) ttl: Option<Duration>,
    /// The lease is not renewed.
    pub(crate) fixed: bool,
    /// None: no bound of the caller's.
    pub(crate) wait: Option<Duration>,
    pub(crate) join: bool,
    pub(crate) unfair: bool,
    /// `None`: the number of the client.
    pub(crate) replicas: Option<u32>,
    pub(crate) at_least: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) evict_overdue: bool,
    /// The holder that asks. `None`: that of the present scope, if there is one.
    pub(crate) by: Option<Holder>,
    pub(crate) holder: Option<Arc<HolderInfo>>,
    pub(crate) reason: Option<Arc<str>>,
}

#[doc(hidden)]
impl Deref for Single<'_> {
    type Target = Options;

    fn deref(&self) -> &Options {
        &self.options
    }
}

impl fmt::Debug for Single<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut request = f.debug_struct("Single");
        request
            .field("name", self.name)
            .field("wait", &self.wait)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}

impl<'a> Single<'a> {
    pub(crate) fn new(client: &'a Arc<ClientShared>, name: &'a Name, mode: Mode, join: bool) -> Single<'a> {
        Single {
            client,
            name,
            mode,
            options: Options { join, ..Options::default() },
            began: None,
            read_write: false,
            history: client.history,
            needs_run: false,
            on_behalf: OnBehalf::default(),
        }
    }
}

impl Single<'_> {
    /// Returns the length of the lease.
    pub(super) fn ttl(&self) -> Duration {
        self.ttl.unwrap_or(self.client.ttl)
    }

    /// Returns how many replicas must have the grant.
    pub(super) fn replicas(&self) -> u32 {
        self.replicas.unwrap_or(self.client.replicas)
    }

    /// Returns the longest time of the grant and of the wait for it, as operators see them.
    pub(super) fn shown_limits(&self) -> (Option<Duration>, Option<Duration>) {
        if let Some(shown) = self.on_behalf.shown_limits {
            return shown;
        }
        // A lease that is not renewed has its own end.
        let max_hold = self.max_hold.or(self.client.announced.filter(|_| !self.fixed));
        // A try without a waiting time is bounded by nothing that an operator can rely on.
        let max_wait = self.wait.filter(|_| max_hold.is_some());
        (max_hold, max_wait.map(|wait| wait.max(self.client.attempt_timeout)))
    }

    /// Checks whether the claim can evict holders that are overdue.
    pub(crate) fn check_evict_overdue(&self) -> Result<()> {
        if !self.evict_overdue {
            return Ok(());
        }
        if !self.join {
            return Err(Error::invalid("evict_overdue is for a request that waits; give a waiting time"));
        }
        let capabilities = &self.client.capabilities;
        self.client.require(capabilities.inspect && capabilities.evict, "way to inspect and evict holders")
    }

    /// Checks whether it may be unfair, and how long the lock is to be held.
    pub(super) fn check_limits(&self) -> Result<()> {
        self.client.check_unfair(self.unfair)?;
        let Some(max_hold) = self.max_hold else { return Ok(()) };
        let at_least = self.at_least.unwrap_or_default();
        let rule = if max_hold.is_zero() {
            "a lock that may be held for no time is useless; give a longer max_hold"
        } else if self.fixed {
            "max_hold limits leases that are renewed; give a fixed lease its length with ttl alone"
        } else if at_least > max_hold {
            "at_least is longer than max_hold; give a longer max_hold"
        } else {
            return Ok(());
        };
        Err(Error::invalid(rule))
    }
}

impl<W: What, H> Acquire<W, H> {
    /// Waits at most `wait`, connecting and retries included. When the time is over, a request that [waits](crate::request::Wait) fails with an error
    /// that [`is_timeout`](Error::is_timeout) and names who holds the lock, and one that [tries](crate::request::Try) answers `None`.
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
    /// sooner.
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

    /// Makes it a request of this holder: see [`Holder`](crate::Holder).
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
