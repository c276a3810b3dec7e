//! Schemathesis makes requests from the OpenAPI document, and compares the answers with it.

use super::{Copy, run};
use crate::command::Place;
use crate::figure::Measured;
use std::process::Command;

/// The package on PyPI.
const SCHEMATHESIS: &str = "schemathesis==4.32.5";
/// A request that the document allows may break a rule that JSON Schema cannot say: a lease has a check sum, and may have ended; permits go
/// with one mode; a name has no control characters.
const CONFIG: &str =
    "[checks]\npositive_data_acceptance.expected-statuses = [\"2xx\", 400, 403, 409, 410, 422, 501]\n";

/// The paths of the streams.
const STREAMS: &str = "/(hold|changes)$";

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
    let (service, config) = (Copy::start("memory:"), place.file("schemathesis.toml"));
    std::fs::write(&config, CONFIG).expect("a file for the settings");
    let mut notes = vec![format!("{SCHEMATHESIS}, {examples} examples for each request")];
    let mut findings = 0.0;
    for (which, paths, examples, timeout) in [
        ("requests", "--exclude-path-regex", examples, "60"),
        // Each example reads a stream until the time is over.
        ("streams", "--include-path-regex", examples / 10, "3"),
    ] {
        let mut schemathesis = Command::new(program("schemathesis"));
        schemathesis.arg("--config-file").arg(&config).args([
            "run",
            "--no-color",
            "--workers",
            "2",
            paths,
            STREAMS,
        ]);
        schemathesis.args(["--max-examples", &examples.max(1).to_string(), "--request-timeout", timeout]);
        schemathesis.arg(format!("{}/openapi.json", service.url())).current_dir(place.file(""));
        let outcome = schemathesis.output().expect("a program that was just installed");
        let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
        eprintln!("{text}");
        let found = match outcome.status.code() {
            Some(0) => 0,
            // Each finding has an example.
            Some(1) => text.matches("Test Case ID:").count().max(1),
            _ => return missing(format!("schemathesis fails: {}", String::from_utf8_lossy(&outcome.stderr))),
        };
        let cases = text.lines().find(|line| line.contains(" generated,")).unwrap_or_default().trim();
        notes.push(format!("{which}: {cases}"));
        findings += found as f64;
    }
    Measured { figure: findings, note: notes.join("; ") }
}
