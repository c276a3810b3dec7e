//! How the runs that an engine keeps are shown.

use std::time::Duration;

use fencepost_core::{Capabilities, Run, RunEnd, Runs};
use serde_json::{Value, json};

use crate::duration;
use crate::show::visible;
use crate::time::utc;

/// One run as a phrase: how it ended, who, from when to when.
pub(crate) fn phrase(run: &Run, runs: &Runs) -> String {
    let holder = visible(&run.holder.to_string());
    let reason =
        run.reason.as_deref().map_or_else(String::new, |reason| format!(", reason: {}", visible(reason)));
    let since = utc(Duration::from_micros(run.since_micros));
    let times = match run.ended_micros {
        Some(ended) => {
            let took = duration::show(Duration::from_micros(ended.saturating_sub(run.since_micros)));
            format!("{since} to {} ({took})", utc(Duration::from_micros(ended)))
        }
        None => format!("since {since} ({} ago)", duration::show(runs.age(run.since_micros))),
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

/// Says that the engine keeps no runs, and why if that is known. `None`: it keeps them.
pub(crate) fn not_kept(capabilities: &Capabilities) -> Option<String> {
    let why = capabilities.no_history.map_or_else(String::new, |none| format!(": {}", none.why));
    (!capabilities.history).then(|| format!("this engine does not record runs{why}"))
}

/// The lines of `show` below the state of the lock. `not_kept`: the engine keeps none.
pub(crate) fn lines(runs: Option<&Runs>, not_kept: Option<&str>) -> Vec<String> {
    let Some(runs) = runs else {
        return not_kept.map(|why| format!("  last run: {why}")).into_iter().collect();
    };
    let line = |what: &str, run: &Run| format!("  {what}: {}", phrase(run, runs));
    let last = runs.last.as_ref();
    let good = runs.good.as_ref().filter(|good| Some(*good) != last);
    let last = last.map(|run| line("last run", run));
    last.into_iter().chain(good.map(|run| line("last successful run", run))).collect()
}

/// The runs for programs.
pub(crate) fn json(runs: &Runs) -> Value {
    let one = |run: &Option<Run>| {
        run.as_ref().map(|run| {
            json!({
                "holder": run.holder.label,
                "host": run.holder.host,
                "pid": run.holder.pid,
                "token": run.token.get(),
                "reason": run.reason,
                "since_micros": run.since_micros,
                "ended_micros": run.ended_micros,
                "exit_code": run.exit_code,
                "end": run.ended_micros.map(|_| run.end.as_str()),
            })
        })
    };
    json!({
        "running": one(&runs.running),
        "last": one(&runs.last),
        "good": one(&runs.good),
        "now_micros": runs.now_micros,
    })
}
