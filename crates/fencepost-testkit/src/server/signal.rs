//! Signals to processes that a test has started.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The longest time in which a process stops.
const LIMIT: Duration = Duration::from_secs(30);
/// The pause between two looks at the process.
const PAUSE: Duration = Duration::from_millis(1);

/// Sends a signal to a process. After `SIGSTOP` it returns when the process has stopped.
///
/// `kill` returns before the signal takes effect: until then the process can run on another core, and for example confirm a lock.
///
/// # Panics
/// Panics if there is no such process, or if it does not stop within 30 s.
pub fn send(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).expect("the process is there");
    if signal != Signal::SIGSTOP {
        return;
    }
    let start = Instant::now();
    while !has_stopped(pid) {
        assert!(start.elapsed() < LIMIT, "process {pid} has not stopped");
        sleep(PAUSE);
    }
}

/// Returns whether no thread of the process runs any more.
fn has_stopped(pid: i32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.flatten().all(|thread| {
        let Ok(stat) = fs::read_to_string(thread.path().join("stat")) else { return true };
        // The state follows the program's name, which is in parentheses and can contain any character (proc(5)).
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        matches!(state, Some('T' | 't' | 'Z' | 'X'))
    })
}
