//! Handoffs while all connections are cut again and again.

use crate::client::{NAME, runtime};
use crate::figure::Measured;
use fencepost::Locks;
use fencepost_testkit::redis::{Look, Redis};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The times between two cuts.
const PERIODS: [u64; 4] = [100, 250, 500, 1_000];
/// Clients that take turns.
const CLIENTS: usize = 3;
/// A claim that waits longer has missed a free lock.
const WAIT: Duration = Duration::from_secs(20);
/// The time for which each holder has the lock.
const HELD: Duration = Duration::from_millis(50);

/// The handoffs under one period.
#[derive(Default)]
struct Handoffs {
    times: Vec<Duration>,
    /// When the last release was called. `None`: the lock is held.
    released: Option<Instant>,
    failed: Vec<String>,
}

/// Measures the longest of `count` handoffs with each period.
pub(crate) fn handoffs(count: usize) -> Measured {
    let periods = PERIODS.map(|period| std::thread::spawn(move || under_cuts(period, count)));
    let (mut longest, mut notes, mut failed) = (Duration::ZERO, Vec::new(), Vec::new());
    for (period, handoffs) in PERIODS.into_iter().zip(periods) {
        let Handoffs { mut times, failed: failures, .. } =
            handoffs.join().expect("a thread that does not panic");
        times.sort_unstable();
        let worst = times.last().copied().unwrap_or(WAIT);
        longest = longest.max(worst);
        notes.push(format!("{period} ms: median {:.0?}, longest {worst:.0?}", times[times.len() / 2]));
        failed.extend(failures);
    }
    let first = failed.first().map_or_else(String::new, |first| format!("; first: {first}"));
    let note = format!("{count} handoffs each; {}; {} calls failed{first}", notes.join("; "), failed.len());
    Measured { figure: if failed.is_empty() { longest.as_secs_f64() } else { f64::NAN }, note }
}

fn under_cuts(period: u64, count: usize) -> Handoffs {
    let server = super::start();
    let handoffs = Arc::new(Mutex::new(Handoffs::default()));
    let over = Arc::new(AtomicBool::new(false));
    let cutter = std::thread::spawn({
        let (look, over) = (server.look(), Arc::clone(&over));
        move || cut(look, Duration::from_millis(period), &over)
    });
    runtime().block_on(take_turns(&server, &handoffs, count));
    over.store(true, Ordering::Relaxed);
    cutter.join().expect("a thread that does not panic");
    std::mem::take(&mut *handoffs.lock().expect("nobody panics"))
}

/// Ends the connections of all clients, those with messages too, once in each period.
fn cut(mut look: Look, period: Duration, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        std::thread::sleep(period);
        for kind in ["normal", "pubsub"] {
            let _: i64 = look.ask(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
        }
    }
}

async fn take_turns(server: &Redis, handoffs: &Arc<Mutex<Handoffs>>, count: usize) {
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let locks = loop {
            // A connection may be cut before it is made.
            if let Ok(locks) = Locks::connect(&server.url()).await {
                break locks;
            }
        };
        tasks.push(tokio::spawn(take_turn(locks, Arc::clone(handoffs), count)));
    }
    for task in tasks {
        task.await.expect("a task that does not panic");
    }
}

/// Locks and releases until there were `count` handoffs.
async fn take_turn(locks: Locks, handoffs: Arc<Mutex<Handoffs>>, count: usize) {
    let lock = locks.mutex(NAME).expect("a good name");
    loop {
        let guard = lock.lock().wait(WAIT).await;
        {
            let mut handoffs = handoffs.lock().expect("nobody panics");
            match &guard {
                Ok(_) => {
                    let took = handoffs.released.take().map(|released| released.elapsed());
                    handoffs.times.extend(took);
                }
                Err(error) => handoffs.failed.push(error.to_string()),
            }
            if handoffs.times.len() >= count || handoffs.failed.len() >= 100 {
                break;
            }
        }
        let Ok(guard) = guard else { continue };
        tokio::time::sleep(HELD).await;
        handoffs.lock().expect("nobody panics").released = Some(Instant::now());
        // Its answer may be lost. Then the cleanup goes on in the background.
        let _ = guard.release().await;
    }
    locks.close().await;
}
