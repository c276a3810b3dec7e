//! Runs steps one after another, a line each, or some beside a longer one, and counts them at the end.

use nix::unistd::gettid;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The outcome of a step that did not fail.
pub(crate) enum Done {
    /// It holds; the text, if any, is put beside its name.
    Passed(String),
    /// It could not be run here; the text says why.
    Skipped(String),
}

/// Done without anything to add.
pub(crate) fn passed() -> Result<Done, String> {
    Ok(Done::Passed(String::new()))
}

/// What a step does.
pub(crate) type Work<'a> = Box<dyn FnOnce() -> Result<Done, String> + Send + 'a>;

/// Counts the tests that ran, by the harness's own lines; none at all is a failure.
pub(crate) fn counted(text: &str) -> Result<Done, String> {
    let results = text.lines().filter_map(|line| line.strip_prefix("test result: ok. ")?.split(' ').next());
    match results.filter_map(|count| count.parse::<usize>().ok()).sum() {
        0 => Err("no test ran".to_owned()),
        count => Ok(Done::Passed(format!("{count} tests"))),
    }
}

/// Steps and what became of them. One that fails does not keep the others from running.
pub(crate) struct Runner {
    only: Vec<String>,
    list: bool,
    started: Instant,
    passed: usize,
    /// Steps that could not be run here, and why.
    skipped: Vec<String>,
    failed: Vec<String>,
}

impl Runner {
    /// A runner for the steps whose name contains one of `only` (all, if it is empty); with `list` it prints names.
    pub(crate) fn new(only: &[String], list: bool) -> Runner {
        let (skipped, failed) = (Vec::new(), Vec::new());
        Runner { only: only.to_vec(), list, started: Instant::now(), passed: 0, skipped, failed }
    }

    /// Runs one step and prints its line.
    pub(crate) fn step(&mut self, name: &str, step: impl FnOnce() -> Result<Done, String>) {
        if !self.runs(name) {
            return;
        }
        print!("{name} … ");
        // The line is finished when the step is; a terminal that shows it late is no reason to fail.
        let _ = std::io::stdout().flush();
        let start = Instant::now();
        let outcome = step();
        self.finished(name, "", start, outcome);
    }

    /// Runs the step `name`, which waits for much of its time, and uses that time for `others`: they run one after another, and get a
    /// processor only when `name` needs none. A step's line is printed when the step has ended.
    pub(crate) fn step_beside(
        &mut self,
        name: &str,
        step: impl FnOnce() -> Result<Done, String>,
        others: Vec<(&str, Work<'_>)>,
    ) {
        let runs_main = self.runs(name);
        let others: Vec<_> = others.into_iter().filter(|other| self.runs(other.0)).collect();
        if !runs_main {
            return others.into_iter().for_each(|(name, step)| self.step(name, step));
        }
        if !others.is_empty() {
            let names: Vec<&str> = others.iter().map(|other| other.0).collect();
            println!("beside {name}: {}", names.join(", "));
        }
        let runner = &Mutex::new(self);
        let finished = |name, start, outcome| {
            let mut runner = runner.lock().unwrap_or_else(PoisonError::into_inner);
            runner.finished(name, &format!("{name} … "), start, outcome);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let idle = run_when_idle();
                for (name, step) in others {
                    let start = Instant::now();
                    finished(name, start, idle.clone().and_then(|()| step()));
                }
            });
            let start = Instant::now();
            finished(name, start, step());
        });
    }

    /// Whether the step of this name runs. Prints the name where steps are listed.
    fn runs(&self, name: &str) -> bool {
        let chosen = self.only.is_empty() || self.only.iter().any(|word| name.contains(word));
        if chosen && self.list {
            println!("{name}");
        }
        chosen && !self.list
    }

    /// Prints what became of a step, and counts it.
    fn finished(&mut self, name: &str, before: &str, start: Instant, outcome: Result<Done, String>) {
        let took = seconds(start.elapsed());
        match outcome {
            Ok(Done::Passed(note)) => {
                self.passed += 1;
                println!("{before}ok, {took}{}", if note.is_empty() { note } else { format!(" ({note})") });
            }
            Ok(Done::Skipped(why)) => {
                println!("{before}skipped: {why}");
                self.skipped.push(format!("{name}: {why}"));
            }
            Err(message) => {
                println!("{before}FAILED, {took}");
                message.lines().for_each(|line| println!("    {line}"));
                self.failed.push(name.to_owned());
            }
        }
    }

    /// Prints the summary, whose last line is `N passed, N failed`; false if a step failed.
    pub(crate) fn finish(self) -> bool {
        if self.list {
            return true;
        }
        println!();
        self.failed.iter().for_each(|name| println!("failed: {name}"));
        self.skipped.iter().for_each(|step| println!("not tested: {step}"));
        println!("took {}", seconds(self.started.elapsed()));
        println!("{} passed, {} failed", self.passed, self.failed.len());
        self.failed.is_empty() && self.passed > 0
    }
}

