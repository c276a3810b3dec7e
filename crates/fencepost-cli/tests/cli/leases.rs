//! Leases: a lock held by no process, across several.

use std::io::Write;
use std::process::Stdio;

use crate::kit::{Kid, LONG, Place, eventually};

fn acquire(place: &Place, options: &[&str], name: &str) -> String {
    place.output(["acquire"].iter().chain(options).chain(&[name])).expect(0).out.trim().to_owned()
}

#[test]
fn acquire_cannot_go_on_while_the_engine_is_away() {
    let place = Place::new();
    for policy in ["open", "local", "sqlite:second.db"] {
        let said = place.output(["acquire", "--degrade", policy, "hello"]);
        said.expect(64).complains(&["fencepost run", "fencepost hold"]);
        assert_eq!(said.out, "");
    }
    place.output(["acquire", "--degrade", "closed", "hello"]).expect(0);
    let variable = place.fencepost(["acquire", "second"]).env("FENCEPOST_DEGRADE", "open").output().unwrap();
    assert!(variable.status.success(), "as the help says: {variable:?}");
    assert!(place.output(["acquire", "--help"]).expect(0).out.contains("FENCEPOST_DEGRADE has no effect"));
}

#[test]
fn a_lease_goes_from_process_to_process() {
    let place = Place::new();
    let lease = acquire(&place, &["--ttl", "60s", "--reason", "deploy"], "site");
    // The process that took it has ended; the lock is held all the same.
    place.output(["run", "-n", "site", "--", "true"]).expect(75).complains(&[
        "deploy",
        "site is busy: lease taken by ",
        ", no process",
    ]);
    Kid::of(place.fencepost(["extend", "--ttl", "90s"]).env("FENCEPOST_LEASE", &lease)).said().expect(0);
    let shown = Kid::of(place.fencepost(["show", "--json"]).env("FENCEPOST_LEASE", &lease)).said();
    let shown: serde_json::Value = serde_json::from_str(&shown.expect(0).out).unwrap();
    assert_eq!((shown["name"].as_str(), shown["held"].as_bool()), (Some("site"), Some(true)));
    assert!(shown["expires_in_ms"].as_u64().unwrap() > 60_000, "{shown}");
    let mut release = Kid::of(place.fencepost(["release", "-"]).stdin(Stdio::piped()));
    release.child().stdin.take().unwrap().write_all(format!("{lease}\n").as_bytes()).unwrap();
    release.said().expect(0);
    place.output(["run", "-n", "site", "--", "true"]).expect(0);
    // It is no more.
    place.output(["release", &lease]).expect(76);
    place.output(["extend", &lease]).expect(76);
    place.output(["show", &lease]).expect(76);
}

#[test]
fn a_lease_ends_with_its_time() {
    let place = Place::new();
    let lease = acquire(&place, &["--ttl", "500ms"], "site");
    place.output(["run", "-w", "30s", "site", "--", "true"]).expect(0);
    place.output(["extend", &lease]).expect(76).complains(&["site"]);
}

#[test]
fn an_old_lease_does_not_end_the_next_one() {
    let place = Place::new();
    let old = acquire(&place, &[], "site");
    place.output(["release", &old]).expect(0);
    let _new = acquire(&place, &[], "site");
    place.output(["release", &old]).expect(76);
    place.output(["run", "-n", "site", "--", "true"]).expect(75);
}

#[test]
fn a_lease_can_be_evicted() {
    let place = Place::new();
    let lease = acquire(&place, &["--ttl", "60s"], "site");
    let token = place.show("site")["holders"][0]["token"].to_string();
    place.output(["evict", "site", "--token", &token, "--yes", "--now"]).expect(0);
    place.output(["run", "-n", "site", "--", "true"]).expect(0);
    place.output(["extend", &lease]).expect(76);
}

#[test]
fn json_and_refusals() {
    let place = Place::new();
    let said = place.output(["acquire", "--json", "--ttl", "60s", "site"]);
    let said: serde_json::Value = serde_json::from_str(&said.expect(0).out).unwrap();
    assert_eq!((said["name"].as_str(), said["ttl_ms"].as_u64()), (Some("site"), Some(60_000)));
    let lease = said["lease"].as_str().unwrap();
    place.output(["acquire", "-n", "site"]).expect(75).complains(&["site is busy"]);
    place.output(["release", lease]).expect(0);
    // One with a slip is refused without being repeated.
    let broken = format!("{}0", &lease[..lease.len() - 1]).replace("fencepost1-", "fencepost1-0");
    let refused = place.output(["release", &broken]);
    refused.expect(64).complains(&["FENCEPOST_LEASE"]);
    assert!(!refused.err.contains(&broken), "{refused:?}");
    for verb in ["release", "extend"] {
        place.output([verb]).expect(64).complains(&["FENCEPOST_LEASE", "fencepost acquire"]);
    }
    // A held lease is a row: the check below would see it.
    let held = acquire(&place, &[], "other");
    assert_eq!(place.leftovers(), ["a claim of other"]);
    place.output(["release", &held]).expect(0);
    // The help shows no secret.
    let help = Kid::of(place.fencepost(["release", "--help"]).env("FENCEPOST_LEASE", lease)).said();
    assert!(!help.expect(0).out.contains(lease));
    eventually("nothing is left", LONG, || place.leftovers().is_empty().then_some(()));
}

#[test]
fn a_lease_of_another_engine_is_not_simply_over() {
    let (place, other) = (Place::new(), Place::new());
    let lease = acquire(&place, &[], "site");
    for verb in ["release", "extend", "show"] {
        let said = Kid::of(other.fencepost([verb]).env("FENCEPOST_LEASE", &lease)).said();
        let text = format!("{}{}", said.expect(76).out, said.err);
        assert!(text.contains("-b or FENCEPOST_BACKEND"), "{verb}: {text}");
    }
    place.output(["release", &lease]).expect(0);
}
