//! The parts that all locks and guards of one client share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::Backend;
use crate::backend::admission::Mode;
use crate::backend::capabilities::{Capabilities, NoHistory, Tokens};
use crate::backend::record::LaterFormat;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::operator::holder::HolderInfo;
use crate::operator::info::{Eviction, Info};
use crate::runtime::Runtime;
use crate::runtime::deadlines::Deadlines;
use crate::runtime::renewer::Renewer;
use crate::runtime::thread::Thread;
use crate::time::Moment;
use crate::token::Token;

/// The parts that all locks and guards of one client share.
pub(crate) struct ClientShared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) capabilities: Capabilities,
    pub(crate) renewer: Renewer,
    pub(crate) deadlines: Deadlines,
    pub(crate) runtime: Runtime,
    pub(crate) holder: Arc<HolderInfo>,
    pub(crate) ttl: Duration,
    pub(crate) replicas: u32,
    /// Grants must follow the order of arrival.
    pub(crate) fair: bool,
    /// The policy of the layer before the engine, if it takes capabilities away.
    pub(crate) policy: Option<&'static str>,
    /// How long the program keeps each grant, as it says.
    pub(crate) announced: Option<Duration>,
    /// How long the engine keeps the runs of all claims. `None`: it keeps none.
    pub(crate) history: Option<Duration>,
    /// Somebody was told that runs cannot be recorded.
    pub(crate) warned_of_runs: Arc<AtomicBool>,
    pub(crate) outage: Duration,
    pub(crate) attempt_timeout: Duration,
    /// How much longer a request may take because of the layer before the engine. Zero without one.
    pub(crate) layer_delay: Duration,
    pub(crate) release_timeout: Duration,
    pub(crate) drop_timeout: Duration,
    pub(crate) close_timeout: Duration,
    pub(crate) closed: AtomicBool,
    /// Tells those who wait that it is.
    pub(crate) closing: Notify,
    /// None where somebody else runs our tasks: in a simulation.
    pub(crate) thread: Option<Thread>,
}

