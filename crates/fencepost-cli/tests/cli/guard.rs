//! Nothing that the program started outlives the lock, whichever process dies or stops.

use std::time::{Duration, Instant};

use fencepost_testkit::server::send;
use nix::sys::signal::Signal;

use crate::kit::{DAEMON, Kid, LONG, Place, Running, alive, child_of, eventually};

/// Leaves a daemon behind, then runs on without listening to SIGTERM.
pub(crate) fn stubborn() -> String {
    format!("trap '' TERM HUP INT; {DAEMON} sleep 1000; sleep 1000")
}

/// Starts such a program, and waits until its daemon says its id (the first line).
fn start(place: &Place, options: &[&str], name: &str) -> Running {
    let running = place.running(options, name, &stubborn());
    assert!(running.pipe.is_open());
    running
}

/// A waiter that says so when it runs, and whether something has the holder's pipe open then.
fn next(place: &Place, name: &str) -> Kid {
    let kid = Kid::of(&mut place.fencepost(["run", "-w", "1000s", name, "--", "echo", "next"]));
    place.waiters(name, 1);
    kid
}

#[test]
fn a_killed_wrapper_takes_everything_along() {
    // Within a second, which a machine that is busy with other things may miss now and then.
    let quick = (0..5).any(|_| {
        let place = Place::new();
        let mut running = start(&place, &[], "hello");
        let waiter = next(&place, "hello");
        running.kid.send(Signal::SIGKILL);
        let killed = Instant::now();
        assert_eq!(waiter.said().expect(0).out, "next\n");
        let took = killed.elapsed();
        assert!(!running.pipe.is_open(), "something still ran when the next one started");
        running.kid.end();
        took < Duration::from_secs(1)
    });
    assert!(quick, "the next one started too late, five times");
}

#[test]
fn a_guardian_says_why_it_killed() {
    let place = Place::new();
    let mut running = start(&place, &[], "hello");
    let wrapper = running.kid.pid();
    running.kid.send(Signal::SIGKILL);
    running.pipe.closed(LONG);
    let said = running.kid.err().all();
    assert!(
        said.contains(&format!("process {wrapper}"))
            && said.contains("killed the program and its descendants"),
        "{said:?}"
    );
    // A full pipe that nobody reads does not hold the guardian up.
    let script = format!("head -c 65536 /dev/zero >&2; {}", stubborn());
    let mut running = place.running(&[], "full", &script);
    running.kid.send(Signal::SIGKILL);
    running.pipe.closed(LONG);
    place.output(["run", "-w", "30s", "full", "--", "true"]).expect(0);
}

/// Stops the wrapper and looks, as the next holder, whether anything of the first one's runs. Returns what the next holder sees.
fn stopped_wrapper(place: &Place, backend: &str, ttl: &str) -> String {
    // On a busy machine the lease may end before the wrapper is stopped.
    let seen = (0..5).find_map(|_| wrapper_is_stopped(place, backend, ttl));
    seen.expect("the lock was lost before the wrapper was stopped, five times")
}

/// Does so once. `None`: the lock was lost before that.
fn wrapper_is_stopped(place: &Place, backend: &str, ttl: &str) -> Option<String> {
    let mut running = start(place, &["--ttl", ttl, "-b", backend], "hello");
    // This process reads the pipe, perhaps as its own descriptor 9: it does not count.
    let script = format!(
        "for fd in /proc/[0-9]*/fd/9; do case $fd in /proc/{}/*) continue; esac; \
         [ \"$(readlink $fd)\" = '{}' ] && echo alive; done; echo next",
        std::process::id(),
        running.pipe.path.display()
    );
    let arguments = ["run", "-b", backend, "-w", "1000s", "hello", "--", "sh", "-c", &script];
    // It sees what runs while the wrapper is not stopped, so that seeing nothing later means something.
    let arguments_too = ["run", "-b", backend, "other", "--", "sh", "-c", &script];
    let seen = place.output(arguments_too).expect(0).out.clone();
    assert!(seen.starts_with("alive\n") || !running.pipe.is_open(), "{seen}");
    let waiter = Kid::of(&mut place.fencepost(arguments));
    let is_held = eventually("a waiter, or the end of the holder", LONG, || {
        if running.kid.child().try_wait().unwrap().is_some() {
            return Some(false);
        }
        let shown = place.output(["queue", "--json", "-b", backend, "hello"]);
        shown.out.contains(&waiter.pid().to_string()).then_some(true)
    });
    if !is_held {
        running.kid.said().expect(76);
        waiter.said().expect(0);
        return None;
    }
    running.kid.send(Signal::SIGSTOP);
    let seen = waiter.said().expect(0).out.clone();
    running.pipe.closed(LONG);
    running.kid.send(Signal::SIGCONT);
    running.kid.said().expect(76).complains(&["could not be renewed"]);
    Some(seen)
}

