//! How long requests take while their engine is killed or hangs, with each degrade policy.

use crate::client::threads;
use crate::figure::Measured;
use crate::redis;
use fencepost::{Degrade, Locks};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::server::TempDir;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The attempt limit of the clients.
const ATTEMPT: Duration = Duration::from_millis(300);
/// The waiting times of the requests: some are shorter than the attempt limit, some are longer.
const WAITS: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(500)];
const CLIENTS: usize = 2;
/// The tasks of a client.
const TASKS: usize = 16;
/// The names that all tasks use.
const NAMES: usize = 8;
const LEASE: Duration = Duration::from_secs(1);
/// How long the engine is up, killed or stopped.
const SPAN: Duration = Duration::from_secs(2);

/// The outcomes that the tasks of a policy have seen.
#[derive(Default)]
struct Seen {
    ends: AtomicBool,
    requests: AtomicU64,
    /// The longest time in µs that a request took past the longer of its waiting time and the attempt limit.
    over: AtomicU64,
}

/// The longest time, in ms, that a request took past the longer of its waiting time and the attempt limit, at worst of the policies.
pub(crate) fn bound() -> Measured {
    let folder = TempDir::new("degrade").expect("a folder");
    let fallback = format!("sqlite:{}", folder.path().join("locks.db").display());
    let policies = [
        ("fail_closed", Degrade::fail_closed()),
        ("fallback", Degrade::fallback(&fallback).max_ttl(LEASE)),
        ("local_only", Degrade::local_only()),
        ("fail_open", Degrade::fail_open()),
    ];
    let runs = policies.map(|(name, degrade)| (name, run(degrade)));
    let note = |(name, (requests, over)): &(&str, (u64, f64))| {
        format!("{name}: {over:.1} ms of {requests} requests")
    };
    let worst = runs.iter().map(|(_, (_, over))| *over).fold(0.0, f64::max);
    Measured { figure: worst, note: runs.iter().map(note).collect::<Vec<_>>().join(", ") }
}

/// Kills and stops a server under load. Returns the number of requests, and the longest excess in ms.
fn run(degrade: Degrade) -> (u64, f64) {
    let mut server = redis::start();
    let runtime = threads();
    let seen = Arc::new(Seen::default());
    let degrade = degrade.probe_interval(ATTEMPT);
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let options =
            Locks::builder(&server.url()).ttl(LEASE).attempt_timeout(ATTEMPT).degrade(degrade.clone());
        let locks = runtime.block_on(options.connect()).expect("a server that answers");
        for task in 0..TASKS {
            tasks.push(runtime.spawn(work(locks.clone(), task, Arc::clone(&seen))));
        }
    }
    std::thread::sleep(SPAN);
    server.kill().expect("a server that can be killed");
    std::thread::sleep(SPAN);
    server.restart().expect("a server that starts again");
    std::thread::sleep(SPAN);
    server.stop().expect("a server that can be stopped");
    std::thread::sleep(SPAN);
    server.cont().expect("a server that goes on");
    std::thread::sleep(SPAN);
    seen.ends.store(true, Ordering::Relaxed);
    for task in tasks {
        runtime.block_on(task).expect("a task that does not panic");
    }
    (seen.requests.load(Ordering::Relaxed), seen.over.load(Ordering::Relaxed) as f64 / 1e3)
}

async fn work(locks: Locks, task: usize, seen: Arc<Seen>) {
    let lock = locks.mutex(&format!("lock/{}", task % NAMES)).expect("a good name");
    for turn in task.. {
        if seen.ends.load(Ordering::Relaxed) {
            return;
        }
        let wait = WAITS[turn % WAITS.len()];
        let began = Instant::now();
        let guard = lock.lock().wait(wait).await;
        let over = began.elapsed().saturating_sub(wait.max(ATTEMPT));
        seen.over.fetch_max(over.as_micros() as u64, Ordering::Relaxed);
        seen.requests.fetch_add(1, Ordering::Relaxed);
        // A closed loop over a dead engine would be a busy loop.
        tokio::time::sleep(Duration::from_millis(1)).await;
        drop(guard);
    }
}
