//! The command when its processes and its engine fail, on any engine.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fencepost_testkit::faults::Faults;
use nix::sys::signal::Signal;

use crate::kit::{HOLD, Kid, LONG, Place, alive, child_of, children_of, event, eventually};

/// The guardian releases the lock of a killed wrapper, long before its lease ends.
pub(crate) fn guardian_releases(place: &Place) {
    killed_wrapper(place, &["--ttl", "30s"], Duration::from_secs(10));
    let mut holder = place.running(&["--ttl", "30s", "a"], "b", HOLD).kid;
    holder.send(Signal::SIGKILL);
    holder.end();
    eventually("both locks are free", Duration::from_secs(20), || {
        place.output(["ls"]).expect(0).out.is_empty().then_some(())
    });
}

/// A killed wrapper frees the lock `within` this time, and its program is gone before.
pub(crate) fn killed_wrapper(place: &Place, options: &[&str], within: Duration) {
    // A machine that is busy with other things may be late now and then.
    let quick = (0..3).any(|_| {
        let mut holder = place.running_briefly(options, "backup", HOLD);
        let waiter = Kid::of(&mut place.fencepost(["run", "-w", "100s", "backup", "--", "echo", "next"]));
        // A short lease may end before the waiter is in the queue.
        let is_held = eventually("a waiter, or the end of the holder", LONG, || {
            if holder.kid.child().try_wait().unwrap().is_some() {
                return Some(false);
            }
            (place.show("backup")["waiters"].as_array()?.len() == 1).then_some(true)
        });
        let killed = Instant::now();
        holder.kid.send(Signal::SIGKILL);
        assert_eq!(waiter.said().expect(0).out, "next\n");
        let took = killed.elapsed();
        assert!(!holder.pipe.is_open(), "something still ran when the next one started");
        holder.kid.end();
        is_held && took < within
    });
    assert!(quick, "the next one started too late, three times");
}

/// A server that goes stops the program `within` this time, before its lease can end.
pub(crate) fn server_that_goes(place: &Place, options: &[&str], server: &mut dyn Faults, within: Duration) {
    // A machine that is busy with other things may be late now and then.
    let quick = (0..3).any(|number| {
        if number > 0 {
            server.restart().unwrap();
        }
        let holder = place.running_briefly(options, "backup", "echo $$ >&9; exec sleep 1000");
        let start = Instant::now();
        server.kill().unwrap();
        eventually("the program is stopped", LONG, || (!holder.pipe.is_open()).then_some(()));
        let took = start.elapsed();
        let said = holder.kid.said();
        said.expect(76).err.contains("could not be renewed in time") && took < within
    });
    assert!(quick, "the program was stopped too late or for another reason, three times");
}

/// A server hangs: a command that does not wait ends. It would wait for the engine's own time limits, of 2 s and more.
pub(crate) fn no_wait_at_a_server_that_hangs(place: &Place, server: &mut dyn Faults) {
    place.output(["run", "-n", "backup", "--", "true"]).expect(0);
    server.stop().unwrap();
    // A machine that is busy with other things may be late now and then.
    let quick = (0..3).any(|_| {
        let start = Instant::now();
        place.output(["run", "-n", "backup", "--", "true"]).expect(69);
        start.elapsed() < Duration::from_millis(1_500)
    });
    assert!(quick, "it took too long, three times");
    server.cont().unwrap();
}

/// An engine that goes while somebody waits is no busy lock, and nothing is skipped for it.
pub(crate) fn wait_for_a_server_that_goes(place: &Place, options: &[&str], server: &mut dyn Faults) {
    let holder = place.running(&["--ttl", "60s"], "backup", HOLD);
    let waits = |more: &[&str]| {
        let arguments = [&["run"], options, more, &["backup", "--", "echo", "ran"]].concat();
        Kid::of(&mut place.fencepost(arguments))
    };
    let waiters = [waits(&["-w", "15s", "--skip-ok"]), waits(&[])];
    place.waiters("backup", 2);
    server.kill().unwrap();
    for waiter in waiters {
        let said = waiter.said();
        assert!(!said.err.contains("is busy"), "{}", said.err);
        assert_eq!(said.expect(69).out, "");
    }
    drop(holder);
}

/// A server that comes back with its data costs nobody anything.
pub(crate) fn server_that_comes_back(place: &Place, options: &[&str], server: &mut dyn Faults) {
    let go = place.path("go");
    let script = format!("echo $$ >&9; until [ -e '{}' ]; do sleep 0.05; done; exit 5", go.display());
    let holder = place.running(options, "backup", &script);
    let waiter = Kid::of(&mut place.fencepost(["run", "-w", "100s", "backup", "--", "echo", "next"]));
    place.waiters("backup", 1);
    server.kill().unwrap();
    server.restart().unwrap();
    // The holder's own, and the waiter still in the queue, or in the queue again.
    let shown = place.waiters("backup", 1);
    assert_eq!(shown["holders"][0]["pid"].as_i64(), Some(holder.kid.pid().into()));
    assert!(holder.pipe.is_open() && alive(waiter.pid()));
    place.file("go", "");
    holder.kid.said().expect(5);
    assert_eq!(waiter.said().expect(0).out, "next\n");
}

