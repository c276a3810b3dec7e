//! Signals go to the program, and the command never ends before it.

use nix::sys::signal::Signal;

use crate::kit::{Kid, LONG, Place, child_of, eventually};

#[test]
fn each_signal_is_passed_on() {
    for signal in ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "WINCH", "ALRM"] {
        let place = Place::new();
        // The trap says which one came; the program then ends by itself.
        let script = format!(
            "trap 'echo got {signal} >&9; exit 7' {signal}; echo up >&9; while :; do sleep 0.05; done"
        );
        let mut running = place.running(&[], "hello", &script);
        let number: Signal = format!("SIG{signal}").parse().unwrap();
        running.kid.send(number);
        assert_eq!(running.pipe.line(), format!("got {signal}"));
        running.kid.said().expect(7);
    }
}

#[test]
fn the_signal_that_ended_the_program_is_in_the_code() {
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2] {
        let place = Place::new();
        let running = place.running(&[], "hello", "echo up >&9; exec sleep 1000");
        running.kid.send(signal);
        running.kid.said().expect(128 + signal as i32);
    }
}

#[test]
fn a_program_that_ignores_the_signal_is_waited_for() {
    let place = Place::new();
    let script = "trap '' TERM; trap 'exit 5' USR1; echo up >&9; while :; do sleep 0.05; done";
    let mut running = place.running(&[], "hello", script);
    running.kid.send(Signal::SIGTERM);
    // The lock is still held by a live program.
    place.output(["run", "-n", "hello", "--", "true"]).expect(75);
    assert!(running.kid.child().try_wait().unwrap().is_none());
    running.kid.send(Signal::SIGUSR1);
    running.kid.said().expect(5);
}

#[test]
fn a_signal_during_the_start_is_not_lost() {
    let place = Place::new();
    // At whatever moment it comes: while connecting, while asking, while the guardian starts, or later.
    for delay in 0..20u64 {
        let mut kid = Kid::of(&mut place.fencepost(["run", "hello", "--", "sleep", "1000"]));
        // Signals before its first step would find a process that is not yet ours.
        eventually("blocked signals", LONG, || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", kid.pid())).ok()?;
            if !status.starts_with("Name:\tfencepost\n") {
                return None;
            }
            let blocked = status.lines().find(|line| line.starts_with("SigBlk"))?;
            (!blocked.ends_with("0000000000000000")).then_some(())
        });
        // The moment of the signal is what the test varies.
        std::thread::sleep(std::time::Duration::from_millis(delay));
        kid.send(Signal::SIGTERM);
        assert_eq!(kid.end().code(), Some(143), "after {delay} ms");
    }
    place.output(["run", "-n", "hello", "--", "true"]).expect(0);
}

#[test]
fn a_stopped_program_can_be_continued_through_the_command() {
    let place = Place::new();
    let mut running = place.running(&[], "hello", "echo up >&9; kill -STOP $$; echo on >&9; exit 4");
    let program: i32 = child_of(running.kid.guardian()).unwrap();
    eventually("the program is stopped", LONG, || (crate::kit::state(program)? == "T").then_some(()));
    // Without a terminal the command itself goes on.
    assert_ne!(crate::kit::state(running.kid.pid()).unwrap(), "T");
    running.kid.send(Signal::SIGCONT);
    assert_eq!(running.pipe.line(), "on");
    running.kid.said().expect(4);
}
