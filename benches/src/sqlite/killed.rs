//! kill -9 of holders and waiters: their places are free at once; a thousand times.

use crate::command::Place;
use crate::figure::{Measured, median};
use crate::killed::kill;

const TIMES: usize = 1_000;
/// A third of the lease, in seconds: what comes within that did not wait for the lease.
const LIMIT: f64 = 1.0;

/// Counts what went wrong: a late grant, a token that does not grow, a claim that is left at the end.
pub(crate) fn places() -> Measured {
    let killed = kill(&Place::new("killed").url(), TIMES, true);
    let late = killed.seconds.iter().filter(|seconds| **seconds > LIMIT).count();
    let first = killed.wrong.first().map_or_else(String::new, |first| format!("; first: {first}"));
    let (worst, wrong) = (killed.worst() * 1e3, killed.wrong.len());
    let note = format!(
        "{TIMES} holders and {TIMES} waiters killed; next grant after {:.1} ms (median), {worst:.1} ms (worst){first}",
        median(killed.seconds) * 1e3
    );
    Measured { figure: (wrong + late) as f64, note }
}
