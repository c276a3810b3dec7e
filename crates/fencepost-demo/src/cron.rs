//! `fencepost demo cron`: one job in the crontabs of three hosts whose clocks differ.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::Demo;
use crate::stage::{Failure, Stage};

pub(crate) const DEMO: Demo = Demo {
    name: "cron",
    summary: "one job in the crontabs of three hosts whose clocks differ: how often it runs, and what happens when a host dies",
    run,
    part: |_| Err(Failure::usage("this demo has no parts")),
};

/// How many hosts there are.
const HOSTS: usize = 3;
/// How long the job takes.
const JOB: &str = "0.2";
/// How long a round may take.
const LIMIT: Duration = Duration::from_secs(30);

/// A line of a crontab, and what happens.
struct Round {
    name: &'static str,
    line: &'static [&'static str],
    /// The first host dies in the middle of its job.
    dies: bool,
    /// How many jobs are to end well.
    good: usize,
    what: &'static str,
}

const ONCE: &[&str] = &["-q", "--skip-ok", "--once-per", "1m", "-w", "20s", "--ttl", "5s"];
const RETRY: &[&str] = &["-q", "--skip-ok", "--once-per", "1m", "--retry", "-w", "20s", "--ttl", "5s"];

const ROUNDS: [Round; 4] = [
    Round {
        name: "run -n",
        line: &["-q", "-n"],
        dies: false,
        good: 3,
        what: "A lock alone: the job is over when the next host fires, so it runs again there.",
    },
    Round {
        name: "--once-per",
        line: ONCE,
        dies: false,
        good: 1,
        what: "The engine remembers the run, and the other hosts skip it. Their clocks do not count.",
    },
    Round {
        name: "a host dies",
        line: ONCE,
        dies: true,
        good: 0,
        what: "The same line. The first host dies in the middle of the job. A job that began is not begun again.",
    },
    Round {
        name: "--retry",
        line: RETRY,
        dies: true,
        good: 1,
        what: "The same with --retry, for a job that may run twice: the next host runs it.",
    },
];

#[derive(Serialize)]
struct Facts {
    line: String,
    host_dies: bool,
    began: usize,
    ended_well: usize,
}

fn run(stage: &Stage) -> Result<bool, Failure> {
    stage.picture.say(&format!(
        "One job of {JOB} s in the crontabs of {HOSTS} hosts. Their clocks differ by more than that: each fires when the job of the\n\
         host before it is over.\n"
    ));
    let mut as_told = true;
    for round in ROUNDS {
        let facts = play(stage, &round)?;
        as_told &= facts.ended_well == round.good;
    }
    stage.picture.say("");
    for Round { name, what, .. } in ROUNDS {
        stage.picture.say(&format!("  {name:<18} {what}"));
    }
    Ok(stage
        .end(as_told, "The line for your crontab, with 24h for a nightly job, is on the page docs/cron.md."))
}

fn play(stage: &Stage, round: &Round) -> Result<Facts, Failure> {
    let log = stage.folder().join(round.name.replace(' ', "-"));
    std::fs::write(&log, "")?;
    let row = stage.picture.row(round.name, HOSTS as u64);
    let limit = Instant::now() + LIMIT;
    for index in 0..HOSTS {
        row.move_to(index as u64, &format!("host {} fires", index + 1));
        let dies = round.dies && index == 0;
        let mut host = start(stage, round, dies, &log)?;
        loop {
            if dies && std::fs::read_to_string(&log)?.contains("began") {
                // The command's guardian stops the job, as the end of the host would.
                host.0.kill()?;
            }
            if host.0.try_wait()?.is_some() {
                break;
            }
            if Instant::now() > limit {
                return Err(Failure::new("a host's command did not end in time"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let log = std::fs::read_to_string(log)?;
    let count = |word: &str| log.lines().filter(|line| *line == word).count();
    let facts = Facts {
        line: format!("fencepost run {} nightly -- ./job", round.line.join(" ")),
        host_dies: round.dies,
        began: count("began"),
        ended_well: count("ended"),
    };
    let text = format!("the job began {}×, and ended well {}×", facts.began, facts.ended_well);
    stage.picture.end(row, &text, &facts);
    Ok(facts)
}

/// A host's command. It is killed when this is dropped.
struct Host(Child);

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(stage: &Stage, round: &Round, hangs: bool, log: &std::path::Path) -> Result<Host, Failure> {
    let time = if hangs { "60" } else { JOB };
    let name = format!("fencepost-demo/{}/{}", std::process::id(), round.name);
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("run").args(round.line).arg(name).args(["--", "sh", "-c"]);
    command.arg(format!("echo began >> \"$DEMO_LOG\"; sleep {time}; echo ended >> \"$DEMO_LOG\""));
    command.env("FENCEPOST_BACKEND", stage.backend()).env("DEMO_LOG", log);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    Ok(Host(child))
}