/// A watch outlives its server, which keeps its data.
pub(crate) fn watch_goes_on(place: &Place, server: &mut dyn Faults) {
    let mut watch = Kid::of(&mut place.fencepost(["watch", "--json", "--every", "20ms"]));
    let (mut events, mut said) = (watch.out(), watch.err());
    let mut holders = Vec::new();
    for (name, before) in [("one", None), ("two", Some(true)), ("three", Some(false))] {
        if let Some(killed) = before {
            if killed {
                server.kill().unwrap()
            } else {
                server.stop().unwrap()
            }
            let line = said.line();
            assert!(line.contains("; retrying"), "{line}");
            if killed {
                server.restart().unwrap()
            } else {
                server.cont().unwrap()
            }
            let line = said.line();
            assert!(line.contains("again"), "said once, and when it is over: {line}");
        }
        holders.push(place.running(&["--ttl", "60s"], name, HOLD));
        assert_eq!(event(&mut events), ("granted".into(), name.into()));
    }
}

/// With `--on-lost restart` the command waits for a server that is away until a signal ends it.
pub(crate) fn restart_waits(place: &Place, options: &[&str], server: &mut dyn Faults) {
    let script = "echo up >&9; echo $FENCEPOST_TOKEN >&9; exec sleep 1000";
    let options = [options, &["--on-lost", "restart"]].concat();
    let mut running = place.running(&options, "backup", script);
    let first: u64 = running.pipe.line().parse().unwrap();
    let mut said = running.kid.err();
    server.kill().unwrap();
    eventually("the program is stopped", LONG, || (!running.pipe.is_open()).then_some(()));
    while !said.line().contains("retrying until the engine replies") {}
    server.restart().unwrap();
    assert_eq!(running.pipe.line(), "up");
    assert!(running.pipe.line().parse::<u64>().unwrap() > first);
    // Again, and for no longer than a signal allows.
    server.kill().unwrap();
    while !said.line().contains("retrying until the engine replies") {}
    running.kid.send(Signal::SIGTERM);
    running.kid.said().expect(143);
    assert!(!running.pipe.is_open());
}

/// With `--on-lost restart` a server that is away at the start is waited for, too.
pub(crate) fn restart_waits_at_its_start(place: &Place, options: &[&str], server: &mut dyn Faults) {
    server.kill().unwrap();
    let options = [&["run"][..], options, &["--on-lost", "restart", "backup", "--", "echo", "ran"]].concat();
    let mut kid = Kid::of(&mut place.fencepost(&options));
    let mut said = kid.err();
    let line = said.line();
    assert!(line.contains("retrying until the engine replies (--on-lost restart)"), "{line}");
    server.restart().unwrap();
    assert_eq!(kid.said().expect(0).out, "ran\n");
}

/// A round of `--on-lost restart` that finds no server leaves no process behind, not even a dead one.
pub(crate) fn restart_reaps_its_guardians(place: &Place, server: &mut dyn Faults) {
    server.stop().unwrap();
    let kid = Kid::of(&mut place.fencepost(["run", "--on-lost", "restart", "backup", "--", "true"]));
    let mut guardians = HashSet::new();
    eventually("three guardians with children", LONG, || {
        let with_children = |pid: &i32| child_of(*pid).is_some();
        guardians.extend(children_of(kid.pid()).into_iter().filter(with_children));
        (guardians.len() >= 3).then_some(())
    });
    eventually("the dead ones are reaped", LONG, || {
        children_of(kid.pid()).into_iter().all(alive).then_some(())
    });
    server.cont().unwrap();
    kid.said().expect(0);
}

/// A server that is not there is named by what needs it, and nothing runs.
pub(crate) fn nobody_there(url: &str, address: &str, more: &[&[&str]]) {
    let place = Place::at(url);
    let always = [
        &["run", "-n", "a", "--", "echo", "ran"][..],
        &["run", "-w", "200ms", "a", "--", "echo", "ran"],
        &["ls"],
        &["show", "a"],
        &["doctor"],
    ];
    for arguments in always.iter().chain(more) {
        let said = place.output(*arguments);
        assert_eq!(said.expect(69).complains(&[address]).out, "");
    }
}

/// A server whose certificate nobody here vouches for is not spoken to, and what to do about it is said.
pub(crate) fn strangers_certificate(url: &str, advice: &str) {
    let place = Place::at(url);
    for arguments in [&["run", "-n", "a", "--", "echo", "ran"][..], &["ls"], &["doctor"]] {
        let said = place.output(arguments);
        assert_eq!(said.expect(78).complains(&["certificate", advice]).out, "");
    }
}

/// The program inherits the connection that its grant belongs to: the server cannot free the lock while the program runs.
pub(crate) fn program_inherits_the_connection(place: &Place) {
    let holder = place.running(&[], "backup", HOLD);
    let program = eventually("a program", LONG, || child_of(holder.kid.guardian()));
    let of_wrapper = sockets(holder.kid.pid());
    let both: Vec<_> = sockets(program).into_iter().filter(|socket| of_wrapper.contains(socket)).collect();
    assert!(!both.is_empty(), "the program has no socket of its wrapper");
}

/// The sockets that a process has open.
fn sockets(pid: i32) -> Vec<PathBuf> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = open.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    links.filter(|to| to.to_string_lossy().starts_with("socket:")).collect()
}
