//! The demos of the command, again and again.

use super::Place;
use crate::figure::Measured;
use std::time::Instant;

/// Counts the runs of a demo in its long form that did not come out as told, of `count`.
pub(crate) fn runs(name: &str, count: usize) -> Measured {
    let (place, start) = (Place::new("demo"), Instant::now());
    let wrong = (0..count)
        .filter(|_| {
            let status =
                place.fencepost(&["demo", name, "--json"]).stdout(std::process::Stdio::null()).status();
            !status.expect("the fencepost command beside this program").success()
        })
        .count();
    let seconds = start.elapsed().as_secs_f64();
    Measured { figure: wrong as f64, note: format!("{count} runs in {seconds:.0} s") }
}
