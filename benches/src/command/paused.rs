//! `fencepost run` that is paused between the grant and the start of its program, for longer than its lease: nothing is run.

use super::{Place, Wrapper};
use crate::figure::Measured;
use crate::usage::{alive, child, is_stopped};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::time::{Duration, Instant};

/// The points at which the command stops itself, each in a process of its own: child of the one before.
const POINTS: [&str; 3] = ["wrapper", "guardian", "child"];
/// Pauses at a time, each on a name of its own.
const AT_ONCE: usize = 12;
const ROUNDS: usize = 5;
/// Nothing here takes so long.
const LIMIT: Duration = Duration::from_secs(60);
/// The exit code for a lock that was lost.
const LOST: i32 = 76;

/// Counts the programs that were started under a lease that was over, and other answers than that.
pub(crate) fn starts() -> Measured {
    let mut violations = Vec::new();
    for _ in 0..ROUNDS {
        let place = &Place::new("paused");
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let pauses: Vec<_> =
                (0..AT_ONCE).map(|number| scope.spawn(move || pause(place, number))).collect();
            pauses.into_iter().map(|pause| pause.join().expect("a pause that does not panic")).collect()
        });
        violations.extend(outcomes.into_iter().filter_map(Result::err));
    }
    let first = violations.first().map_or_else(String::new, |first| format!("; first: {first}"));
    let note = format!(
        "{} runs with a lease of 2 s paused in the wrapper, the guardian or the child until the next holder had run{first}",
        AT_ONCE * ROUNDS
    );
    Measured { figure: violations.len() as f64, note }
}

/// One run that is paused past its lease.
fn pause(place: &Place, number: usize) -> Result<(), String> {
    let point = POINTS[number % POINTS.len()];
    let name = format!("paused/{number}");
    let ran = place.file(&format!("ran{number}"));
    let text = ran.to_string_lossy();
    // SQLite is left out: there a stopped wrapper keeps the name.
    let url = format!("{}?pinned=false", place.url());
    let mut command = place.fencepost(&["run", "-b", &url, "--ttl", "2s", &name, "--", "touch", &text]);
    command.env("FENCEPOST_STOP_AT", point);
    let mut wrapper = Wrapper::start(command);
    let chain = until(|| chain(wrapper.pid().as_raw(), point))?;
    for pid in &chain {
        send(*pid, Signal::SIGSTOP)?;
    }
    let mut next = Wrapper::start(place.fencepost(&["run", "-b", &url, "-w", "60s", &name, "--", "true"]));
    if next.wait() != 0 {
        return Err(format!("{name}: the next holder did not run"));
    }
    // From the innermost outwards, so that each has to judge by itself.
    for (depth, pid) in chain.iter().enumerate().rev() {
        send(*pid, Signal::SIGCONT)?;
        if depth > 0 {
            until(|| (!alive(*pid)).then_some(()))?;
        }
    }
    let code = wrapper.wait();
    if ran.exists() {
        return Err(format!("{name}: paused in the {point}, its program ran after the next holder's"));
    }
    if code != LOST {
        return Err(format!("{name}: paused in the {point}, it ended with {code} instead of {LOST}"));
    }
    Ok(())
}

/// The processes from the wrapper to the one at `point`, once that is stopped.
fn chain(wrapper: i32, point: &str) -> Option<Vec<i32>> {
    let mut chain = vec![wrapper];
    for _ in POINTS.iter().take_while(|known| **known != point) {
        chain.push(child(*chain.last()?)?);
    }
    is_stopped(*chain.last()?).then_some(chain)
}

fn until<T>(mut ask: impl FnMut() -> Option<T>) -> Result<T, String> {
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        if let Some(answer) = ask() {
            return Ok(answer);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(format!("a process has not stopped or ended within {LIMIT:?}"))
}

fn send(pid: i32, signal: Signal) -> Result<(), String> {
    kill(Pid::from_raw(pid), signal).map_err(|error| format!("process {pid}: {error}"))
}
