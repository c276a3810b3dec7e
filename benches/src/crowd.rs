//! A line over several processes that drains: everybody stands in it, and the lock passes through all.

use crate::client::NAME;
use crate::command::Wrapper;
use crate::side::program;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Processes that the waiters are spread over.
pub(crate) const PROCESSES: usize = 4;

/// The processes of a line. They end with it.
pub(crate) struct Crowd {
    sides: Vec<Wrapper>,
    each: usize,
}

/// How the lock went through a line.
pub(crate) struct Drained {
    /// When each was granted, in µs from the first release; in order.
    pub(crate) waits: Vec<f64>,
}

impl Drained {
    /// Handoffs: each of them goes to another owner.
    pub(crate) fn handoffs(&self) -> f64 {
        self.waits.len() as f64
    }

    /// Seconds from the first release to the last grant.
    pub(crate) fn seconds(&self) -> f64 {
        self.waits.last().copied().unwrap_or(f64::NAN) / 1e6
    }

    /// The longest time between two grants, in ms.
    pub(crate) fn longest_step(&self) -> f64 {
        self.waits.windows(2).map(|pair| (pair[1] - pair[0]) / 1e3).fold(0.0, f64::max)
    }

    /// The longest wait as a multiple of the mean.
    pub(crate) fn longest(&self) -> f64 {
        let mean = self.waits.iter().sum::<f64>() / self.handoffs();
        self.waits.last().copied().unwrap_or(f64::NAN) / mean
    }
}

impl Crowd {
    /// Starts the processes; `waiters` is what they stand for together.
    pub(crate) fn gather(waiters: usize, command: impl Fn() -> Command) -> Crowd {
        Crowd::try_gather(waiters, command).expect("processes that start")
    }

    /// The same in as many processes as that.
    pub(crate) fn of(processes: usize, waiters: usize, command: impl Fn() -> Command) -> Crowd {
        Crowd::try_of(processes, waiters, command).expect("processes that start")
    }

    /// The same for programs that may not start.
    pub(crate) fn try_gather(waiters: usize, command: impl Fn() -> Command) -> Option<Crowd> {
        Crowd::try_of(PROCESSES, waiters, command)
    }

    /// Both.
    pub(crate) fn try_of(processes: usize, waiters: usize, command: impl Fn() -> Command) -> Option<Crowd> {
        let start = |_| {
            let mut command = command();
            command.stdin(Stdio::piped());
            Wrapper::start(command)
        };
        let mut sides: Vec<Wrapper> = (0..processes).map(start).collect();
        let ready = sides.iter_mut().all(|side| side.line() == "ready");
        ready.then(|| Crowd { sides, each: waiters / processes })
    }

    /// Lets all take and release the lock for so many seconds, over and over. Returns how often they were granted it, if they answer.
    pub(crate) fn try_load(&mut self, seconds: u64) -> Option<f64> {
        // The token of the floor is in its list after that.
        self.sides[0].say("hold");
        self.sides[0].line().strip_prefix("held")?;
        self.sides[0].say("free");
        self.sides[0].line().strip_prefix("freed")?;
        for side in &mut self.sides {
            side.say(&format!("load {} {seconds}", self.each));
        }
        self.sides.iter_mut().map(|side| side.line().strip_prefix("loaded ")?.parse::<f64>().ok()).sum()
    }

    /// Lets the line form, waits until `in_line`, and lets it drain.
    pub(crate) fn drain(&mut self, in_line: impl FnOnce(usize)) -> Drained {
        self.try_drain(in_line).expect("processes that answer")
    }

    /// The same for programs that may fail.
    pub(crate) fn try_drain(&mut self, in_line: impl FnOnce(usize)) -> Option<Drained> {
        self.sides[0].say("hold");
        self.sides[0].line().strip_prefix("held")?;
        for side in &mut self.sides {
            side.say(&format!("line {}", self.each));
        }
        for side in &mut self.sides {
            side.line().strip_prefix("waiting")?;
        }
        in_line(self.each * self.sides.len());
        self.sides[0].say("free");
        let freed: f64 = self.sides[0].line().strip_prefix("freed ")?.parse().ok()?;
        for side in &mut self.sides {
            side.say("done");
        }
        let mut waits = Vec::new();
        for side in &mut self.sides {
            let line = side.line();
            let times = line.strip_prefix("done")?.split_whitespace();
            waits.extend(times.filter_map(|at| at.parse::<f64>().ok()).map(|at| at - freed));
        }
        waits.sort_by(f64::total_cmp);
        Some(Drained { waits })
    }
}

/// This program as a side with fencepost's lock at `url`.
pub(crate) fn ours(url: &str) -> Command {
    program(&["side-ours", url, NAME])
}

/// Waits until `there` is true; a minute at most.
pub(crate) fn wait_until(what: &str, mut there: impl FnMut() -> bool) {
    for _ in 0..6_000 {
        if there() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("a minute went by before {what}");
}