impl ClientShared {
    pub(crate) fn engine(&self) -> &'static str {
        self.capabilities.engine
    }

    /// Until when a release that begins now may last.
    pub(crate) fn release_until(&self) -> Moment {
        self.runtime.clock().now() + self.release_timeout
    }

    /// Is this a process that was forked off the client's? It shares the client's connections and files, and lacks its thread: there
    /// the client does nothing.
    pub(crate) fn is_forked(&self) -> bool {
        self.runtime.clock().is_forked()
    }

    pub(crate) fn check_process(&self) -> Result<()> {
        if self.is_forked() {
            return Err(Error::new(ErrorKind::Closed, Error::FORKED).on(self.engine()));
        }
        Ok(())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        self.check_process()?;
        if self.is_closed() {
            return Err(Error::new(ErrorKind::Closed, Error::CLOSED).on(self.engine()));
        }
        Ok(())
    }

    /// Waits until then.
    ///
    /// # Errors
    /// [`is_closed`](Error::is_closed) as soon as the client is closed.
    pub(crate) async fn sleep_until(&self, until: Moment) -> Result<()> {
        // From here on a close is told, also one that comes before it is first waited for.
        let closing = self.closing.notified();
        self.check_open()?;
        self.runtime.clock().within(until, closing).await;
        // A clock that is stopped does not sleep.
        self.check_open()
    }

    pub(crate) fn check_ttl(&self, ttl: Duration) -> Result<()> {
        let (min, max) = (self.capabilities.min_ttl, self.capabilities.max_ttl);
        if ttl < min || ttl > max {
            let message = format!(
                "a lease (ttl) of {} is out of bounds: this deployment has {min:?} to {}",
                shown(ttl),
                shown(max)
            );
            return Err(Error::invalid(message).on(self.engine()));
        }
        Ok(())
    }

    pub(crate) fn check_replicas(&self, replicas: u32) -> Result<()> {
        self.require(replicas == 0 || self.capabilities.replicas, "replicas to wait for")
    }

    /// Whether a request may be unfair here.
    pub(crate) fn check_unfair(&self, unfair: bool) -> Result<()> {
        if unfair && self.fair {
            let rule = "this client requires fairness; leave out `unfair` or `require_fair`";
            return Err(Error::invalid(rule).on(self.engine()));
        }
        self.require(!unfair || self.capabilities.barging, "unfair mode")
    }

    /// Whether grants in this mode follow the order of arrival, if that is required.
    pub(crate) fn check_fair(&self, mode: Mode) -> Result<()> {
        let permits = matches!(mode, Mode::Permits { .. });
        if !self.fair || self.capabilities.fair && (!permits || self.capabilities.fair_permits) {
            return Ok(());
        }
        let what = if permits { "grants of permits" } else { "grants" };
        let engine = self.engine();
        let (whose, advice) = match self.policy {
            Some(policy) => (format!("with the {policy}"), "leave out the policy or the requirement"),
            None => (format!("of the {engine} engine"), "use another engine"),
        };
        let message =
            format!("{what} {whose} do not follow the order of arrival, and fairness is required; {advice}");
        Err(Error::new(ErrorKind::Unsupported, message).on(self.engine()))
    }

    /// See [`HolderInfo::MAX_BYTES`].
    pub(crate) fn check_texts(holder: Option<&HolderInfo>, reason: Option<&str>) -> Result<()> {
        holder.map_or(Ok(()), |holder| HolderInfo::check("label", &holder.label))?;
        reason.map_or(Ok(()), |reason| HolderInfo::check("reason", reason))
    }

    pub(crate) fn check_tokens(&self, least: Tokens) -> Result<()> {
        let class = self.capabilities.tokens;
        if class >= least {
            return Ok(());
        }
        let engine = self.engine();
        let (whose, advice) = match self.policy {
            Some(policy) => (format!("with the {policy}"), "a client without the policy"),
            None => (format!("of the {engine} engine"), "another engine"),
        };
        let message =
            format!("tokens {whose} are of the class {class}, and {least} is required; use {advice}");
        Err(Error::new(ErrorKind::Unsupported, message).on(self.engine()))
    }

    /// Whether the engine has this mode of claiming.
    pub(crate) fn check_mode(&self, mode: Mode) -> Result<()> {
        self.check_fair(mode)?;
        let (has, what) = match mode {
            Mode::Exclusive => return Ok(()),
            Mode::Shared => (self.capabilities.shared, "shared holders"),
            Mode::Permits { .. } => (self.capabilities.permits, "permits"),
        };
        match self.capabilities.modes {
            Some(why) if !has => {
                Err(Error::new(ErrorKind::Unsupported, format!("there are no {what} here: {why}"))
                    .on(self.engine()))
            }
            _ => self.require(has, what),
        }
    }

    /// Returns the claims on a resource.
    pub(crate) async fn look(&self, name: &Name) -> Result<Info> {
        self.check_look()?;
        let info = self.backend.operator().inspect(name).await;
        info.map_err(|error| error.of(name.clone()).without_effect())
    }

    /// Returns the claims on a resource, and its runs at the time of the engine's clock.
    pub(crate) async fn look_with_runs(&self, name: &Name) -> Result<Info> {
        self.check_look()?;
        let info = self.inspect_with_runs(name).await;
        let mut info = info.map_err(|error| error.of(name.clone()).without_effect())?;
        if let Some(format) = info.claims.iter().find_map(|claim| claim.later_format) {
            return Err(Error::from(LaterFormat(format)).on(self.engine()).of(name.clone()).without_effect());
        }
        if let Some(runs) = &mut info.runs
            && runs.now_micros == 0
        {
            runs.now_micros = self.runtime.clock().wall_micros();
        }
        Ok(info)
    }

    fn check_look(&self) -> Result<()> {
        self.check_process()?;
        self.require(self.capabilities.inspect, "way to inspect locks")
    }

    /// Evicts the holder of `name` whose grant has `token`.
    pub(crate) async fn evict(&self, name: &Name, token: Token, how: &Eviction) -> Result<()> {
        self.check_process()?;
        self.require(self.capabilities.evict, "way to evict holders")?;
        ClientShared::check_texts(None, how.reason.as_deref())?;
        tracing::info!(lock = %name, %token, now = how.now, reason = how.reason, "evicting");
        let how = how.signed(&self.holder);
        self.backend.operator().evict(name, token, &how).await.map_err(|error| error.of(name.clone()))
    }

    /// Returns the stored limit of the permits of a resource.
    pub(crate) async fn stored_permits(&self, name: &Name) -> Result<Option<u32>> {
        self.check_process()?;
        self.require(self.capabilities.stored_permits, "stored limits of permits")?;
        let limit = self.backend.operator().stored_permits(name).await;
        limit.map_err(|error| error.of(name.clone()).on(self.engine()).without_effect())
    }

    /// Stores or forgets it.
    pub(crate) async fn set_permits(&self, name: &Name, limit: Option<u32>) -> Result<()> {
        self.check_open()?;
        self.require(self.capabilities.stored_permits, "stored limits of permits")?;
        if limit == Some(0) {
            return Err(Error::invalid("a semaphore has at least one permit").of(name.clone()));
        }
        tracing::info!(lock = %name, limit, "setting the permits");
        let set = self.backend.operator().set_permits(name, limit).await;
        set.map_err(|error| error.of(name.clone()).on(self.engine()))
    }

    pub(crate) fn require_history(&self, needed: bool) -> Result<()> {
        let Capabilities { history, inspect, no_history, .. } = self.capabilities;
        match no_history.filter(|_| self.policy.is_none()) {
            _ if !needed || history && inspect => Ok(()),
            None => self.require(false, "history of runs"),
            Some(NoHistory { kind, why }) => {
                let engine = self.engine();
                let message = format!("the {engine} engine has no history of runs: {why}");
                Err(Error::new(kind, message).on(engine))
            }
        }
    }

    /// Refuses what the engine does not have.
    pub(crate) fn require_detach(&self) -> Result<()> {
        let Capabilities { detach, no_detach, .. } = self.capabilities;
        match no_detach.filter(|_| !detach && self.policy.is_none()) {
            None => self.require(detach, "detached leases"),
            Some(why) => {
                let engine = self.engine();
                let message = format!("the {engine} engine has no detached leases: {why}");
                Err(Error::new(ErrorKind::Unsupported, message).on(engine))
            }
        }
    }

    pub(crate) fn require(&self, has: bool, what: &str) -> Result<()> {
        match self.policy {
            _ if has => Ok(()),
            None => Err(Error::unsupported(self.engine(), what)),
            Some(policy) => {
                let what = format!("{what} with the {policy}; use a client without the policy");
                Err(Error::unsupported(self.engine(), &what))
            }
        }
    }
}

impl Drop for ClientShared {
    fn drop(&mut self) {
        if self.is_forked() {
            // Closed here, a file or a session would end for the process that still uses it.
            std::mem::forget((
                Arc::clone(&self.backend),
                self.renewer.clone(),
                self.deadlines.clone(),
                self.runtime.clone(),
                self.thread.take(),
            ));
        }
    }
}

/// Writes a lease as a user does: whole days as `30d`.
fn shown(ttl: Duration) -> String {
    match ttl.as_secs() {
        seconds if seconds > 0 && seconds % 86_400 == 0 => format!("{}d", seconds / 86_400),
        _ => format!("{ttl:?}"),
    }
}