#[test]
fn a_stopped_wrapper_loses_its_program_before_the_next_one_starts() {
    let place = Place::new();
    assert_eq!(stopped_wrapper(&place, "sqlite:locks.db", "2s"), "next\n");
}

/// The guardian kills a tenth of the lease before its end. Here that is 1 s, and a busy machine runs the guardian late by more now and then.
#[test]
fn without_pins_the_guardians_timer_alone_is_early_enough() {
    let place = Place::new();
    let is_early = (0..3).any(|_| stopped_wrapper(&place, "sqlite:locks.db?pinned=false", "10s") == "next\n");
    assert!(is_early, "the program ran when the next one started, three times");
}

#[test]
fn an_engine_that_is_gone_ends_the_program_in_time() {
    let place = Place::new();
    let script = "trap 'echo bye >&9; exit 0' TERM; echo up >&9; while :; do sleep 0.05; done";
    let mut running = place.running(&["--ttl", "2s"], "hello", script);
    std::fs::remove_dir_all(place.path("state")).unwrap();
    assert_eq!(running.pipe.line(), "bye");
    let said = running.kid.said();
    said.expect(76);
    // The renewal sees that the file is gone. A machine that is busy with other things may be later than the guardian.
    let reasons = ["was removed or replaced", "could not be renewed"];
    assert!(reasons.iter().any(|reason| said.err.contains(reason)), "{said:?}");
    assert!(!said.err.contains("No such file"), "{said:?}");
}

/// The database is there, so that is no certain loss.
#[test]
fn a_lock_that_cannot_be_renewed_ends_the_program_in_time() {
    let place = Place::new();
    let script = "trap 'echo bye >&9; exit 0' TERM; echo up >&9; while :; do sleep 0.05; done";
    let mut running = place.running(&["--ttl", "2s"], "hello", script);
    std::fs::remove_dir_all(place.path("state/fencepost/locks.db-fencepost")).unwrap();
    assert_eq!(running.pipe.line(), "bye");
    running.kid.said().expect(76).complains(&["could not be renewed"]);
}

#[test]
fn a_killed_guardian_takes_everything_along() {
    let place = Place::new();
    let running = start(&place, &[], "hello");
    let waiter = next(&place, "hello");
    send(running.kid.guardian(), Signal::SIGKILL);
    let Running { kid, pipe } = running;
    kid.said().expect(125).complains(&["guardian process was killed"]);
    assert!(!pipe.is_open(), "something is left although the command has ended");
    assert_eq!(waiter.said().expect(0).out, "next\n");
}

#[test]
fn children_of_before_are_left_alone() {
    let place = Place::new();
    let mut pipe = crate::kit::Pipe::new(&place);
    // The shell becomes the wrapper, which so has a child that it did not start.
    let script = format!(
        "sleep 1000 & echo $! > '{}'; exec \"$FENCEPOST\" run hello -- sleep 1000",
        pipe.path.display()
    );
    let kid = Kid::of(&mut place.via("sh", ["-c", &script]));
    let stranger: i32 = pipe.line().parse().unwrap();
    let guardian = eventually("a guardian", LONG, || {
        let name = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        crate::kit::children_of(kid.pid()).into_iter().find(|pid| name(*pid).starts_with("fencepost-guard"))
    });
    eventually("a program", LONG, || child_of(guardian));
    send(guardian, Signal::SIGKILL);
    // Not `said`: the stranger has its output open.
    let mut kid = kid;
    assert_eq!(kid.end().code(), Some(125));
    assert!(alive(stranger));
    send(stranger, Signal::SIGKILL);
}

