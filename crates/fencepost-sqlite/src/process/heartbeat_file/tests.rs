use std::process::{Command, Stdio};

use super::*;
use crate::testing;
use fencepost_testkit::server::TempDir;

const FILES: u64 = 7;

fn boot() -> BootId {
    BootId::read().unwrap()
}

fn heartbeat(folder: &TempDir, now: u64) -> HeartbeatFile {
    HeartbeatFile::create(folder.path(), ClientKey::fresh().unwrap(), boot(), FILES, now).unwrap()
}

#[test]
fn keys_survive_their_names() {
    let key = ClientKey::fresh().unwrap();
    assert_eq!(ClientKey::parse(&key.to_string()), Some(key));
    for bad in ["", "0123", &"g".repeat(32), &format!("+{}", "0".repeat(31)), &"0".repeat(33)] {
        assert_eq!(ClientKey::parse(bad), None, "{bad}");
    }
}

#[test]
fn a_living_process_is_seen_with_its_last_renewal() {
    let folder = testing::folder();
    let heartbeat = heartbeat(&folder, 1_000);
    let state = || state(folder.path(), heartbeat.key()).unwrap();
    assert_eq!(state(), ProcessState::Locked { renewed_at: 1_000, over: false });
    assert_eq!(heartbeat.renew(2_000).unwrap(), 2_000);
    assert_eq!(state(), ProcessState::Locked { renewed_at: 2_000, over: false });
}

#[test]
fn a_renewal_never_goes_back() {
    let folder = testing::folder();
    let heartbeat = heartbeat(&folder, 1_000);
    assert_eq!(heartbeat.renew(3_000).unwrap(), 3_000);
    assert_eq!(heartbeat.renew(2_000).unwrap(), 3_000);
    let state = state(folder.path(), heartbeat.key()).unwrap();
    assert_eq!(state, ProcessState::Locked { renewed_at: 3_000, over: false });
}

#[test]
fn the_lock_falls_with_the_last_descriptor() {
    let folder = testing::folder();
    let heartbeat = heartbeat(&folder, 1_000);
    let key = heartbeat.key();
    let inherited = heartbeat.descriptor().unwrap();
    drop(heartbeat);
    assert!(
        matches!(state(folder.path(), key).unwrap(), ProcessState::Locked { .. }),
        "somebody still has it"
    );
    drop(inherited);
    assert_eq!(state(folder.path(), key).unwrap(), ProcessState::Unlocked);
}

#[test]
fn a_child_that_inherits_the_descriptor_keeps_the_place() {
    let folder = testing::folder();
    let heartbeat = heartbeat(&folder, 1_000);
    let key = heartbeat.key();
    // Handed over as its standard error; it lives until its input ends.
    let inherited = heartbeat.descriptor().unwrap();
    let mut child = Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::from(inherited))
        .spawn()
        .unwrap();
    drop(heartbeat);
    assert!(matches!(state(folder.path(), key).unwrap(), ProcessState::Locked { .. }), "the child lives");
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!(state(folder.path(), key).unwrap(), ProcessState::Unlocked);
}

#[test]
fn a_missing_or_foreign_file_says_nothing() {
    let folder = testing::folder();
    let heartbeat = heartbeat(&folder, 1_000);
    std::fs::remove_file(heartbeat.path()).unwrap();
    assert_eq!(state(folder.path(), heartbeat.key()).unwrap(), ProcessState::Unknown);
    let foreign = File::options().create_new(true).read(true).write(true).open(heartbeat.path()).unwrap();
    assert!(lock(&foreign, WHOLE).unwrap());
    write_all_at(&foreign, &[b'x'; 80], 0).unwrap();
    assert_eq!(state(folder.path(), heartbeat.key()).unwrap(), ProcessState::Unknown);
}

#[test]
fn a_file_that_cannot_be_opened_is_an_error_and_no_death() {
    let folder = testing::folder();
    let key = ClientKey::fresh().unwrap();
    // Root reads everything; a symbolic link is refused to everybody.
    std::os::unix::fs::symlink("elsewhere", folder.path().join(key.to_string())).unwrap();
    assert!(state(folder.path(), key).is_err());
}

#[test]
fn a_removed_file_is_made_again_by_the_next_renewal() {
    let folder = testing::folder();
    let heartbeat = heartbeat(&folder, 1_000);
    std::fs::remove_file(heartbeat.path()).unwrap();
    heartbeat.renew(2_000).unwrap();
    let look = || state(folder.path(), heartbeat.key()).unwrap();
    assert_eq!(look(), ProcessState::Locked { renewed_at: 2_000, over: false });
    // A copy by somebody else is no better: nobody holds its lock.
    let copy = std::fs::read(heartbeat.path()).unwrap();
    std::fs::remove_file(heartbeat.path()).unwrap();
    std::fs::write(heartbeat.path(), copy).unwrap();
    assert_eq!(look(), ProcessState::Unlocked);
    heartbeat.renew(3_000).unwrap();
    assert_eq!(look(), ProcessState::Locked { renewed_at: 3_000, over: false });
}

