//! Two hundred `fencepost run` at once on a counter file: the count is exact, the line is kept, tokens grow.

use super::{Place, Wrapper, in_use, wait_for_line};
use crate::figure::Measured;
use std::time::Instant;

const RUNS: usize = 200;
const ROUNDS: usize = 5;
/// Reads, sleeps and writes: without the lock, counts get lost. Logs its number and its token.
const SCRIPT: &str =
    r#"n=$(cat "$0"); sleep 0.01; echo $((n + 1)) >"$0"; echo "$1 $FENCEPOST_TOKEN" >>"$0.log""#;

/// Counts what went wrong over the rounds.
pub(crate) fn runs() -> Measured {
    let mut violations = Vec::new();
    let start = Instant::now();
    for round in 0..ROUNDS {
        // In the last round each joins the line before the next is started, so that its order is known.
        let place = Place::new("crowd");
        for what in one_round(&place, round == ROUNDS - 1) {
            violations.push(format!("round {round}: {what}"));
        }
    }
    let first = violations.first().map_or_else(String::new, |first| format!("; first: {first}"));
    let seconds = start.elapsed().as_secs_f64();
    let note = format!(
        "{ROUNDS} rounds of {RUNS} runs in {seconds:.0} s; count, tokens, leftovers and (last round) order{first}"
    );
    Measured { figure: violations.len() as f64, note }
}

fn one_round(place: &Place, in_order: bool) -> Vec<String> {
    let counter = place.file("counter");
    std::fs::write(&counter, "0\n").expect("the counter file");
    let path = counter.to_string_lossy().into_owned();
    let gate = place.fencepost(&["run", "counter", "--", "sh", "-c", "echo in; read line"]);
    let mut gate = hold(gate);
    let mut runs = Vec::with_capacity(RUNS);
    for number in 0..RUNS {
        let number = number.to_string();
        let arguments = ["run", "-w", "60s", "counter", "--", "sh", "-c", SCRIPT, &path, &number];
        runs.push(Wrapper::start(place.fencepost(&arguments)));
        if in_order {
            wait_for_line(place, "counter", runs.len());
        }
    }
    gate.let_go();
    let mut violations: Vec<String> = Vec::new();
    for (number, run) in runs.iter_mut().enumerate() {
        let code = run.wait();
        if code != 0 {
            violations.push(format!("run {number} ended with {code}"));
        }
    }
    let count = std::fs::read_to_string(&counter).unwrap_or_default();
    if count.trim() != RUNS.to_string() {
        violations.push(format!("the count is {} instead of {RUNS}", count.trim()));
    }
    if in_use(place) > 0 {
        violations.push("a holder or waiter is left in the database".to_owned());
    }
    let log = std::fs::read_to_string(place.file("counter.log")).unwrap_or_default();
    let entries: Vec<(usize, u64)> = log
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(number, token)| Some((number.parse().ok()?, token.parse().ok()?)))
        .collect();
    if !entries.is_sorted_by(|one, next| one.1 < next.1) {
        violations.push("tokens do not strictly grow".to_owned());
    }
    if in_order && !entries.is_sorted_by(|one, next| one.0 < next.0) {
        violations.push("the line was not kept".to_owned());
    }
    violations
}

/// A wrapper whose child holds the lock until it is let go.
struct Gate {
    wrapper: Wrapper,
    input: Option<std::process::ChildStdin>,
}

impl Gate {
    fn let_go(&mut self) {
        self.input = None;
        self.wrapper.wait();
    }
}

fn hold(mut command: std::process::Command) -> Gate {
    command.stdin(std::process::Stdio::piped());
    let mut wrapper = Wrapper::start(command);
    let input = wrapper.process.stdin.take();
    assert_eq!(wrapper.line(), "in", "the first run gets the lock");
    Gate { wrapper, input }
}