#[test]
fn wrapper_and_guardian_killed_together_leave_the_name_locked_until_all_have_ended() {
    let place = Place::new();
    let mut running = place.running(&[], "hello", &stubborn());
    let guardian = running.kid.guardian();
    let program = child_of(guardian).unwrap();
    // Stopped first, so that neither sees the other die.
    for pid in [guardian, running.kid.pid()] {
        send(pid, Signal::SIGSTOP);
    }
    for pid in [guardian, running.kid.pid()] {
        send(pid, Signal::SIGKILL);
    }
    running.kid.end();
    eventually("the program dies with its guardian", LONG, || (!alive(program)).then_some(()));
    // The daemon lives on, and with it the lock.
    place.output(["run", "-n", "hello", "--", "true"]).expect(75);
    place.output(["run", "-w", "2500ms", "hello", "--", "true"]).expect(75);
    assert!(running.pipe.is_open());
    let waiter = next(&place, "hello");
    running.pipe.kill_users();
    running.pipe.closed(LONG);
    assert_eq!(waiter.said().expect(0).out, "next\n");
}

#[test]
fn a_stopped_guardian_is_replaced_by_the_wrapper() {
    let place = Place::new();
    let running = start(&place, &["--ttl", "2s"], "hello");
    send(running.kid.guardian(), Signal::SIGSTOP);
    // Evicted, it is to stop its program, and its guardian does not hear that.
    let token = place.show("hello")["holders"][0]["token"].to_string();
    place.output(["evict", "hello", "--token", &token, "--yes"]).expect(0);
    let Running { kid, pipe } = running;
    kid.said().expect(76);
    assert!(!pipe.is_open(), "something is left although the command has ended");
}

#[test]
fn an_evicted_holder_stops_and_then_the_next_one_starts() {
    let place = Place::new();
    let running = start(&place, &["--grace", "200ms"], "hello");
    let waiter = next(&place, "hello");
    let token = place.show("hello")["holders"][0]["token"].to_string();
    let said = place.output(["evict", "hello", "--token", &token, "--yes", "--reason", "host is gone"]);
    said.expect(0).complains(&[
        "audit:",
        "host is gone",
        &format!("token {token}"),
        &running.kid.pid().to_string(),
    ]);
    assert_eq!(waiter.said().expect(0).out, "next\n");
    assert!(!running.pipe.is_open(), "something still ran when the next one started");
    running.kid.said().expect(76).complains(&["evicted"]);
}

#[test]
fn on_lost_decides_what_happens_to_the_program() {
    let place = Place::new();
    let evict = |name: &str| {
        let token = place.show(name)["holders"][0]["token"].to_string();
        place.output(["evict", name, "--token", &token, "--yes"]).expect(0);
    };
    // term lets the program clean up.
    let mut running = place.running(
        &["--on-lost", "term"],
        "term",
        "trap 'echo bye >&9; exit 0' TERM; echo up >&9; while :; do sleep 0.05; done",
    );
    evict("term");
    assert_eq!(running.pipe.line(), "bye");
    running.kid.said().expect(76);
    // kill does not.
    let mut running = place.running(
        &["--on-lost", "kill"],
        "kill",
        "trap 'echo bye >&9; exit 0' TERM; echo up >&9; while :; do sleep 0.05; done",
    );
    evict("kill");
    running.kid.end();
    running.pipe.closed(LONG);
    assert_eq!(running.pipe.rest(), "");
    // restart waits for the lock again and starts the program again, with a greater token.
    let mut running = place.running(
        &["--on-lost", "restart"],
        "again",
        "echo up >&9; echo $FENCEPOST_TOKEN >&9; exec sleep 1000",
    );
    let first: u64 = running.pipe.line().parse().unwrap();
    evict("again");
    assert_eq!(running.pipe.line(), "up");
    assert!(running.pipe.line().parse::<u64>().unwrap() > first);
    running.kid.send(Signal::SIGTERM);
    running.kid.said().expect(143).complains(&["--on-lost restart"]);
    // ignore lets it run on.
    let mut running = place.running(
        &["--on-lost", "ignore", "--ttl", "2s"],
        "ignore",
        "trap 'exit 4' USR1; echo up >&9; while :; do sleep 0.05; done",
    );
    evict("ignore");
    eventually("the lock is free", LONG, || {
        (place.output(["run", "-n", "ignore", "--", "true"]).code == Some(0)).then_some(())
    });
    assert!(running.kid.child().try_wait().unwrap().is_none());
    running.kid.send(Signal::SIGUSR1);
    running.kid.said().expect(4).complains(&["continues without it"]);
}