#[test]
fn a_renewal_that_nobody_could_see_is_an_error() {
    let folder = testing::folder();
    let heartbeat = heartbeat(&folder, 1_000);
    std::fs::remove_dir_all(folder.path()).unwrap();
    assert!(heartbeat.renew(2_000).is_err());
    std::fs::create_dir(folder.path()).unwrap();
    assert_eq!(heartbeat.renew(3_000).unwrap(), 3_000);
}

#[test]
fn over_outlasts_a_renewal() {
    let folder = testing::folder();
    let heartbeat = heartbeat(&folder, 1_000);
    mark_over(&heartbeat.path()).unwrap();
    heartbeat.renew(2_000).unwrap();
    let state = state(folder.path(), heartbeat.key()).unwrap();
    assert_eq!(state, ProcessState::Locked { renewed_at: 2_000, over: true });
}

#[test]
fn only_the_dead_are_removed() {
    let folder = testing::folder();
    let heartbeat = heartbeat(&folder, 1_000);
    let path = heartbeat.path();
    assert!(!remove_dead(&path).unwrap(), "it lives");
    assert!(path.exists());
    drop(heartbeat);
    assert!(remove_dead(&path).unwrap());
    assert!(!path.exists());
    assert!(!remove_dead(&path).unwrap(), "gone already");
}

#[test]
fn readers_beside_a_writer_see_whole_renewals() {
    let folder = testing::folder();
    let heartbeat = heartbeat(&folder, 1);
    let key = heartbeat.key();
    std::thread::scope(|scope| {
        scope.spawn(|| (1..20_000u64).for_each(|n| assert!(heartbeat.renew(n << 16 | n).is_ok())));
        let mut last = 0;
        while last >> 16 < 19_999 {
            let ProcessState::Locked { renewed_at, .. } = state(folder.path(), key).unwrap() else {
                panic!("it lives");
            };
            assert!(
                renewed_at >= last && (renewed_at >> 16 == renewed_at & 0xffff || renewed_at == 1),
                "{renewed_at:#x}"
            );
            last = renewed_at;
        }
    });
}

/// A client that has other files open counts for as long as it lives and is not over; its children do not.
#[test]
fn strays_are_living_clients_with_other_files() {
    let folder = testing::folder();
    assert_eq!(clients_of_other_files(&folder.path().join("missing"), FILES).unwrap(), []);
    let one = heartbeat(&folder, 1_000);
    assert_eq!(clients_of_other_files(folder.path(), FILES).unwrap(), []);
    assert_eq!(clients_of_other_files(folder.path(), FILES + 1).unwrap(), [one.key()]);
    // Made again, it says the same.
    std::fs::remove_file(one.path()).unwrap();
    assert_eq!(clients_of_other_files(folder.path(), FILES + 1).unwrap(), []);
    one.renew(2_000).unwrap();
    assert_eq!(clients_of_other_files(folder.path(), FILES + 1).unwrap(), [one.key()]);

    let inherited = one.descriptor().unwrap();
    let key = one.key();
    drop(one);
    assert_eq!(clients_of_other_files(folder.path(), FILES + 1).unwrap(), []);
    assert!(matches!(state(folder.path(), key).unwrap(), ProcessState::Locked { .. }));
    assert!(!remove_dead(&folder.path().join(key.to_string())).unwrap());
    drop(inherited);
    assert_eq!(state(folder.path(), key).unwrap(), ProcessState::Unlocked);

    let two = heartbeat(&folder, 1_000);
    assert_eq!(clients_of_other_files(folder.path(), FILES + 1).unwrap(), [two.key()]);
    mark_over(&two.path()).unwrap();
    assert_eq!(clients_of_other_files(folder.path(), FILES + 1).unwrap(), []);
}

/// A client that has the database open is no dead one, although nobody has its children's descriptor.
#[test]
fn the_file_of_a_living_client_is_not_removed() {
    let folder = testing::folder();
    let heartbeat = heartbeat(&folder, 1_000);
    heartbeat.file.lock().unwrap().file = File::open("/dev/null").unwrap();
    assert!(!remove_dead(&heartbeat.path()).unwrap());
}

/// Pinned or not, nothing of it outlasts this.
#[test]
fn what_is_ended_is_over_and_was_renewed_long_ago() {
    let folder = testing::folder();
    let heartbeat = heartbeat(&folder, 1_000);
    heartbeat.end().unwrap();
    let state = state(folder.path(), heartbeat.key()).unwrap();
    assert_eq!(state, ProcessState::Locked { renewed_at: 0, over: true });
}
