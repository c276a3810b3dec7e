//! While no program runs: how long the command waits, what signals do to it, and how long a dead engine can hold it up.

use fencepost_testkit::needs;
use std::time::{Duration, Instant};

use fencepost_testkit::faults::Faults;
use fencepost_testkit::redis::{Config, Redis};
use nix::sys::signal::Signal;

use crate::kit::{HOLD, Kid, LONG, Place, eventually, takes_less_than};

/// More than the command may be late by itself. A machine that is busy with other things adds to that, so that each case has three tries.
const LATE: Duration = Duration::from_millis(1_500);

#[test]
fn a_signal_whose_default_is_the_end_ends_the_waiting() {
    let place = Place::new();
    let _holder = place.running(&[], "backup", HOLD);
    for signal in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGALRM,
    ] {
        let waiter = Kid::of(&mut place.fencepost(["run", "backup", "--", "echo", "ran"]));
        place.waiters("backup", 1);
        waiter.send(signal);
        assert_eq!(waiter.said().expect(128 + signal as i32).out, "");
        place.waiters("backup", 0);
    }
}

#[test]
fn other_signals_leave_the_waiting_alone() {
    let place = Place::new();
    let holder = place.running(&[], "backup", HOLD);
    let waiter = Kid::of(&mut place.fencepost(["run", "backup", "--", "echo", "ran"]));
    place.waiters("backup", 1);
    for signal in [Signal::SIGWINCH, Signal::SIGCONT] {
        waiter.send(signal);
    }
    holder.kid.send(Signal::SIGTERM);
    assert_eq!(waiter.said().expect(0).out, "ran\n");
}

#[test]
fn what_the_caller_ignores_stays_ignored() {
    let place = Place::new();
    let holder = place.running(&[], "backup", HOLD);
    let script = "trap '' HUP; exec \"$FENCEPOST\" run backup -- sh -c 'trap \"exit 9\" HUP; echo ran'";
    let waiter = Kid::of(&mut place.via("sh", ["-c", script]));
    place.waiters("backup", 1);
    waiter.send(Signal::SIGHUP);
    holder.kid.send(Signal::SIGTERM);
    assert_eq!(waiter.said().expect(0).out, "ran\n");
}

#[test]
fn connecting_is_a_part_of_the_waiting_time() {
    needs!(REDIS);
    let mut server = Redis::start(&Config::new()).unwrap();
    let place = Place::at(&server.url()).impatient();
    server.kill().unwrap();
    for verb in [&["run"][..], &["acquire"]] {
        let rest: &[&str] = if verb == ["run"] { &["a", "--", "echo", "ran"] } else { &["a"] };
        takes_less_than(Duration::from_secs(2) + LATE, || {
            let start = Instant::now();
            let said = place.output([verb, &["-w", "2s"], rest].concat());
            assert_eq!(said.expect(69).complains(&["cannot connect to Redis at"]).out, "");
            assert!(start.elapsed() >= Duration::from_secs(2), "it gave up early: {said:?}");
        });
    }
    // Without a waiting time it fails at once.
    for wait in [&[][..], &["-n"]] {
        takes_less_than(LATE, || {
            place.output([&["run"], wait, &["a", "--", "echo", "ran"]].concat()).expect(69);
        });
    }
    // A signal ends it.
    let waiter = Kid::of(&mut place.fencepost(["run", "-w", "10m", "a", "--", "echo", "ran"]));
    blocks_signals(&waiter);
    waiter.send(Signal::SIGTERM);
    waiter.said().expect(143);
    // A server that comes back ends it as well.
    let waiters: Vec<_> = ["run", "hold"]
        .map(|verb| {
            let rest: &[&str] = if verb == "run" { &["--", "echo", "ran"] } else { &[] };
            Kid::of(&mut place.fencepost([&[verb, "-w", "10m", verb], rest].concat()))
        })
        .into();
    waiters.iter().for_each(blocks_signals);
    server.restart().unwrap();
    for waiter in waiters {
        assert_ne!(waiter.said().expect(0).out, "");
    }
}

/// Waits until the command has taken over its signals.
fn blocks_signals(kid: &Kid) {
    eventually("blocked signals", LONG, || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", kid.pid())).ok()?;
        let blocked = status.lines().find(|line| line.starts_with("SigBlk"))?;
        (status.starts_with("Name:\tfencepost\n") && !blocked.ends_with("0000000000000000")).then_some(())
    });
}

#[test]
fn what_waiting_cannot_mend_fails_at_once() {
    needs!(REDIS);
    let server = Redis::start(&Config::new()).unwrap();
    let place = Place::at(&server.url());
    let start = Instant::now();
    let run = |url: &str| {
        let arguments = ["run", "-w", "10m", "-b", url, "a", "--", "echo", "ran"];
        place.output(arguments)
    };
    let address = server.url().trim_start_matches("redis://").to_owned();
    run(&format!("redis://app:wrong@{address}")).expect(77);
    run(&format!("redis://{address}?nonsense=1")).expect(64);
    assert!(start.elapsed() < LONG, "{:?}", start.elapsed());
}

