//! The result of a check as a file of metrics, for the textfile collector of a node exporter.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use fencepost_core::{Name, Run, Runs};

use fencepost_check::Verdict;

/// Writes the file in one step: its reader sees the old text or the new one.
pub(crate) fn write(file: &Path, name: &Name, verdict: &Verdict, runs: Option<&Runs>) -> io::Result<()> {
    let Some(last) = file.file_name() else {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a file name"));
    };
    // A rename would replace a device, or a link such as /dev/stdout.
    if fs::symlink_metadata(file).is_ok_and(|known| !known.is_file()) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    // A collector reads names that end in .prom: this one does not.
    let new = file.with_file_name(format!(".{}.{}.new", last.to_string_lossy(), std::process::id()));
    let written = fs::write(&new, text(name, verdict, runs)).and_then(|()| fs::rename(&new, file));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

/// The metrics in the text format (<https://prometheus.io/docs/instrumenting/exposition_formats/>). Unknown values are left out.
fn text(name: &Name, verdict: &Verdict, runs: Option<&Runs>) -> String {
    let seconds = |micros: u64| format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    let last = runs.and_then(|runs| runs.last.as_ref());
    let good = runs.and_then(|runs| runs.good.as_ref());
    let ended = |run: Option<&Run>| run.and_then(|run| run.ended_micros).map(seconds);
    let metrics = [
        (
            "check_status",
            "Result of fencepost check: 0 ok, 1 held too long, 2 no successful run, 3 unknown.",
            Some(verdict.status.code().to_string()),
        ),
        (
            "held_seconds",
            "How long the lock has been held; 0 if it is free.",
            verdict.held.map(|held| held.as_secs_f64().to_string()),
        ),
        (
            "last_run_start_timestamp_seconds",
            "When the last run was granted its lock.",
            last.map(|run| seconds(run.since_micros)),
        ),
        ("last_run_end_timestamp_seconds", "When the last run ended.", ended(last)),
        (
            "last_run_exit_code",
            "The exit code that the last run reported.",
            last.and_then(|run| run.exit_code).map(|code| code.to_string()),
        ),
        ("last_good_run_end_timestamp_seconds", "When the last run with exit code 0 ended.", ended(good)),
    ];
    let name = name.as_str().replace('\\', "\\\\").replace('"', "\\\"");
    let mut text = String::new();
    for (metric, help, value) in metrics {
        let Some(value) = value else { continue };
        text.push_str(&format!(
            "# HELP fencepost_{metric} {help}\n# TYPE fencepost_{metric} gauge\nfencepost_{metric}{{name=\"{name}\"}} {value}\n"
        ));
    }
    text
}
