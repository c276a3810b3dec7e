//! Runs steps one after another, a line each, and counts them at the end.

use std::io::Write as _;
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
        if !self.only.is_empty() && !self.only.iter().any(|word| name.contains(word)) {
            return;
        }
        if self.list {
            println!("{name}");
            return;
        }
        print!("{name} … ");
        // The line is finished when the step is; a terminal that shows it late is no reason to fail.
        let _ = std::io::stdout().flush();
        let start = Instant::now();
        let outcome = step();
        let took = seconds(start.elapsed());
        match outcome {
            Ok(Done::Passed(note)) => {
                self.passed += 1;
                println!("ok, {took}{}", if note.is_empty() { note } else { format!(" ({note})") });
            }
            Ok(Done::Skipped(why)) => {
                println!("skipped: {why}");
                self.skipped.push(format!("{name}: {why}"));
            }
            Err(message) => {
                println!("FAILED, {took}");
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

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_run_of_no_step_at_all_fails() {
        let mut runner = Runner::new(&["nothing is called so".to_owned()], false);
        runner.step("first", passed);
        assert!(!runner.finish());
    }
}
