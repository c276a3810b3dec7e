//! How the runs that an engine keeps are told to people.

use std::time::Duration;

use fencepost_core::{Capabilities, Run, RunEnd, Runs, visible};

use crate::duration::shown;
use crate::time::utc;

/// Returns one run as a phrase: how it ended, who, from when to when.
pub fn phrase(run: &Run, runs: &Runs) -> String {
    let holder = visible(&run.holder.to_string());
    let reason =
        run.reason.as_deref().map_or_else(String::new, |reason| format!(", reason: {}", visible(reason)));
    let since = utc(Duration::from_micros(run.since_micros));
    let times = match run.ended_micros {
        Some(ended) => {
            let took = shown(Duration::from_micros(ended.saturating_sub(run.since_micros)));
            format!("{since} to {} ({took})", utc(Duration::from_micros(ended)))
        }
        None => format!("since {since} ({} ago)", shown(runs.age(run.since_micros))),
    };
    format!("{}, {holder}, {times}{reason}", outcome(run, runs))
}

/// How a run ended.
fn outcome(run: &Run, runs: &Runs) -> String {
    let why = match run.end {
        RunEnd::Exited => "",
        RunEnd::MaxHold => ", stopped by --max-hold",
        RunEnd::Evicted => ", evicted",
        _ => ", the lock was lost",
    };
    match (run.ended_micros, run.exit_code) {
        _ if runs.running.as_ref() == Some(run) => "still running".to_owned(),
        (None, _) => "ended without a report".to_owned(),
        (Some(_), Some(code)) => format!("exit code {code}{why}"),
        (Some(_), None) => format!("ended without an exit code{why}"),
    }
}

/// Returns that the engine keeps no runs, and why if that is known. `None`: it keeps them.
pub fn not_kept(capabilities: &Capabilities) -> Option<String> {
    let why = capabilities.no_history.map_or_else(String::new, |none| format!(": {}", none.why));
    (!capabilities.history).then(|| format!("this engine does not record runs{why}"))
}
