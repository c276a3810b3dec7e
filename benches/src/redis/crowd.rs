//! A line over several processes that drains: everybody stands in it, and the lock passes through all.

use super::server::{Auditor, url, wait_until};
use super::{NAME, connect};
use crate::command::Wrapper;
use fencepost::Locks;
use fencepost_testkit::redis::Redis;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::runtime::Runtime;

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

    fn try_of(processes: usize, waiters: usize, command: impl Fn() -> Command) -> Option<Crowd> {
        let start = |_| {
            let mut command = command();
            command.stdin(Stdio::piped());
            Wrapper::start(command)
        };
        let mut sides: Vec<Wrapper> = (0..processes).map(start).collect();
        let ready = sides.iter_mut().all(|side| side.line() == "ready");
        ready.then(|| Crowd { sides, each: waiters / processes })
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

/// This program as a side with fencepost's lock.
pub(crate) fn ours(server: &Redis) -> Command {
    side("redis-side-ours", server)
}

/// This program as a side with a list and BLPOP.
pub(crate) fn floor(server: &Redis) -> Command {
    side("redis-side-floor", server)
}

fn side(program: &str, server: &Redis) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
    command.args([program, &url(server), NAME]);
    command
}

/// Looks at a line without a share in it.
pub(crate) struct Observer {
    runtime: Runtime,
    locks: Locks,
    auditor: Auditor,
}

impl Observer {
    /// One beside the server.
    pub(crate) fn of(server: &Redis) -> Observer {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let locks = runtime.block_on(connect(&url(server)));
        Observer { runtime, locks, auditor: Auditor::of(server) }
    }

    /// Waits until so many stand in fencepost's line.
    pub(crate) fn in_line(&self, count: usize) {
        wait_until("all stood in line", || self.waiting() == count);
    }

    /// How many stand in fencepost's line.
    pub(crate) fn waiting(&self) -> usize {
        self.runtime.block_on(self.locks.inspect(NAME)).expect("a server that answers").waiters().count()
    }

    /// Waits until so many stand in a blocking command.
    pub(crate) fn blocked(&mut self, count: usize) {
        wait_until("all stood in line", || self.auditor.blocked() == count);
    }
}

/// For one whose line cannot be looked at: by then every waiter has asked.
pub(crate) fn a_second(_: usize) {
    std::thread::sleep(Duration::from_secs(1));
}
