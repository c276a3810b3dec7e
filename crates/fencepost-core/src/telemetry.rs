//! Metrics by the `metrics` facade behind the feature `metrics`, and `tracing` events always. docs/metrics.md lists them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use tracing::Level;

use crate::error::Error;
use crate::name::Name;
use crate::operator::holder::HolderInfo;
use crate::time::{Clock, Moment};
use crate::token::Token;
use crate::validity::{GrantObserver, Loss, RenewalFailure, Validity};

#[cfg(feature = "metrics")]
mod count {
    use metrics::Unit::{Count, Seconds};

    use super::Duration;

    pub(super) fn describe() {
        let seconds = |name, text| metrics::describe_histogram!(name, Seconds, text);
        let count = |name, text| metrics::describe_counter!(name, Count, text);
        count("fencepost_acquisitions_total", "Acquisitions that ended");
        seconds("fencepost_wait_seconds", "Time from the call to its outcome");
        metrics::describe_gauge!("fencepost_held", Count, "Locks that are held now");
        seconds("fencepost_hold_seconds", "Time from the grant to its release or loss");
        count("fencepost_releases_total", "Locks that were released");
        count("fencepost_losses_total", "Locks that were lost");
        count("fencepost_renewal_failures_total", "Renewals that were not confirmed");
        metrics::describe_gauge!("fencepost_degraded", Count, "Clients whose engine is away");
        count("fencepost_switches_total", "Times that an engine was found away or back");
        count("fencepost_degraded_grants_total", "Grants that were made without the engine");
    }

    pub(super) fn outcome(engine: &'static str, outcome: &'static str) {
        metrics::counter!("fencepost_acquisitions_total", "engine" => engine, "outcome" => outcome)
            .increment(1);
    }

    pub(super) fn waited(engine: &'static str, waited: Duration) {
        metrics::histogram!("fencepost_wait_seconds", "engine" => engine).record(waited);
    }

    pub(super) fn granted(engine: &'static str) {
        metrics::gauge!("fencepost_held", "engine" => engine).increment(1);
    }

    fn ended(engine: &'static str, held: Duration) {
        metrics::gauge!("fencepost_held", "engine" => engine).decrement(1);
        metrics::histogram!("fencepost_hold_seconds", "engine" => engine).record(held);
    }

    pub(super) fn released(engine: &'static str, how: &'static str, held: Duration) {
        ended(engine, held);
        metrics::counter!("fencepost_releases_total", "engine" => engine, "how" => how).increment(1);
    }

    pub(super) fn lost(engine: &'static str, why: &'static str, held: Duration) {
        ended(engine, held);
        metrics::counter!("fencepost_losses_total", "engine" => engine, "why" => why).increment(1);
    }

    pub(super) fn switched(engine: &'static str, policy: &'static str, to: &'static str) {
        let degraded = metrics::gauge!("fencepost_degraded", "engine" => engine, "policy" => policy);
        if to == "away" {
            degraded.increment(1);
        } else {
            degraded.decrement(1);
        }
        if to != "gone" {
            metrics::counter!("fencepost_switches_total", "engine" => engine, "policy" => policy, "to" => to)
                .increment(1);
        }
    }

    pub(super) fn granted_degraded(engine: &'static str, policy: &'static str) {
        metrics::counter!("fencepost_degraded_grants_total", "engine" => engine, "policy" => policy)
            .increment(1);
    }

    pub(super) fn renewal_failed(engine: &'static str) {
        metrics::counter!("fencepost_renewal_failures_total", "engine" => engine).increment(1);
    }
}

#[cfg(not(feature = "metrics"))]
mod count {
    use super::Duration;

