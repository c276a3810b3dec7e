//! Schemathesis makes requests from the OpenAPI document, and compares the answers with it.

use super::Copy;
use crate::command::Place;
use crate::figure::Measured;
use std::process::Command;

/// The package on PyPI.
const SCHEMATHESIS: &str = "schemathesis==4.32.5";

/// Counts the findings; not a number if it does not run.
pub(crate) fn findings(examples: usize) -> Measured {
    let place = Place::new("openapi");
    let environment = place.file("python");
    let program = |name: &str| environment.join("bin").join(name);
    let missing = |note: String| Measured { figure: f64::NAN, note };
    let mut venv = Command::new("python3");
    if let Err(error) = run(venv.args(["-m", "venv"]).arg(&environment)) {
        return missing(format!("no virtual environment; install python3-venv: {error}"));
    }
    let mut pip = Command::new(program("pip"));
    if let Err(error) = run(pip.args(["install", "--quiet", "--disable-pip-version-check", SCHEMATHESIS])) {
        return missing(format!("{SCHEMATHESIS} is not installed: {error}"));
    }
    let service = Copy::start("memory:");
    let mut schemathesis = Command::new(program("schemathesis"));
    let examples = examples.to_string();
    schemathesis.args(["run", "--no-color", "--max-examples", &examples, "--request-timeout", "30"]);
    schemathesis.arg(format!("{}/openapi.json", service.url())).current_dir(place.file(""));
    let outcome = schemathesis.output().expect("a program that was just installed");
    let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
    eprintln!("{text}");
    let last = text.lines().rev().find(|line| !line.trim_matches(['=', ' ']).is_empty()).unwrap_or_default();
    let note =
        format!("{SCHEMATHESIS}, {examples} examples for each request: {}", last.trim_matches(['=', ' ']));
    match outcome.status.code() {
        Some(0) => Measured { figure: 0.0, note },
        // Each finding has a heading with a number.
        Some(1) => Measured { figure: text.matches("\n- ").count().max(1) as f64, note },
        _ => missing(note),
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let outcome = command.output().map_err(|error| error.to_string())?;
    let text = [outcome.stdout, outcome.stderr].concat();
    let last = String::from_utf8_lossy(&text).lines().last().unwrap_or_default().to_owned();
    if outcome.status.success() { Ok(()) } else { Err(last) }
}
