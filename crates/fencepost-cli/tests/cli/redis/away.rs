//! `--degrade`: the server is away when the lock is asked for.

use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis};

use crate::kit::{Kid, Place};

const SHOW: [&str; 4] = ["--", "sh", "-c", "echo \"worth: $FENCEPOST_DEGRADED\""];

#[test]
fn a_program_runs_without_the_server_where_the_user_wants_that() {
    needs!(REDIS);
    let mut server = Redis::start(&Config::new()).unwrap();
    let place = Place::at(&server.url());
    let run = |options: &[&str]| {
        let arguments = [&["run", "-n"], options, &["a"], &SHOW[..]].concat();
        place.output(arguments)
    };
    assert_eq!(run(&["--degrade", "open"]).expect(0).out, "worth: \n", "the server is there");
    server.kill().unwrap();
    run(&[]).expect(69);
    run(&["--degrade", "closed"]).expect(69);
    for (policy, worth, text) in
        [("open", "unprotected", "protects nothing"), ("local", "local_only", "excludes this process alone")]
    {
        let said = run(&["--degrade", policy]);
        said.expect(0).complains(&["warning: this lock", text]);
        assert_eq!(said.out, format!("worth: {worth}\n"));
        let said = run(&["--degrade", policy, "--log", "json"]);
        said.expect(0).complains(&[r#""event":"degraded""#, &format!(r#""degraded":"{worth}""#)]);
    }
    let variable = Kid::of(place.fencepost(["run", "a", "--", "true"]).env("FENCEPOST_DEGRADE", "open"));
    variable.said().expect(0).complains(&["protects nothing"]);
}

#[test]
fn a_fallback_waits_for_old_leases() {
    needs!(REDIS);
    let mut server = Redis::start(&Config::new()).unwrap();
    let place = Place::at(&server.url());
    let fallback = format!("sqlite:{}", place.path("fallback.db").display());
    let run = || place.output([&["run", "-n", "--degrade", &fallback, "a"][..], &SHOW].concat());
    assert_eq!(run().expect(0).out, "worth: \n", "both engines have granted it");
    server.kill().unwrap();
    let said = run();
    said.expect(69).complains(&["the engine is away", "old leases"]);
    assert_eq!(said.out, "");
}

#[test]
fn a_policy_that_cannot_be_is_refused() {
    needs!(REDIS);
    let server = Redis::start(&Config::new()).unwrap();
    let place = Place::at(&server.url());
    let run = |options: &[&str]| place.output([&["run"][..], options, &["a", "--", "true"]].concat());
    run(&["--degrade", "opne"]).expect(64).complains(&["closed, open, local"]);
    run(&["--degrade", "memory:"]).expect(64).complains(&["not made of its clock"]);
    let fallback = format!("sqlite:{}", place.path("fallback.db").display());
    run(&["--degrade", &fallback, "--ttl", "31s"]).expect(64).complains(&["30s"]);
}
