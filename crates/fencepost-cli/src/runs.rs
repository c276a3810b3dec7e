//! How the runs that an engine keeps are shown.

use fencepost_check::phrase;
use fencepost_core::{Run, Runs};
use serde_json::{Value, json};

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
