//! Names and kills tests that run too long.
//!
//! The test harness prints a line for each test that has run for 60 s (`ANNOUNCED`), and its result when it ends. This
//! module reads both from the output of `cargo test`, or of a test program. A test that ends neither way in time hangs: its program is
//! killed, and the others run.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Follows each line of a test that the harness found to be slow.
const ANNOUNCED: &str = " has been running for over 60 seconds";

/// The time after which the harness prints that line.
const ANNOUNCED_AFTER: Duration = Duration::from_secs(60);

/// The slow tests of the program that runs now, read from its output while it runs.
pub(crate) struct Overdue {
    output: PathBuf,
    read: u64,
    rest: String,
    grace: Duration,
    slow: Vec<(String, Instant)>,
    killed: Vec<String>,
}

impl Overdue {
    /// Watches the tests whose output goes to `output`. Each may run for `limit`, which is at least 60 s.
    pub(crate) fn new(output: &Path, limit: Duration) -> Overdue {
        Overdue {
            output: output.to_owned(),
            read: 0,
            rest: String::new(),
            grace: limit.saturating_sub(ANNOUNCED_AFTER),
            slow: Vec::new(),
            killed: Vec::new(),
        }
    }

    /// Reads what came since the last call. Says whether a test is overdue now, whose program is to be killed.
    pub(crate) fn check(&mut self) -> bool {
        let now = Instant::now();
        let mut new = Vec::new();
        if let Ok(mut file) = File::open(&self.output)
            && file.seek(SeekFrom::Start(self.read)).is_ok()
            && file.read_to_end(&mut new).is_ok()
        {
            self.read += new.len() as u64;
            self.take(&String::from_utf8_lossy(&new), now);
        }
        let overdue = self.overdue(now);
        if !overdue.is_empty() {
            self.killed.extend(overdue);
            self.slow.clear();
            return true;
        }
        false
    }

    /// The tests whose program was killed for them.
    pub(crate) fn killed(self) -> Vec<String> {
        self.killed
    }

    fn take(&mut self, text: &str, now: Instant) {
        self.rest.push_str(text);
        while let Some(end) = self.rest.find('\n') {
            let line: String = self.rest.drain(..=end).collect();
            let line = line.trim();
            if line.starts_with("Running ") {
                self.slow.clear();
            }
            let Some(test) = line.strip_prefix("test ") else { continue };
            if let Some(name) = test.strip_suffix(ANNOUNCED) {
                self.slow.push((name.to_owned(), now));
            } else if let Some((name, _)) = test.split_once(" ... ") {
                self.slow.retain(|(slow, _)| slow != name);
            }
        }
    }

    fn overdue(&self, now: Instant) -> Vec<String> {
        let late = |since: &Instant| now.duration_since(*since) >= self.grace;
        self.slow.iter().filter(|(_, since)| late(since)).map(|(name, _)| name.clone()).collect()
    }
}

/// Kills the processes that `parent` started: the test program that cargo runs.
pub(crate) fn kill_children(parent: Pid) {
    for child in children(parent) {
        // It may just have ended.
        let _ = kill(child, Signal::SIGKILL);
    }
}

fn children(parent: Pid) -> Vec<Pid> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| parent_of(*pid) == Some(parent.as_raw())).map(Pid::from_raw).collect()
}

fn parent_of(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name stands in parentheses and may hold spaces; the state and the parent follow it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overdue(limit: u64) -> Overdue {
        Overdue::new(Path::new("/dev/null"), Duration::from_secs(limit))
    }

    #[test]
    fn a_test_without_a_result_is_overdue_and_others_are_not() {
        let start = Instant::now();
        let mut tests = overdue(120);
        tests.take("test a::slow has been running for over 60 seconds\ntest b has been runn", start);
        tests.take("ing for over 60 seconds\ntest quick ... ok\n", start);
        assert!(tests.overdue(start + Duration::from_secs(59)).is_empty());
        tests.take("test b ... ok\n", start);
        assert_eq!(tests.overdue(start + Duration::from_secs(60)), ["a::slow"]);
        tests.take("     Running unittests src/lib.rs (target/debug/deps/x)\n", start);
        assert!(tests.overdue(start + Duration::from_secs(60)).is_empty());
    }
}
