//! kill -9 of wrappers: child and grandchild are gone, and the next waiter runs, within a second; a thousand times.

use super::{Place, Wrapper, wait_for_line};
use crate::figure::{Measured, median};
use crate::usage::alive;
use std::time::Instant;

const CYCLES: usize = 1_000;
/// The longest that the next waiter's program may take to start.
const LIMIT_MS: f64 = 1_000.0;
/// Says who it and its own child are, and stays.
pub(super) const SCRIPT: &str = "sleep 1000 & echo $$ $! $FENCEPOST_TOKEN; wait";

/// A child that runs under the lock: its pid, its own child's, and its token.
pub(super) struct Held {
    child: i32,
    grandchild: i32,
    pub(super) token: u64,
}

impl Held {
    /// Whether anything of it still runs.
    pub(super) fn runs(&self) -> bool {
        alive(self.child) || alive(self.grandchild)
    }
}

/// Counts what went wrong over the cycles.
pub(crate) fn wrappers() -> Measured {
    let place = Place::new("kill");
    let start = || {
        Wrapper::start(
            place.fencepost(&["run", "-w", "60s", "--ttl", "30s", "killed", "--", "sh", "-c", SCRIPT]),
        )
    };
    let mut violations = Vec::new();
    let mut times = Vec::with_capacity(CYCLES);
    let mut holder = start();
    let mut held = read(&mut holder);
    for cycle in 0..CYCLES {
        let mut next = start();
        wait_for_line(&place, "killed", 1);
        let killed = Instant::now();
        holder.kill();
        let successor = read(&mut next);
        let took = killed.elapsed().as_secs_f64() * 1e3;
        if held.runs() {
            violations
                .push(format!("cycle {cycle}: the killed wrapper's child runs beside the next holder's"));
        }
        if successor.token <= held.token {
            violations.push(format!("cycle {cycle}: token {} after {}", successor.token, held.token));
        }
        if took > LIMIT_MS {
            violations.push(format!("cycle {cycle}: the next waiter ran after {took:.0} ms"));
        }
        times.push(took);
        holder = next;
        held = successor;
    }
    let worst = times.iter().copied().fold(0.0, f64::max);
    let first = violations.first().map_or_else(String::new, |first| format!("; first: {first}"));
    let note = format!(
        "{CYCLES} wrappers killed; next waiter's program ran after {:.1} ms (median), {worst:.1} ms (worst){first}",
        median(times)
    );
    Measured { figure: violations.len() as f64, note }
}

pub(super) fn read(wrapper: &mut Wrapper) -> Held {
    let line = wrapper.line();
    let mut words = line.split(' ').map(str::parse::<u64>);
    let mut next =
        || words.next().and_then(Result::ok).unwrap_or_else(|| panic!("two pids and a token, not `{line}`"));
    let (child, grandchild, token) = (next(), next(), next());
    let pid = |number| i32::try_from(number).expect("a process id");
    Held { child: pid(child), grandchild: pid(grandchild), token }
}