/// Has the kernel run this thread, and what it starts, only on processors that are idle otherwise.
fn run_when_idle() -> Result<(), String> {
    let thread = gettid().to_string();
    let chrt = Command::new("chrt").args(["--idle", "--pid", "0", &thread]).stdin(Stdio::null()).status();
    match chrt {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`chrt --idle` failed ({status})")),
        Err(error) => Err(format!("`chrt`, of util-linux, does not start: {error}")),
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_failed_step_fails_the_run_and_later_steps_still_run() {
        let mut runner = Runner::new(&[], false);
        let mut later = false;
        runner.step("first", || Err("broken".to_owned()));
        runner.step("second", || {
            later = true;
            passed()
        });
        assert!(later);
        assert!(!runner.finish());
    }

    #[test]
    fn steps_beside_another_run_when_it_waits_and_are_counted() {
        let mut runner = Runner::new(&[], false);
        let (hand_over, received) = mpsc::channel();
        let scheduling = move || {
            let policy = std::fs::read_to_string("/proc/thread-self/stat").map_err(|error| error.to_string());
            hand_over.send(policy?).map_err(|error| error.to_string())?;
            passed()
        };
        let mut policy = String::new();
        // The step fails, unless the other one runs meanwhile.
        let step = || {
            policy = received.recv_timeout(Duration::from_secs(60)).map_err(|error| error.to_string())?;
            passed()
        };
        let broken = || Err("broken".to_owned());
        runner.step_beside("long", step, vec![("other", Box::new(scheduling)), ("broken", Box::new(broken))]);
        assert_eq!((runner.passed, &runner.failed[..]), (2, &["broken".to_owned()][..]));
        // Field 41 of proc_pid_stat(5), counted from the end of the name, is the policy; 5 is SCHED_IDLE.
        let fields = policy.rsplit_once(')').expect("a name in brackets").1;
        assert_eq!(fields.split_whitespace().nth(38), Some("5"), "{policy}");
    }

    #[test]
    fn a_step_that_is_named_alone_does_not_bring_the_one_that_it_runs_beside() {
        let mut runner = Runner::new(&["other".to_owned()], false);
        runner.step_beside("long", || panic!("not named"), vec![("other", Box::new(passed))]);
        assert!(runner.finish());
    }

    #[test]
    fn a_run_of_no_step_at_all_fails() {
        let mut runner = Runner::new(&["nothing is called so".to_owned()], false);
        runner.step("first", passed);
        assert!(!runner.finish());
    }

    #[test]
    fn tests_are_counted_over_all_binaries() {
        let text = "test result: ok. 3 passed; 0 failed;\nother\ntest result: ok. 14 passed; 0 failed;\n";
        assert!(matches!(counted(text), Ok(Done::Passed(count)) if count == "17 tests"));
        assert!(counted("test result: FAILED. 3 passed; 1 failed;").is_err());
    }
}
