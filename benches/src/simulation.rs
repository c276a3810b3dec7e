//! All of core over memory on a clock that seeds move: a minute of claims, with nothing found.

use crate::figure::Measured;
use fencepost::backend::Memory;
use fencepost_testkit::sim::{Setup, simulate};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const SPAN: Duration = Duration::from_secs(60);

/// Claims a minute; not a number when something was found.
pub(crate) fn minute() -> Measured {
    // Other seeds every time; what one finds is replayed by its number.
    let first = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()) << 20;
    let (next, claims, faults) = (AtomicU64::new(first), AtomicU64::new(0), AtomicU64::new(0));
    let bad: Mutex<Vec<String>> = Mutex::default();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while start.elapsed() < SPAN {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let name = Setup::NAMES[seed as usize % Setup::NAMES.len()];
                    let setup = Setup::named(name).expect("one of its own names");
                    let report = simulate(seed, &setup, &|_| Memory::new());
                    claims.fetch_add(report.claims, Ordering::Relaxed);
                    faults.fetch_add(report.faults, Ordering::Relaxed);
                    if !report.is_good() {
                        bad.lock().expect("no thread panics").push(format!("{name} {seed}"));
                    }
                }
            });
        }
    });
    let minutes = start.elapsed().as_secs_f64() / 60.0;
    let (claims, faults) = (claims.into_inner(), faults.into_inner());
    let runs = next.into_inner() - first;
    let bad = bad.into_inner().expect("no thread panics");
    if let Some(worst) = bad.first() {
        let note =
            format!("{} of {runs} runs with findings, first {worst}; `simulate` replays it", bad.len());
        return Measured { figure: f64::NAN, note };
    }
    let note = format!("{runs} runs from seed {first}, {claims} claims, {faults} faults, no findings");
    Measured { figure: claims as f64 / minutes, note }
}
