//! Wrappers that are stopped for longer than their lease: their programs are dead before the next holders' start.

use super::kill::{SCRIPT, read};
use super::{Place, Wrapper, wait_for_line};
use crate::figure::{Measured, median};
use nix::sys::signal::{Signal, kill};
use std::time::Instant;

/// Pairs that run at a time, each on a name of its own.
const PAIRS: usize = 20;
const ROUNDS: usize = 3;

/// Counts what went wrong.
pub(crate) fn wrappers() -> Measured {
    let mut violations = Vec::new();
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let place = Place::new("frozen");
        let place = &place;
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let pairs: Vec<_> = (0..PAIRS).map(|number| scope.spawn(move || pair(place, number))).collect();
            pairs.into_iter().map(|pair| pair.join().expect("a pair that does not panic")).collect()
        });
        for outcome in outcomes {
            match outcome {
                Ok(seconds) => times.push(seconds),
                Err(what) => violations.push(what),
            }
        }
    }
    let worst = times.iter().copied().fold(0.0, f64::max);
    let first = violations.first().map_or_else(String::new, |first| format!("; first: {first}"));
    let note = format!(
        "{} wrappers with a lease of 2 s stopped; next program after {:.2} s (median), {worst:.2} s (worst){first}",
        PAIRS * ROUNDS,
        median(times)
    );
    Measured { figure: violations.len() as f64, note }
}

/// One holder that is stopped and one waiter: the seconds until the waiter's program ran, or what went wrong.
fn pair(place: &Place, number: usize) -> Result<f64, String> {
    let name = format!("frozen/{number}");
    let start = || {
        let arguments = ["run", "-w", "60s", "--ttl", "2s", &name, "--", "sh", "-c", SCRIPT];
        Wrapper::start(place.fencepost(&arguments))
    };
    let mut holder = start();
    let held = read(&mut holder);
    let mut next = start();
    wait_for_line(place, &name, 1);
    let stopped = Instant::now();
    kill(holder.pid(), Signal::SIGSTOP).map_err(|error| format!("the holder cannot be stopped: {error}"))?;
    let successor = read(&mut next);
    let seconds = stopped.elapsed().as_secs_f64();
    if held.runs() {
        return Err(format!("{name}: the stopped wrapper's program runs beside the next holder's"));
    }
    if successor.token <= held.token {
        return Err(format!("{name}: token {} after {}", successor.token, held.token));
    }
    Ok(seconds)
}
