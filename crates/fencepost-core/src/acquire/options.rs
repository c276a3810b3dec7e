//! Requests for a lock and their options.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::admission::Mode;
use crate::backend::claim_id::ClaimId;
use crate::client::shared::ClientShared;
use crate::error::{Error, Result};
use crate::guard::holder::Holder;
use crate::name::Name;
use crate::operator::holder::HolderInfo;
use crate::time::Moment;

/// A request for one lock: what most [requests](crate::Acquire) ask for.
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
    /// The id of its claim. `None`: a fresh one for each pass.
    pub(crate) id: Option<ClaimId>,
    /// Is called when its claim is queued, and again after each later attempt that finds it waiting.
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
        let at_least = self.at_least.unwrap_or_default();
        if self.fixed && at_least > self.ttl() {
            let rule = "at_least is longer than the lease, which is not renewed; give a longer ttl";
            return Err(Error::invalid(rule));
        }
        let Some(max_hold) = self.max_hold else { return Ok(()) };
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