#[test]
fn a_held_lock_is_renewed_past_its_lease() {
    let place = Place::new();
    // A busy machine may keep the renewals waiting for a whole lease now and then. Then the lock is lost.
    let is_renewed = (0..3).any(|_| {
        let running = place.running(&["--ttl", "2s"], "hello", "echo up >&9; sleep 5; exit 3");
        let next = place.output(["run", "-w", "3s", "hello", "--", "true"]).code;
        let said = running.kid.said();
        assert!(matches!(said.code, Some(3 | 76)), "{said:?}");
        said.code == Some(3) && next == Some(75)
    });
    assert!(is_renewed, "the lock was lost, three times");
}

#[test]
fn a_restart_stands_in_line_behind_those_who_wait() {
    let place = Place::new();
    restarts_in_the_queue(&place);
}

/// Evicted, a program that is to restart is stopped before the next one starts, and starts again when that one has ended.
pub(crate) fn restarts_in_the_queue(place: &Place) {
    let script = "echo up >&9; echo $FENCEPOST_TOKEN >&9; exec sleep 1000";
    let mut running = place.running(&["--on-lost", "restart", "--grace", "200ms"], "hello", script);
    let first: u64 = running.pipe.line().parse().unwrap();
    let go = place.path("go");
    let wait = format!("until [ -e '{}' ]; do sleep 0.05; done; echo $FENCEPOST_TOKEN", go.display());
    let next = Kid::of(&mut place.fencepost(["run", "-w", "100s", "hello", "--", "sh", "-c", &wait]));
    place.waiters("hello", 1);
    place.output(["evict", "hello", "--token", &first.to_string(), "--yes"]).expect(0);
    let holds = |pid: i32| place.show("hello")["holders"][0]["pid"].as_i64() == Some(pid.into());
    eventually("the next one holds", LONG, || holds(next.pid()).then_some(()));
    assert!(!running.pipe.is_open(), "something still ran when the next one held");
    let shown = place.waiters("hello", 1);
    assert_eq!(shown["waiters"][0]["pid"].as_i64(), Some(running.kid.pid().into()));
    place.file("go", "");
    let second = next.said().expect(0).out.trim().parse::<u64>().unwrap();
    assert_eq!(running.pipe.line(), "up");
    let third: u64 = running.pipe.line().parse().unwrap();
    assert!(first < second && second < third, "{first} {second} {third}");
    running.kid.send(Signal::SIGTERM);
    running.kid.said().expect(143).complains(&["evicted", "--on-lost restart"]);
    assert!(!running.pipe.is_open());
}

/// The guardian reaps what the program has left behind.
#[test]
fn the_end_of_an_orphan_is_not_the_end_of_the_program() {
    let place = Place::new();
    for end in ["kill -KILL $$", "exit 5"] {
        let orphan = place.file("orphan", end);
        let script = format!(
            "pid=$(sh -c 'sh {} >/dev/null 2>&1 & echo $!'); while [ -d /proc/$pid ]; do sleep 0.01; done; exit 7",
            orphan.display()
        );
        place.output(["run", "hello", "--", "sh", "-c", &script]).expect(7);
    }
}

#[test]
fn a_signal_reaches_a_program_that_has_left_its_group() {
    let place = Place::new();
    let program = "import os, signal, time\n\
        os.setpgid(0, os.getpgid(os.getppid()))\n\
        def bye(*_): os.write(9, b\"bye\\n\"); os._exit(7)\n\
        signal.signal(signal.SIGUSR1, bye)\n\
        os.write(9, b\"up\\n\")\n\
        while True: signal.pause()\n";
    let mut running = place.running(&[], "hello", &format!("exec python3 -c '{program}'"));
    running.kid.send(Signal::SIGUSR1);
    assert_eq!(running.pipe.line(), "bye");
    running.kid.said().expect(7);
}
