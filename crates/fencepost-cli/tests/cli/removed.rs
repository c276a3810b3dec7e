//! The default engine's files, removed under a running program.

use std::process::Command;

use crate::kit::{HOLD, Kid, Place};

fn shell(place: &Place, script: &str) {
    let folder = place.database().parent().unwrap().to_owned();
    assert!(Command::new("sh").args(["-ec", script]).current_dir(folder).status().unwrap().success());
}

/// The lease is 30 s long: the next command tells the holder, and starts nothing before its program has ended.
#[test]
fn a_program_whose_locks_are_removed_is_stopped_before_the_next_one_starts() {
    for script in [
        "rm locks.db-wal locks.db-shm",
        "rm -rf locks.db*[lm]",
        ": > locks.db",
        "cp locks.db n; mv n locks.db",
    ] {
        let place = Place::new();
        let holder = place.running(&[], "backup", HOLD);
        shell(&place, script);
        let next = Kid::of(&mut place.fencepost(["run", "-w", "100s", "backup", "--", "echo", "next"]));
        assert_eq!(next.said().expect(0).out, "next\n", "{script}");
        assert!(!holder.pipe.is_open(), "something still ran when the next one started: {script}");
        holder.kid.said().expect(76).complains(&["the engine no longer knows it", "was removed or replaced"]);
    }
}

/// Nobody comes, so the next renewal finds it.
#[test]
fn a_program_alone_with_removed_locks_is_stopped_by_its_next_renewal() {
    for (script, why) in [
        ("rm locks.db-wal locks.db-shm", "was removed or replaced"),
        (": > locks.db; : > locks.db-wal", "was overwritten"),
    ] {
        // A busy machine may keep the renewal waiting until the lease has ended.
        let is_found = (0..3).any(|_| {
            let place = Place::new();
            let holder = place.running(&["--ttl", "2s"], "backup", HOLD);
            shell(&place, script);
            let said = holder.kid.said();
            assert!(!holder.pipe.is_open(), "its program runs on: {script}");
            said.expect(76).err.contains("the engine no longer knows it") && said.err.contains(why)
        });
        assert!(is_found, "{script}: no renewal found it, three times");
    }
}
