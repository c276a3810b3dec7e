//! A pause between the grant and the start of the program: nothing runs under a lease that is over.

use fencepost_testkit::server::send;
use nix::sys::signal::Signal;

use crate::kit::{Kid, LONG, Place, alive, child_of, eventually, state};

/// The points at which the command can be paused, each in a process of its own: child of the one before.
const POINTS: [&str; 3] = ["wrapper", "guardian", "child"];

/// A point that the command does not have, so that it is not paused.
const NOWHERE: &str = "nowhere";

/// The command with a program that leaves a line in the file `ran`.
fn start(place: &Place, point: &str, options: &[&str]) -> Kid {
    let rest = ["hello", "--", "sh", "-c", "echo $FENCEPOST_TOKEN >> ran"];
    let ttl = if point == NOWHERE { "60s" } else { "2s" };
    let arguments = [&["run", "--ttl", ttl], options, &rest].concat();
    Kid::of(place.fencepost(arguments).env("FENCEPOST_STOP_AT", point))
}

/// The same for a job that runs once a day.
fn start_job(place: &Place, point: &str) -> Kid {
    start(place, point, &["--once-per", "1d"])
}

/// Nothing was run, so the firing has not run: the next start runs the job, and the one after it does not.
fn runs_at_the_next_start(place: &Place) {
    assert_eq!(place.read("ran"), "");
    for _ in 0..2 {
        start_job(place, NOWHERE).said().expect(0);
        assert_eq!(place.read("ran").lines().count(), 1);
    }
}

/// Waits until the command has stopped itself at `point`; the processes from the wrapper to the one that is stopped.
fn stopped(kid: &Kid, point: &str) -> Vec<i32> {
    // Another point is in the wrapper.
    let depth = POINTS.iter().position(|known| *known == point).unwrap_or(0);
    eventually("it is paused", LONG, || {
        let mut chain = vec![kid.pid()];
        for _ in 0..depth {
            chain.push(child_of(*chain.last()?)?);
        }
        (state(*chain.last()?)? == "T").then_some(chain)
    })
}

/// Pauses the whole command at `point` until its lease has expired and another has held the lock.
fn past_its_lease(place: &Place, kid: &Kid, point: &str) -> Vec<i32> {
    let chain = stopped(kid, point);
    chain.iter().for_each(|pid| send(*pid, Signal::SIGSTOP));
    place.output(["run", "-w", "30s", "hello", "--", "true"]).expect(0);
    chain
}

/// Lets it go on from the innermost process outwards. Each but the wrapper ends before the next one goes on, so that it has to judge
/// by itself.
fn resume(mut chain: Vec<i32>) {
    while let Some(pid) = chain.pop() {
        send(pid, Signal::SIGCONT);
        if !chain.is_empty() {
            eventually("it ends", LONG, || (!alive(pid)).then_some(()));
        }
    }
}

/// Pauses the command at each point past its lease: it runs nothing, whatever it does about a loss.
pub(crate) fn nothing_runs_after_a_pause(place: &Place) {
    for point in POINTS {
        for on_lost in ["term", "kill", "ignore"] {
            let kid = start(place, point, &["--on-lost", on_lost]);
            let chain = past_its_lease(place, &kid, point);
            resume(chain);
            let said = kid.said();
            assert_eq!(
                place.read("ran"),
                "",
                "{point} {on_lost}: it ran under a lease that was over: {said:?}"
            );
            said.expect(76).complains(&["nothing was run"]);
        }
    }
}

#[test]
fn a_program_is_not_started_under_a_lease_that_is_over() {
    nothing_runs_after_a_pause(&Place::at("sqlite:locks.db?pinned=false"));
}

#[test]
fn a_restart_waits_for_the_lock_again_after_a_pause() {
    for point in POINTS {
        let place = Place::at("sqlite:locks.db?pinned=false");
        let kid = start(&place, point, &["--on-lost", "restart"]);
        let first = past_its_lease(&place, &kid, point);
        resume(first);
        // It is paused at the same point under the next grant.
        let second = stopped(&kid, point);
        assert_eq!(place.read("ran"), "", "{point}: it ran under a lease that was over");
        send(*second.last().unwrap(), Signal::SIGCONT);
        kid.said().expect(0).complains(&["nothing was run", "waiting for the lock again"]);
        assert_eq!(place.read("ran").lines().count(), 1, "{point}");
    }
}

#[test]
fn a_firing_is_not_used_up_by_a_pause_before_its_program() {
    for point in ["confirm", "wrapper", "guardian", "child"] {
        let place = Place::at("sqlite:locks.db?pinned=false");
        let kid = start_job(&place, point);
        let chain = stopped(&kid, point);
        chain.iter().for_each(|pid| send(*pid, Signal::SIGSTOP));
        // A look changes nothing at the engine: the withdrawal itself has to forget the run.
        eventually("the lease expires", LONG, || {
            place.show("hello")["holders"].as_array()?.is_empty().then_some(())
        });
        resume(chain);
        kid.said().expect(76);
        runs_at_the_next_start(&place);
    }
}

#[test]
fn a_firing_is_not_used_up_by_a_signal_that_comes_with_the_grant() {
    let place = Place::new();
    let kid = start_job(&place, "confirm");
    stopped(&kid, "confirm");
    kid.send(Signal::SIGTERM);
    kid.send(Signal::SIGCONT);
    kid.said().expect(143);
    runs_at_the_next_start(&place);
}

/// The guardian begins after that, and its parent is another process then.
#[test]
fn a_wrapper_that_is_killed_early_is_named() {
    let place = Place::new();
    // With a program that has ended before the guardian looks, it would have nothing to kill and to say.
    let mut command = place.fencepost(["run", "hello", "--", "sleep", "60"]);
    let kid = Kid::of(command.env("FENCEPOST_STOP_AT", "guardian"));
    stopped(&kid, "guardian");
    let wrapper = kid.pid();
    send(wrapper, Signal::SIGKILL);
    let said = kid.said();
    assert!(said.err.contains(&format!("(process {wrapper}) was killed")), "{said:?}");
}
