//! The command as other systems have it: the verbs that start no program, on Redis. Built by `--cfg fencepost_portable`.
#![cfg(fencepost_portable)]

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The command at this server, or at the engine that the settings name.
fn fencepost(server: Option<&Redis>, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost"));
    command.args(arguments).env_remove("FENCEPOST_BACKEND").env("XDG_CONFIG_HOME", "/nonexistent");
    if let Some(server) = server {
        command.env("FENCEPOST_BACKEND", server.url());
    }
    command
}

/// Its exit code, and what it printed.
fn said(server: Option<&Redis>, arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = fencepost(server, arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn verbs_that_start_programs_say_why_not() {
    for words in [&["run", "-n", "backup", "--", "true"][..], &["demo", "zombie"]] {
        let (code, _, stderr) = said(None, words);
        assert_eq!(code, Some(64), "{stderr}");
        assert!(stderr.contains(&format!("'{}' needs Linux: ", words[0])), "{stderr}");
    }
}

#[test]
fn a_file_of_locks_is_refused() {
    let (code, _, stderr) = said(None, &["ls"]);
    assert_eq!((code, stderr.contains("a file of locks needs Linux")), (Some(64), true), "{stderr}");
    let (code, _, stderr) = said(None, &["ls", "-b", "sqlite:locks.db"]);
    assert_eq!((code, stderr.contains("sqlite")), (Some(64), true), "{stderr}");
}

#[test]
fn a_lease_is_taken_shown_extended_and_released() {
    needs!(REDIS);
    let server = Redis::start(&Config::new()).unwrap();
    let server = Some(&server);
    let (code, lease, stderr) = said(server, &["acquire", "--ttl", "1m", "deploy"]);
    assert_eq!(code, Some(0), "{stderr}");
    let busy = said(server, &["acquire", "-n", "deploy"]);
    assert_eq!(busy.0, Some(75), "{busy:?}");
    let shown = said(server, &["show", "deploy"]);
    assert!(shown.1.contains("lease taken by"), "{shown:?}");
    assert!(said(server, &["ls"]).1.contains("deploy"));
    for words in [&["extend", "--ttl", "2m"][..], &["release"]] {
        let output = fencepost(server, words).env("FENCEPOST_LEASE", lease.trim()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    assert!(said(server, &["show", "deploy"]).1.contains("is free"));
    assert_eq!(said(server, &["doctor"]).0, Some(0), "{:?}", said(server, &["doctor"]));
}

#[test]
fn a_lock_is_held_until_a_signal() {
    needs!(REDIS);
    let server = Redis::start(&Config::new()).unwrap();
    let mut holder =
        fencepost(Some(&server), &["hold", "--no-stdin", "leader"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("holding leader token "), "{line}");
    kill(Pid::from_raw(holder.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(holder.wait().unwrap().code(), Some(143));
    assert!(said(Some(&server), &["show", "leader"]).1.contains("is free"));
}
