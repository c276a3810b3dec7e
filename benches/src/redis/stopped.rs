//! Holders that are stopped (SIGSTOP) past their lease: what they believe when they wake.

use super::server::start;
use crate::client::connect;
use crate::command::Wrapper;
use crate::figure::{Measured, median};
use crate::side::{program, run};
use fencepost_testkit::history::boottime;
use nix::sys::signal::{Signal, kill};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

const HOLDERS: usize = 20;
const ROUNDS: usize = 3;
const LEASE: Duration = Duration::from_secs(2);
/// How long a holder is stopped.
const STOP: Duration = Duration::from_secs(4);
/// A gap that only a stop makes.
const GAP: Duration = Duration::from_secs(3);

/// The longest time in ms from a holder's waking to the end of its `lost()`; no figure if one believed in its lock.
pub(crate) fn holders() -> Measured {
    let server = start();
    let mut delays = Vec::new();
    let mut believers = 0;
    for round in 0..ROUNDS {
        let mut holders: Vec<Wrapper> = (0..HOLDERS)
            .map(|number| {
                let name = format!("{round}/{number}");
                let mut command = program(&["redis-side-stopped", &server.url(), &name]);
                command.stdin(Stdio::null());
                Wrapper::start(command)
            })
            .collect();
        for holder in &mut holders {
            assert_eq!(holder.line(), "held");
        }
        for holder in &holders {
            kill(holder.pid(), Signal::SIGSTOP).expect("a process that runs");
        }
        std::thread::sleep(STOP);
        // One after another: sixty that wake at once would measure the scheduler.
        for holder in &mut holders {
            kill(holder.pid(), Signal::SIGCONT).expect("a process that is stopped");
            let line = holder.line();
            let (believes, delay) = line.split_once(' ').expect("two words");
            believers += usize::from(believes == "true");
            delays.push(delay.parse::<f64>().expect("milliseconds"));
        }
    }
    let worst = delays.iter().copied().fold(0.0, f64::max);
    let note = format!(
        "{} holders with a lease of {} s stopped for {} s: {believers} believed in it on waking; lost() after {:.1} ms (median)",
        delays.len(),
        LEASE.as_secs(),
        STOP.as_secs(),
        median(delays)
    );
    Measured { figure: if believers > 0 { f64::NAN } else { worst }, note }
}

/// One that is stopped. It says whether it believed in its lock on waking, and when `lost()` ended after that.
pub(crate) fn side(url: &str, name: &str) {
    run(async {
        let locks = connect(url).await;
        let guard =
            locks.mutex(name).expect("a good name").lock().ttl(LEASE).await.expect("nobody else wants it");
        let guard = Arc::new(guard);
        let watched = Arc::clone(&guard);
        // A thread of its own sees the gap at once, whatever the runtime is doing.
        let watch = std::thread::spawn(move || {
            let mut told = false;
            loop {
                let before = boottime();
                // Only now: a stop that comes before the first look at the clock would not be seen.
                if !told {
                    println!("held");
                    told = true;
                }
                std::thread::sleep(Duration::from_millis(1));
                let now = boottime();
                if now - before > GAP.as_nanos() as u64 {
                    return (watched.ensure_held().is_ok(), now);
                }
            }
        });
        guard.lost().await;
        let lost = boottime();
        let (believes, woke) = watch.join().expect("a thread that does not panic");
        println!("{believes} {}", lost.saturating_sub(woke) as f64 / 1e6);
    });
}
