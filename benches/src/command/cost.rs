//! Measures the time that `fencepost run` adds to its program on an engine that is up.

use super::Place;
use crate::figure::{Measured, median};
use crate::redis;
use std::process::{Command, Stdio};
use std::time::Instant;

const RUNS: usize = 100;
/// Ends at once, and needs no shell.
const PROGRAM: &str = "true";

/// Returns by how many milliseconds the median of the runs is longer than that of the program.
pub(crate) fn beside_the_program(engine: &str) -> Measured {
    let place = Place::new("cost");
    let server = (engine == "redis").then(redis::start);
    let url = server.as_ref().map_or_else(|| place.url(), |server| server.url());
    let bare = || {
        let mut command = Command::new(PROGRAM);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command
    };
    let ours = || {
        let mut command = place.fencepost(&["run", "cost", "--", PROGRAM]);
        command.env("FENCEPOST_BACKEND", &url);
        command
    };
    // The first of each reads its files from the disk.
    milliseconds(bare());
    milliseconds(ours());
    // They take turns, so that a slow moment of the machine hits both.
    let (bare, ours): (Vec<f64>, Vec<f64>) =
        (0..RUNS).map(|_| (milliseconds(bare()), milliseconds(ours()))).unzip();
    let (bare, ours) = (median(bare), median(ours));
    let note = format!("{RUNS} runs of `true` on {engine}: {ours:.2} ms (median); by itself {bare:.2} ms");
    Measured { figure: ours - bare, note }
}

/// Runs it to its end, which is a good one.
fn milliseconds(mut command: Command) -> f64 {
    let start = Instant::now();
    let status = command.status().expect("the fencepost command beside this program");
    let took = start.elapsed().as_secs_f64() * 1e3;
    assert!(status.success(), "{command:?}: {status}");
    took
}
