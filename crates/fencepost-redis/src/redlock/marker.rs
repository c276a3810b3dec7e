//! Whether a node of a quorum may vote: see `stay_out` in lua/quorum.lua.

use std::time::Duration;

use fencepost_core::{Error, Finding};

use crate::doctor::facts::Facts;
use crate::doctor::probe::Probe;
use crate::script::vote::marker;

/// The advice for an operator who knows better than the marker.
const INIT: &str = "wait, or run 'fencepost doctor --init' if no data was lost or no lock is held";

pub(crate) async fn look(
    probe: &mut Probe,
    facts: &Facts,
    prefix: &str,
    longest: Duration,
) -> Result<Finding, Error> {
    let key = marker(prefix);
    let (run, until, _): (Option<String>, Option<i64>, Option<i64>) =
        probe.ask(&["HMGET", &key, "run", "until", "ttl"]).await?;
    let (seconds, micros): (i64, i64) = probe.ask(&["TIME"]).await?;
    let left = until.unwrap_or(0).saturating_sub(seconds * 1_000_000 + micros);
    let own = facts.run();
    Ok(match run {
        run if run.is_some() && run == own && left <= 0 => {
            Finding::ok("marker", "it is known to have lost nothing, and votes")
        }
        run if run.is_some() && run == own => {
            let left = left / 1_000_000 + 1;
            let says = format!(
                "it stays out for another {left} s: it was new, restarted or emptied, and may have forgotten a grant"
            );
            Finding::problem("marker", says).advice(INIT)
        }
        _ => {
            let longest = longest.as_secs();
            let says = format!(
                "it is new, restarted or emptied, and may have forgotten a grant: it stays out for {longest} s, counted from the first request"
            );
            Finding::problem("marker", says).advice(INIT)
        }
    })
}
