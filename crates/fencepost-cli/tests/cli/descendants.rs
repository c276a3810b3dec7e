//! Processes that the program leaves behind, with `--leave-descendants`.

use nix::sys::signal::Signal;

use crate::kit::{DAEMON, LONG, Place};

/// The daemon ignores TERM.
fn leaving() -> String {
    format!("{DAEMON} ls -l /proc/$$/fd > fds; exit 3")
}

#[test]
fn a_daemon_lives_on_without_the_lock() {
    let place = Place::new();
    let mut running = place.running(&["-v", "--leave-descendants"], "service", &leaving());
    let mut err = running.kid.err();
    assert_eq!(running.kid.end().code(), Some(3));
    assert!(running.pipe.is_open(), "the daemon was ended");
    // The lock is free, and the daemon keeps no part of it.
    place.output(["run", "-n", "service", "--", "true"]).expect(0);
    assert_eq!(place.leftovers(), [""; 0]);
    let descriptors = place.read("fds");
    assert!(!descriptors.contains("locks.db"), "{descriptors}");
    // The daemon has the other end open.
    let said = err.rest();
    assert!(said.contains("the program exited; leaving 1 process that it left running: sleep"), "{said}");
}

/// While the program itself runs, its descendants are ended with it.
#[test]
fn what_ends_the_program_early_ends_its_descendants_as_well() {
    for (options, code) in [(&["--max-hold", "3s"][..], 124), (&[], 137)] {
        let place = Place::new();
        let options = [options, &["--grace", "100ms", "--leave-descendants"]].concat();
        let mut running = place.running_briefly(&options, "service", &format!("{DAEMON} exec sleep 1000"));
        if code == 137 {
            running.kid.send(Signal::SIGKILL);
        }
        running.pipe.closed(LONG);
        place.output(["run", "-w", "30s", "service", "--", "true"]).expect(0);
    }
}

#[test]
fn a_restart_cannot_leave_descendants() {
    let place = Place::new();
    let said = place.output(["run", "--leave-descendants", "--on-lost", "restart", "a", "--", "true"]);
    said.expect(64).complains(&["--leave-descendants and --on-lost restart cannot be used together"]);
    place.output(["run", "-o", "a", "--", "true"]).expect(64).complains(&["use --leave-descendants"]);
}
