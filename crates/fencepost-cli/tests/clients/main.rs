//! The clients in other languages: each passes the cases of `clients/behaviour.json`, and the examples of its page run.

use std::path::Path;
use std::process::{Command, Output};

use fencepost_testkit::needs;
use fencepost_testkit::needs::skip;
use fencepost_testkit::sql::Postgres;

/// The root of the repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// The exit code of a driver whose language is not installed.
const MISSING: i32 = 77;

/// Runs a program of `clients/` with Python.
fn run(program: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut python = Command::new("python3");
    python.arg(Path::new(ROOT).join("clients").join(program)).args(arguments);
    python.env("FENCEPOST", env!("CARGO_BIN_EXE_fencepost")).envs(variables.iter().copied());
    python.output().expect("python3 is there")
}

/// Runs all cases with the driver of this client. A language that is not installed is skipped.
fn behaves(client: &str) {
    // Each case has services of its own, and other tests with limits of time run beside these.
    let output = run("behave.py", &[client, "--jobs", "2"], &[]);
    let said = String::from_utf8_lossy(&output.stdout);
    if output.status.code() == Some(MISSING) {
        eprintln!("skipped: {said}");
        return skip(client);
    }
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn go() {
    behaves("go");
}

#[test]
fn java() {
    behaves("java");
}

#[test]
fn node() {
    behaves("node");
}

#[test]
fn python() {
    behaves("python");
}

#[test]
fn python_asyncio() {
    behaves("python asyncio");
}

#[test]
fn examples_of_the_page_for_python_run() {
    needs!(POSTGRES);
    let server = Postgres::start().unwrap();
    let output = run("python/tests/examples.py", &[], &[("DATABASE_URL", &server.url())]);
    let said = String::from_utf8_lossy(&output.stdout);
    if said.contains("skipped: ") {
        skip("psycopg");
    }
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}
