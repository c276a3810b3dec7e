//! Runs seeds for a while and prints the number of claims and the checker's findings.
//!
//! `simulate [--seconds S] [--seed N] [--setup NAME] [--threads T]`. Without `--seed` it starts
//! at seed 1 and uses the setups in turn. With `--seed` it runs that seed alone, and prints its history if
//! the checker found something. It exits with 1 if the checker found something.

use fencepost_core::Memory;
use fencepost_testkit::sim::{Report, Setup, simulate};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let (mut seconds, mut seed, mut setup, mut threads) = (10u64, None, None, 1u64);
    let all = [&Setup::NAMES[..], &Setup::UPGRADES].concat();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let value = args.next();
        let number = value.as_deref().and_then(|value| value.parse::<u64>().ok());
        match (arg.as_str(), number, value.as_deref().filter(|name| all.contains(name))) {
            ("--seconds", Some(number), _) => seconds = number,
            ("--seed", Some(number), _) => seed = Some(number),
            ("--threads", Some(number), _) => threads = number.max(1),
            ("--setup", _, Some(_)) => setup = value,
            _ => {
                eprintln!(
                    "usage: simulate [--seconds S] [--seed N] [--setup {}] [--threads T]",
                    all.join("|")
                );
                return ExitCode::from(64);
            }
        }
    }
    let names: Vec<&str> = setup.as_deref().map_or(all.clone(), |name| vec![name]);
    if let Some(seed) = seed {
        let bad = names.iter().filter(|name| !tell(name, seed, &run(name, seed), true)).count();
        return if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let start = Instant::now();
    let (next, claims, grants, faults, runs, bad) = Default::default();
    let totals: [&AtomicU64; 6] = [&next, &claims, &grants, &faults, &runs, &bad];
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while start.elapsed() < Duration::from_secs(seconds) && bad.load(Ordering::Relaxed) < 20 {
                    let seed = totals[0].fetch_add(1, Ordering::Relaxed) + 1;
                    let name = names[seed as usize % names.len()];
                    let report = run(name, seed);
                    let good = tell(name, seed, &report, false);
                    let counts = [report.claims, report.grants, report.faults, 1, u64::from(!good)];
                    for (total, count) in totals[1..].iter().zip(counts) {
                        total.fetch_add(count, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let [_, claims, grants, faults, runs, bad] = totals.map(|total| total.load(Ordering::Relaxed));
    let minutes = start.elapsed().as_secs_f64() / 60.0;
    println!("claims: {claims}");
    println!("grants: {grants}");
    println!("faults: {faults}");
    println!("runs: {runs}");
    println!("claims per minute: {:.0}", claims as f64 / minutes);
    println!("runs with findings: {bad}");
    if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(name: &str, seed: u64) -> Report {
    let setup = Setup::named(name).expect("the names were checked");
    simulate(seed, &setup, &|_| Memory::new())
}

/// Prints the findings of a run. Returns whether there were none.
fn tell(name: &str, seed: u64, report: &Report, history: bool) -> bool {
    if report.is_good() {
        return true;
    }
    println!("{name} {seed}: {:?}, {} findings", report.ran, report.findings.len());
    if history {
        for (position, event) in report.history.positioned() {
            println!(
                "{position:6} {:15.9} {:8} {:?}",
                event.at as f64 / 1e9,
                event.by.to_string(),
                event.what
            );
        }
    }
    for finding in report.findings.iter().take(5) {
        println!("    {finding}");
    }
    false
}
