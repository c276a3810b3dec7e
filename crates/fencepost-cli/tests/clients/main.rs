//! The clients in other languages: each passes the cases of `clients/behaviour.json` and its own tests, and the examples of its page run.

mod pages;

use std::fs;
use std::io::ErrorKind;
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
    // `cargo xtask test` has one with the packages of the examples.
    let mut python = Command::new(std::env::var("FENCEPOST_PYTHON").unwrap_or("python3".to_owned()));
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

/// Runs the own tests of a client in its folder. What their output says of skipped tests is noted. A tool that is missing skips all.
fn tests_of(client: &str, command: &mut Command) {
    command.current_dir(Path::new(ROOT).join("clients").join(client));
    let output = command.env("FENCEPOST", env!("CARGO_BIN_EXE_fencepost")).output();
    let output = match output {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let tool = command.get_program().to_string_lossy();
            eprintln!("skipped: the tests of the client for {client}, because there is no {tool}");
            return skip(&tool);
        }
        output => output.expect("it starts"),
    };
    passed(client, &output);
}

/// Takes the output of tests, which say `skipped: ` and why if some of them were not run.
fn passed(what: &str, output: &Output) {
    let said = String::from_utf8_lossy(&output.stdout);
    let is_skip = |line: &&str| line.contains("skipped: ") || line.contains("# SKIP ");
    let mut why = said.lines().filter(is_skip).collect::<Vec<_>>().join("; ");
    if output.status.code() == Some(MISSING) && why.is_empty() {
        said.trim().clone_into(&mut why);
    }
    if !why.is_empty() {
        eprintln!("skipped: {what}: {why}");
        skip(what);
    }
    let is_good = output.status.success() || output.status.code() == Some(MISSING);
    assert!(is_good, "{said}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "`cargo xtask test own` runs it, because it loads modules and compiles them for minutes at the first time"]
fn tests_of_the_client_for_go() {
    tests_of("go", &mut Command::new("./test"));
}

#[test]
fn tests_of_the_client_for_node() {
    tests_of("node", Command::new("npm").args(["test", "--silent"]));
}

/// The same beside the packages that examples and types need, in a copy of what the tests read.
#[test]
#[ignore = "`cargo xtask test own` runs it, because it loads packages"]
fn tests_of_the_client_for_node_with_its_packages() {
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("client-for-node");
    for folder in ["clients/node", "docs/clients"] {
        let to = copy.join(folder);
        // `node_modules` stays from an earlier run.
        fs::create_dir_all(&to).unwrap();
        let copied = Command::new("cp")
            .arg("-r")
            .arg(Path::new(ROOT).join(folder).join("."))
            .arg(&to)
            .status()
            .unwrap();
        assert!(copied.success());
    }
    let mut install = Command::new("npm");
    install.args(["install", "--no-package-lock", "--no-audit", "--no-fund", "--silent"]);
    let is_installed = install.current_dir(copy.join("clients/node")).output();
    if !is_installed.is_ok_and(|output| output.status.success()) {
        eprintln!(
            "skipped: the tests of the client for node with its packages, because npm has not installed them"
        );
        return skip("packages of npm");
    }
    let output = Command::new("npm")
        .args(["test", "--silent"])
        .current_dir(copy.join("clients/node"))
        .env("FENCEPOST", env!("CARGO_BIN_EXE_fencepost"))
        .output();
    passed("node with its packages", &output.expect("npm is there"));
}

/// Maven is told not to ask its servers, unless something was never loaded.
#[test]
#[ignore = "`cargo xtask test own` runs it, because it loads packages, and ShedLock's kit has times that a busy machine misses"]
fn tests_of_the_client_for_java() {
    let verify = |options: &[&str]| {
        let mut maven = Command::new("mvn");
        maven.args(["--quiet", "--batch-mode"]).args(options).arg("verify");
        maven
    };
    let is_loaded =
        verify(&["--offline", "-DskipTests"]).current_dir(Path::new(ROOT).join("clients/java")).output();
    let is_loaded = is_loaded.is_ok_and(|output| output.status.success());
    tests_of("java", &mut verify(if is_loaded { &["--offline"] } else { &[] }));
}

/// The compiler knows whether the client still has what they call.
#[test]
fn examples_of_the_page_for_java_compile() {
    passed("examples for java", &run("java/examples/run.py", &["--compile"], &[]));
}

#[test]
#[ignore = "`cargo xtask test own` runs it, because each of the thirteen starts a Java machine and a service"]
fn examples_of_the_page_for_java_run() {
    needs!(POSTGRES);
    let server = Postgres::start().unwrap();
    // Debian's libpostgresql-jdbc-java.
    let driver = "/usr/share/java/postgresql.jar";
    let mut variables = vec![("DATABASE_URL", server.url())];
    if Path::new(driver).exists() {
        variables.push(("PGJDBC", driver.to_owned()));
    }
    let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    passed("examples for java", &run("java/examples/run.py", &[], &variables));
}

#[test]
fn examples_of_the_page_for_python_run() {
    needs!(POSTGRES);
    let server = Postgres::start().unwrap();
    let url = server.url();
    passed("examples for python", &run("python/tests/examples.py", &[], &[("DATABASE_URL", &url)]));
}
