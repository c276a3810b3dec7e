//! Common mistakes on the command line, with all that each prints. The table is `mistakes.txt`: a command of the shell behind `$`, its
//! exit code, and its output.

use std::os::unix::fs::symlink;

use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis};
use regex::Regex;
use snapbox::assert::DEFAULT_ACTION_ENV;
use snapbox::{Assert, Redactions, file};

use crate::kit::{HOLD, Kid, Place};

const TABLE: &str = include_str!("mistakes.txt");

/// What differs from run to run, and its place in the text if that is more.
const DIFFERS: [(&str, &str); 5] = [
    ("[TIME]", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"),
    ("[TOKEN]", r"token (?<redacted>\d{7,})"),
    ("[PID]", r"pid (?<redacted>\d+)"),
    ("[AGE]", r"\) for (?<redacted>\d[\d.]*\w+)"),
    ("[USER]", r"held by (?<redacted>[^ @]+)@"),
];

#[test]
fn each_mistake_gets_the_right_advice() {
    needs!(REDIS);
    let place = Place::new();
    let server = Redis::start(&Config::new()).unwrap();
    let port = server.url().rsplit_once(':').unwrap().1.to_owned();
    let _holder = place.running(&["--reason", "nightly"], "taken", HOLD);
    symlink(env!("CARGO_BIN_EXE_fencepost"), place.path("fencepost")).unwrap();
    place.file("text", "");
    let path = format!("{}:{}", place.path("").display(), std::env::var("PATH").unwrap());
    let mut shown = String::new();
    for command in TABLE.lines().filter_map(|line| line.strip_prefix("$ ")) {
        let mut shell = place.via("sh", ["-c", command]);
        let said = Kid::of(shell.env("PATH", &path).env("PORT", &port)).said();
        shown.push_str(&format!("$ {command}\n{}\n{}{}\n", said.code.unwrap(), said.out, said.err));
    }
    let count = TABLE.lines().filter(|line| line.starts_with("$ ")).count();
    assert!(count >= 40, "only {count} mistakes are in the table");
    let mut redactions = Redactions::new();
    redactions.extend(DIFFERS.map(|(name, pattern)| (name, Regex::new(pattern).unwrap()))).unwrap();
    redactions.insert("[HOST]", nix::unistd::gethostname().unwrap().into_string().unwrap()).unwrap();
    redactions
        .insert("[PLACE]", place.path("").display().to_string().trim_end_matches('/').to_owned())
        .unwrap();
    redactions.insert("[PORT]", port).unwrap();
    Assert::new().action_env(DEFAULT_ACTION_ENV).redact_with(redactions).eq(shown, file!["mistakes.txt"]);
}
