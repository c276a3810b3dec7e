//! The help and the manual: groups of options, a synopsis that can be typed, lines that fit, and examples that run.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis};
use fencepost_testkit::sql::Postgres;

use crate::kit::{Kid, Place};

const VERBS: [&str; 21] = [
    "run",
    "acquire",
    "extend",
    "release",
    "ls",
    "show",
    "check",
    "queue",
    "watch",
    "top",
    "evict",
    "permits",
    "hold",
    "demo",
    "doctor",
    "schema",
    "serve",
    "config",
    "copy-to",
    "completions",
    "man",
];

/// Commands below a verb. They have no manual page of their own.
const BELOW: [&str; 3] = ["serve token", "serve token add", "serve token remove"];

fn help(place: &Place, verb: &str) -> String {
    place.output(verb.split(' ').chain(["--help"])).expect(0).out.clone()
}

/// The lines below a heading, up to an empty line that no deeper line follows.
fn section<'a>(help: &'a str, heading: &str) -> Vec<&'a str> {
    let lines = help.lines().skip_while(|line| *line != heading).skip(1);
    lines
        .take_while(|line| line.is_empty() || line.starts_with(' '))
        .filter(|line| !line.is_empty())
        .collect()
}

#[test]
fn options_stand_in_groups() {
    let place = Place::new();
    let help = help(&place, "run");
    for (heading, options) in [
        ("Waiting:", &["--no-wait", "--wait", "--busy-exit", "--skip-ok"][..]),
        ("Sharing:", &["--shared", "--write", "--permits", "--replicas"]),
        ("Time:", &["--ttl", "--max-hold", "--at-least", "--once-per", "--retry", "--release-wait"]),
        ("While the engine is unavailable:", &["--degrade"]),
        ("When the lock is lost:", &["--on-lost", "--grace"]),
        ("Output:", &["--reason", "--log", "--verbose", "--quiet"]),
        ("Where the locks live:", &["--backend", "--across-hosts"]),
    ] {
        let lines = section(&help, heading).join("\n");
        for option in options {
            assert!(lines.contains(option), "no {option} below {heading:?}:\n{help}");
        }
    }
    let codes = section(&help, "Exit codes:");
    for code in ["64 ", "69 ", "70 ", "75 ", "76 ", "77 ", "78 ", "125 ", "126 ", "127 ", "124 "] {
        assert!(codes.iter().any(|line| line.trim_start().starts_with(code)), "no {code:?} in {codes:?}");
    }
}

#[test]
fn the_synopsis_can_be_typed() {
    let place = Place::new();
    for verb in VERBS {
        let help = help(&place, verb);
        let usage = help.lines().find_map(|line| line.strip_prefix("Usage: ")).unwrap().to_owned();
        assert!(usage.starts_with(&format!("fencepost {verb}")) && !usage.contains(['<', '>']), "{usage}");
        let page = place.output(["man", verb]).expect(0).out.clone();
        let synopsis = page.split_once(".SH SYNOPSIS\n").unwrap().1.lines().next().unwrap();
        assert_eq!(synopsis.replace("\\-", "-"), usage);
    }
    for command in BELOW {
        let help = help(&place, command);
        let usage = help.lines().find_map(|line| line.strip_prefix("Usage: ")).unwrap();
        assert!(usage.starts_with(&format!("fencepost {command}")) && !usage.contains(['<', '>']), "{usage}");
    }
    let run = help(&place, "run");
    assert!(run.contains("Usage: fencepost run [OPTIONS] NAME... -- PROGRAM [ARG]...\n"), "{run}");
}

#[test]
fn examples_of_the_help_run() {
    needs!(REDIS, POSTGRES);
    let mut count = 0;
    for verb in VERBS.into_iter().chain(BELOW) {
        // One for each: examples leave leases behind.
        let server = Redis::start(&Config::new()).unwrap();
        let place = Place::at(&server.url());
        let text = help(&place, verb);
        let headings = ["Examples:", "Example:"];
        let examples: Vec<&str> = headings.iter().flat_map(|heading| section(&text, heading)).collect();
        assert!(!examples.is_empty(), "{verb} has no example");
        for program in ["backup.sh", "report.sh", "start.sh", "python"] {
            let file = place.file(program, "#!/bin/sh\n");
            fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::create_dir_all(place.path("shared")).unwrap();
        fs::create_dir_all(place.path(".local/share/bash-completion/completions")).unwrap();
        symlink(env!("CARGO_BIN_EXE_fencepost"), place.path("fencepost")).unwrap();
        let script = format!("{}\n{}\n", before(verb), examples.join("\n"));
        let postgres = (verb == "schema").then(|| Postgres::start().unwrap());
        let postgres_url = postgres.as_ref().map(Postgres::url).unwrap_or_default();
        let script = script
            .replace("postgres://me@db/app", &postgres_url)
            .replace("redis://127.0.0.1", &server.url())
            .replace("redis://db", &server.url())
            .replace("--token 7", "--yes --token $token")
            // They go on until somebody ends them.
            .replace("fencepost watch", "timeout 1 fencepost watch")
            .replace("fencepost serve\n", "timeout 1 fencepost serve --listen 127.0.0.1:0\n")
            .replace("--no-stdin deploys", "--no-stdin deploys & kill $!");
        let path = format!("{}:{}", place.path("").display(), std::env::var("PATH").unwrap());
        if verb == "top" {
            // They need a terminal: the test `top::` runs them.
            continue;
        }
        let mut shell = place.via("bash", ["-c", &format!("set -eu -o pipefail; {script}")]);
        let said = Kid::of(shell.env("PATH", path).env("HOME", place.path(""))).said();
        let expected = if ["serve", "watch"].contains(&verb) { 124 } else { 0 };
        assert_eq!(said.code, Some(expected), "{script}\n{said:?}");
        count += examples.len();
    }
    assert!(count >= 20, "only {count} lines of examples were found");
}

/// The state that a verb's examples begin with.
fn before(verb: &str) -> &'static str {
    match verb {
        "serve token remove" => "fencepost serve token add --tokens tokens.jsonl --allow read: ci",
        "extend" | "release" | "show" => "lease=$(fencepost acquire --ttl 10m deploy)",
        "evict" => {
            "fencepost acquire --ttl 10m backup >lease; token=$(fencepost show --json backup | jq .holders[0].token)"
        }
        // The first of its examples ends with 124, too.
        "watch" => "set +e",
        _ => ":",
    }
}

#[test]
fn tables_of_the_help_fit_a_terminal_of_80_columns() {
    let place = Place::new();
    for verb in VERBS.into_iter().chain(BELOW) {
        let arguments = verb.split(' ').chain(["--help"]);
        let said = Kid::of(place.fencepost(arguments).env("COLUMNS", "80")).said();
        for line in said.expect(0).out.lines() {
            // An example is copied whole.
            let example = line.contains("fencepost ");
            assert!(example || line.chars().count() <= 80, "{verb}: {line:?}");
        }
    }
}
