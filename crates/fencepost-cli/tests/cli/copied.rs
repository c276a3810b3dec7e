//! `fencepost copy-to`, by which an image brings the program into another.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use crate::kit::{Kid, Place};

#[test]
fn a_copy_runs_a_job_and_is_replaced_while_it_runs() {
    let place = Place::new();
    let folder = place.path("shared");
    fs::create_dir(&folder).unwrap();
    place.output(["copy-to".as_ref(), folder.as_os_str()]).expect(0);
    let copy = folder.join("fencepost");
    assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o7777, 0o755);

    // The running copy starts another one, which takes its place.
    let job = "\"$0/fencepost\" copy-to \"$0\" && \"$0/fencepost\" show hello";
    let words = ["run", "hello", "--", "sh", "-c", job].map(OsStr::new);
    let said = Kid::of(&mut place.via(&copy, words.into_iter().chain([folder.as_os_str()]))).said();
    assert!(said.expect(0).out.contains("held by"), "{said:?}");
    let files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(files, ["fencepost"], "nothing else is left");
}

#[test]
fn a_copy_can_be_started_as_soon_as_it_has_its_name() {
    let place = Place::new();
    let folder = place.path("shared");
    fs::create_dir(&folder).unwrap();
    let copy_again = || {
        place.output(["copy-to".as_ref(), folder.as_os_str()]).expect(0);
    };
    copy_again();
    std::thread::scope(|scope| {
        let copies = scope.spawn(|| (0..30).for_each(|_| copy_again()));
        while !copies.is_finished() {
            // "Text file busy" if the file is still open for writing.
            let said = Command::new(folder.join("fencepost")).arg("--version").output().expect("it starts");
            assert!(said.status.success(), "{said:?}");
        }
    });
}

#[test]
fn a_folder_that_is_missing_is_named() {
    let place = Place::new();
    let missing = place.path("missing");
    place
        .output(["copy-to".as_ref(), missing.as_os_str()])
        .expect(125)
        .complains(&["missing/fencepost cannot be written", "No such file"]);
    place.output(["copy-to"]).expect(64).complains(&["no folder given"]);
}
