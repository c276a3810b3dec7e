//! A hundred idle waiting processes: what they cost together once they are started.

use super::{Place, Wrapper, wait_for_line};
use crate::figure::Measured;
use crate::usage::{share, with_descendants};
use std::time::Duration;

const WAITERS: usize = 100;
const SPAN: Duration = Duration::from_secs(60);

/// Their share of one core in percent.
pub(crate) fn waiters() -> Measured {
    let place = Place::new("idle");
    let mut holder =
        Wrapper::start(place.fencepost(&["run", "idle", "--", "sh", "-c", "echo in; exec sleep 1000"]));
    assert_eq!(holder.line(), "in", "the first run gets the lock");
    let waiters: Vec<Wrapper> = (0..WAITERS)
        .map(|_| Wrapper::start(place.fencepost(&["run", "-w", "1h", "idle", "--", "true"])))
        .collect();
    wait_for_line(&place, "idle", WAITERS);
    let roots: Vec<_> = waiters.iter().map(Wrapper::pid).collect();
    let pids = with_descendants(&roots);
    let percent = share(&pids, SPAN) * 100.0;
    let note = format!(
        "{WAITERS} `fencepost run` in the queue ({} processes) over {} s: {percent:.2} % of a core in all",
        pids.len(),
        SPAN.as_secs()
    );
    Measured { figure: percent, note }
}
