//! Counters by the `metrics` facade behind the feature `metrics`, and `tracing` events always.

use std::time::Duration;

use crate::backend::claim::Claim;

#[cfg(feature = "metrics")]
mod count {
    use super::Duration;

    pub(super) fn outcome(engine: &'static str, outcome: &'static str, waited: Duration) {
        metrics::counter!("fencepost_acquisitions_total", "engine" => engine, "outcome" => outcome)
            .increment(1);
        metrics::histogram!("fencepost_wait_seconds", "engine" => engine).record(waited.as_secs_f64());
    }

    pub(super) fn released(engine: &'static str, how: &'static str) {
        metrics::counter!("fencepost_releases_total", "engine" => engine, "how" => how).increment(1);
    }

    pub(super) fn lost() {
        metrics::counter!("fencepost_losses_total").increment(1);
    }
}

#[cfg(not(feature = "metrics"))]
mod count {
    use super::Duration;

    pub(super) fn outcome(_: &'static str, _: &'static str, _: Duration) {}
    pub(super) fn released(_: &'static str, _: &'static str) {}
    pub(super) fn lost() {}
}

/// An acquisition ended: `granted`, `busy`, `timeout` or `error`.
pub(crate) fn outcome(engine: &'static str, outcome: &'static str, waited: impl FnOnce() -> Duration) {
    if cfg!(feature = "metrics") {
        count::outcome(engine, outcome, waited());
    }
}

/// A grant was given back: by `release`, `drop` or `detach`.
pub(crate) fn released(engine: &'static str, how: &'static str) {
    count::released(engine, how);
}

/// The renewer found a validity at its end.
pub(crate) fn dropped_by_renewer(claim: &Claim) {
    if let Some(why) = claim.validity.ended().filter(|why| *why != crate::validity::Loss::Released) {
        count::lost();
        let detail = claim.validity.detail();
        tracing::warn!(lock = %claim.want().name, %why, detail = detail.as_deref(), "lock lost");
    }
}