#[test]
fn a_silent_engine_ends_the_waiting_in_time() {
    needs!(REDIS);
    let mut server = Redis::start(&Config::new()).unwrap();
    let place = Place::at(&server.url()).impatient();
    let _holder = place.running(&["--ttl", "60s"], "backup", HOLD);
    // On a busy machine the waiting time may end before the server is stopped, so that the lock is busy, or the command may be late.
    let is_told_in_time = (0..3).any(|_| {
        let start = Instant::now();
        let mut waiter = Kid::of(&mut place.fencepost(["run", "-w", "3s", "backup", "--", "echo", "ran"]));
        eventually("a waiter, or its end", LONG, || {
            let is_queued = place.show("backup")["waiters"].as_array()?.len() == 1;
            (is_queued || waiter.child().try_wait().unwrap().is_some()).then_some(())
        });
        server.stop().unwrap();
        let said = waiter.said();
        let took = start.elapsed();
        server.cont().unwrap();
        assert_eq!(said.out, "");
        said.code == Some(69) && took < Duration::from_secs(3) + LATE
    });
    assert!(is_told_in_time, "a silent engine is not told in time, three times");
    // The same for one that starts now.
    server.stop().unwrap();
    takes_less_than(Duration::from_secs(1) + LATE, || {
        let said = place.output(["run", "-w", "300ms", "backup", "--", "echo", "ran"]);
        assert_eq!(said.expect(69).out, "");
    });
    server.cont().unwrap();
}

#[test]
fn a_dead_engine_costs_no_more_than_the_time_for_the_release() {
    needs!(REDIS);
    for silent in [false, true] {
        let mut server = Redis::start(&Config::new()).unwrap();
        let place = Place::at(&server.url());
        for (options, limit) in [(&[][..], 2), (&["--release-wait", "1s"], 1)] {
            let options = [&["--ttl", "60s"], options].concat();
            let script = "echo up >&9; until [ -e go ]; do sleep 0.02; done; exit 5";
            let is_in_time = (0..3).any(|_| {
                let mut holder = place.running(&options, "backup", script);
                let mut said = holder.kid.err();
                if silent {
                    server.stop().unwrap();
                } else {
                    server.kill().unwrap();
                }
                let start = Instant::now();
                let go = place.file("go", "");
                assert_eq!(holder.kid.end().code(), Some(5));
                let took = start.elapsed();
                std::fs::remove_file(go).unwrap();
                let said = said.rest();
                assert!(said.lines().count() == 1 && said.contains("lease"), "{said:?}");
                if silent {
                    server.cont().unwrap();
                } else {
                    server.restart().unwrap();
                }
                took < Duration::from_secs(limit) + LATE
            });
            assert!(is_in_time, "silent: {silent}, {options:?}: it took too long, three times");
        }
    }
}

#[test]
fn an_outage_counts_from_the_first_request_without_an_answer() {
    needs!(REDIS);
    let mut server = Redis::start(&Config::new()).unwrap();
    let place = Place::at(&server.url()).impatient();
    let _holder = place.running(&["--ttl", "5m"], "backup", HOLD);
    let is_in_time = (0..3).any(|_| {
        let waiter = Kid::of(&mut place.fencepost(["run", "backup", "--", "echo", "ran"]));
        place.waiters("backup", 1);
        let start = Instant::now();
        server.stop().unwrap();
        waiter.said().expect(69);
        let took = start.elapsed();
        server.cont().unwrap();
        // A waiter is renewed each second, and the command retries for 10 s.
        took < Duration::from_secs(11) + LATE
    });
    assert!(is_in_time, "it took too long, three times");
}

#[test]
fn a_waiter_on_a_dead_engine_names_the_cause_once() {
    needs!(REDIS);
    let mut server = Redis::start(&Config::new()).unwrap();
    let place = Place::at(&server.url()).impatient();
    let _holder = place.running(&["--ttl", "60s"], "backup", HOLD);
    let waiter = Kid::of(&mut place.fencepost(["-q", "run", "-w", "4s", "backup", "--", "echo", "ran"]));
    place.waiters("backup", 1);
    server.kill().unwrap();
    let said = waiter.said();
    said.expect(69);
    assert_eq!(said.err.matches("cannot connect to Redis at").count(), 1, "{said:?}");
    assert_eq!(said.err.matches("onnection refused").count(), 1, "{said:?}");
    assert_eq!(said.err.lines().count(), 1, "{said:?}");
}
