//! A busy lock: what the one who does not get it is told, and when it does not ask at all.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::kit::{HOLD, Kid, Place};

#[test]
fn busy_names_holder_host_pid_age_and_reason() {
    let place = Place::new();
    let holder = place.running(&["--reason", "nightly job"], "backup", HOLD);
    let said = place.output(["run", "-n", "backup", "--", "echo", "ran"]);
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let pid = holder.kid.pid().to_string();
    said.expect(75).complains(&[
        "fencepost: backup is busy: held by ",
        &host,
        &pid,
        ") for ",
        "nightly job. Wait for it with -w DUR",
    ]);
    assert_eq!(said.out, "");
}

#[test]
fn the_code_for_busy_can_be_chosen() {
    let place = Place::new();
    let _holder = place.running(&[], "backup", HOLD);
    place.output(["run", "-n", "-E", "9", "backup", "--", "true"]).expect(9).complains(&["busy"]);
    place.output(["run", "-n", "-E", "0", "backup", "--", "true"]).expect(0);
    place
        .output(["run", "-n", "--skip-ok", "backup", "--", "false"])
        .expect(0)
        .complains(&["; skipped (--skip-ok)"]);
    place.output(["run", "-n", "--skip-ok", "-E", "3", "backup", "--", "true"]).expect(64);
}

#[test]
fn a_bounded_wait_ends_and_says_who_holds() {
    let place = Place::new();
    let holder = place.running(&[], "backup", HOLD);
    let start = Instant::now();
    let said = place.output(["run", "-w", "300ms", "backup", "--", "true"]);
    assert!(start.elapsed() >= Duration::from_millis(300));
    said.expect(75).complains(&["backup is still busy after 300ms: held by ", &holder.kid.pid().to_string()]);
    // Nothing of it is left in the queue.
    place.waiters("backup", 0);
}

#[test]
fn who_waits_gets_it_as_soon_as_it_is_free() {
    let place = Place::new();
    let holder = place.running(&[], "backup", HOLD);
    let waiter = Kid::of(&mut place.fencepost(["run", "-w", "1000s", "backup", "--", "echo", "mine"]));
    place.waiters("backup", 1);
    holder.kid.send(Signal::SIGTERM);
    assert_eq!(waiter.said().expect(0).out, "mine\n");
}

#[test]
fn a_waiter_that_is_killed_leaves_no_gap() {
    leaves_no_gap(&Place::new());
}

/// One who waits is killed, and who waits behind comes to its turn.
pub(crate) fn leaves_no_gap(place: &Place) {
    let holder = place.running(&[], "backup", HOLD);
    let mut dead = Kid::of(&mut place.fencepost(["run", "backup", "--", "echo", "dead"]));
    place.waiters("backup", 1);
    let next = Kid::of(&mut place.fencepost(["run", "-w", "100s", "backup", "--", "echo", "next"]));
    place.waiters("backup", 2);
    dead.send(Signal::SIGKILL);
    dead.end();
    holder.kid.send(Signal::SIGTERM);
    assert_eq!(next.said().expect(0).out, "next\n");
}

#[test]
fn readers_share_and_permits_count() {
    let place = Place::new();
    let _reader = place.running(&["-s"], "prices", HOLD);
    place.output(["run", "-n", "-s", "prices", "--", "true"]).expect(0);
    place.output(["run", "-n", "prices", "--", "true"]).expect(75).complains(&[", shared. Wait"]);
    let _one = place.running(&["--permits", "2"], "printers", HOLD);
    let _two = place.running(&["--permits", "2"], "printers", HOLD);
    place
        .output(["run", "-n", "--permits", "2", "printers", "--", "true"])
        .expect(75)
        .complains(&["and 1 more"]);
    place.output(["run", "-n", "--permits", "3", "printers", "--", "true"]).expect(0);
}

#[test]
fn an_unfair_reader_passes_a_writer_that_waits() {
    let place = Place::new();
    let reader = place.running(&["-s"], "prices", HOLD);
    let writer = Kid::of(&mut place.fencepost(["run", "prices", "--", "true"]));
    place.waiters("prices", 1);
    place.output(["run", "-n", "-s", "prices", "--", "true"]).expect(75).complains(&["busy"]);
    for verb in ["run", "hold"] {
        let wait = if verb == "run" { &["-n"][..] } else { &["-w", "30s"] };
        let command = if verb == "run" { &["--", "true"][..] } else { &[] };
        place.output([&[verb, "-s", "--unfair"], wait, &["prices"], command].concat()).expect(0);
    }
    place.waiters("prices", 1);
    reader.kid.send(Signal::SIGTERM);
    writer.said().expect(0);
}

#[test]
fn an_engine_that_is_not_fair_can_be_refused() {
    let place = Place::new();
    place.output(["run", "--require-fair", "prices", "--", "true"]).expect(0);
    let unfair = ["run", "--require-fair", "--degrade", "local", "prices", "--", "true"];
    place.output(unfair).expect(64).complains(&["order of arrival"]);
    place.output(["run", "--require-fair", "--unfair", "prices", "--", "true"]).expect(64);
}