    pub(super) fn describe() {}
    pub(super) fn outcome(_: &'static str, _: &'static str) {}
    pub(super) fn waited(_: &'static str, _: Duration) {}
    pub(super) fn granted(_: &'static str) {}
    pub(super) fn released(_: &'static str, _: &'static str, _: Duration) {}
    pub(super) fn lost(_: &'static str, _: &'static str, _: Duration) {}
    pub(super) fn renewal_failed(_: &'static str) {}
    pub(super) fn switched(_: &'static str, _: &'static str, _: &'static str) {}
    pub(super) fn granted_degraded(_: &'static str, _: &'static str) {}
}

/// Tells the recorder the units of the metrics.
pub(crate) fn describe() {
    count::describe();
}

/// Returns whether acquisitions measure their waiting times.
pub(crate) fn measures_waits() -> bool {
    cfg!(feature = "metrics") || tracing::enabled!(Level::DEBUG)
}

/// The outcome of an acquisition.
pub(crate) enum Acquired<'a> {
    Granted(Token),
    Busy,
    Timeout(&'a Error),
    Failed(&'a Error),
}

/// Tells that an acquisition ended. `waited` is read only if somebody listens.
pub(crate) fn acquired(
    engine: &'static str,
    lock: &Name,
    outcome: Acquired<'_>,
    waited: impl FnOnce() -> Duration,
) {
    if !measures_waits() {
        return;
    }
    let waited = waited();
    let wait_seconds = waited.as_secs_f64();
    count::waited(engine, waited);
    match outcome {
        Acquired::Granted(token) => {
            count::outcome(engine, "granted");
            tracing::debug!(%lock, engine, token = token.get(), wait_seconds, "lock granted");
        }
        Acquired::Busy => {
            count::outcome(engine, "busy");
            tracing::debug!(%lock, engine, wait_seconds, "lock busy");
        }
        Acquired::Timeout(error) => {
            count::outcome(engine, "timeout");
            tracing::debug!(%lock, engine, wait_seconds, %error, "lock timed out");
        }
        Acquired::Failed(error) => {
            count::outcome(engine, "error");
            tracing::debug!(%lock, engine, wait_seconds, %error, "lock failed");
        }
    }
}

/// Tells that a detached lease was attached.
pub(crate) fn attached(engine: &'static str, lock: &Name, token: Token) {
    count::outcome(engine, "attached");
    tracing::debug!(%lock, engine, token = token.get(), "lock attached");
}

/// Tells that a held lock was upgraded or downgraded, as `what` says.
pub(crate) fn converted(engine: &'static str, lock: &Name, token: Token, what: &'static str) {
    tracing::debug!(%lock, engine, token = token.get(), "{what}");
}

/// The lock is held.
const HELD: u8 = 0;
/// The release is under way. Its reply decides whether the lock was lost.
const RELEASING: u8 = 1;
/// The release or the loss was told.
const TOLD: u8 = 2;

/// A grant whose end is told once, as a release or as a loss.
pub(crate) struct Holding {
    engine: &'static str,
    lock: Name,
    token: AtomicU64,
    clock: Clock,
    since: Moment,
    phase: AtomicU8,
}

impl Holding {
    /// Tells that the lock is held, and observes the end of its validity. `None`: nobody listens.
    pub(crate) fn begin(
        engine: &'static str,
        lock: &Name,
        token: Token,
        clock: &Clock,
        validity: &Validity,
    ) -> Option<Arc<Holding>> {
        if !cfg!(feature = "metrics") && !tracing::enabled!(Level::WARN) {
            return None;
        }
        count::granted(engine);
        let (clock, since, phase) = (clock.clone(), clock.now(), AtomicU8::new(HELD));
        let token = AtomicU64::new(token.get());
        let holding = Arc::new(Holding { engine, lock: lock.clone(), token, clock, since, phase });
        validity.observe(Arc::<Holding>::clone(&holding));
        // It may have ended before it was observed.
        if let Some(why) = validity.ended() {
            holding.lost(why, validity.detail());
        }
        Some(holding)
    }

    /// From now on its grant has this token.
    pub(crate) fn set_token(&self, token: Token) {
        self.token.store(token.get(), Ordering::Relaxed);
    }

    /// From now on the reply to the release decides: see [`released`](Holding::released) and
    /// [`lost_at_release`](Holding::lost_at_release).
    pub(crate) fn releasing(&self) {
        let _ = self.phase.compare_exchange(HELD, RELEASING, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Tells that the lock was given back: by `release`, `drop` or `detach`.
    pub(crate) fn released(&self, how: &'static str) {
        if self.phase.swap(TOLD, Ordering::AcqRel) != TOLD {
            let held = self.held();
            count::released(self.engine, how, held);
            let (lock, engine, token, hold_seconds) = self.fields(held);
            tracing::debug!(%lock, engine, token, hold_seconds, how, "lock released");
        }
    }

    /// Tells a loss that the release found.
    pub(crate) fn lost_at_release(&self, why: Loss, detail: Option<Arc<str>>) {
        if self.phase.swap(TOLD, Ordering::AcqRel) != TOLD {
            self.tell_loss(why, detail);
        }
    }

    fn tell_loss(&self, why: Loss, detail: Option<Arc<str>>) {
        let held = self.held();
        let label = why.as_str();
        count::lost(self.engine, label, held);
        let (lock, engine, token, hold_seconds) = self.fields(held);
        tracing::warn!(
            %lock, engine, token, hold_seconds, why = label, detail = detail.as_deref(), "lock lost"
        );
    }

    fn held(&self) -> Duration {
        self.clock.now().since(self.since)
    }

    fn fields(&self, held: Duration) -> (&Name, &'static str, u64, f64) {
        (&self.lock, self.engine, self.token.load(Ordering::Relaxed), held.as_secs_f64())
    }
}

impl GrantObserver for Holding {
    fn lost(&self, why: Loss, detail: Option<Arc<str>>) {
        if self.phase.compare_exchange(HELD, TOLD, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.tell_loss(why, detail);
        }
    }

    fn renewal_failed(&self, why: &str, repeatedly: bool) {
        count::renewal_failed(self.engine);
        let (lock, engine, token, hold_seconds) = self.fields(self.held());
        if repeatedly {
            tracing::debug!(%lock, engine, token, hold_seconds, why, "lock renewal failed again");
        } else {
            tracing::warn!(%lock, engine, token, hold_seconds, why, "lock renewal failed");
        }
    }
}

/// Puts the validity of a session in doubt and tells that its renewal failed: for an engine that keeps its session alive by a task
/// of its own, and not by [`Session::renew`](crate::Session::renew).
pub fn session_renewal_failed(engine: &'static str, validity: &Validity, failure: RenewalFailure) {
    count::renewal_failed(engine);
    let why = &*failure.why;
    if validity.is_in_doubt() {
        tracing::debug!(engine, why, "session renewal failed again");
    } else {
        tracing::warn!(engine, why, "session renewal failed");
    }
    validity.renewal_failed(Some(failure));
}

/// A request that waits has evicted a holder, because it held for longer than its `max_hold`.
pub(crate) fn evicted_overdue(
    lock: &Name,
    engine: &'static str,
    token: Token,
    holder: &HolderInfo,
    max_hold: Duration,
) {
    let max_hold_seconds = max_hold.as_secs_f64();
    tracing::warn!(%lock, engine, token = token.get(), %holder, max_hold_seconds, "lock holder evicted");
}

/// A request that waits may not evict a holder that is overdue.
pub(crate) fn overdue_not_evicted(
    lock: &Name,
    engine: &'static str,
    token: Token,
    holder: &HolderInfo,
    max_hold: Duration,
    error: &Error,
) {
    let (token, max_hold_seconds) = (token.get(), max_hold.as_secs_f64());
    tracing::warn!(%lock, engine, token, %holder, max_hold_seconds, %error, "lock holder not evicted");
}

/// Tells that a layer goes on without the engine of its client, by the policy of this name. Metrics count such clients until
/// [`engine_back`] or [`degraded_client_gone`].
pub fn engine_away(engine: &'static str, policy: &'static str) {
    count::switched(engine, policy, "away");
    tracing::warn!(engine, policy, "lock engine away");
}

/// Tells that the engine is back.
pub fn engine_back(engine: &'static str, policy: &'static str) {
    count::switched(engine, policy, "back");
    tracing::warn!(engine, policy, "lock engine back");
}

/// Tells that a client is gone whose engine is [away](engine_away).
pub fn degraded_client_gone(engine: &'static str, policy: &'static str) {
    count::switched(engine, policy, "gone");
}

/// Tells that a layer granted a lock without the engine.
pub fn granted_degraded(engine: &'static str, policy: &'static str) {
    count::granted_degraded(engine, policy);
}
