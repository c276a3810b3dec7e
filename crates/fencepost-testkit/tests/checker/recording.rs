//! The ends of histories, and how histories are written.

use super::{good, kinds};
use fencepost_testkit::checker::{Kind, Promises, check};
use fencepost_testkit::history::{History, Mode, Patience, Recorder, What};
use fencepost_testkit::server::TempDir;
use std::sync::Arc;

#[test]
fn leftovers_and_silence() {
    assert_eq!(kinds("0 z left r a waiter"), [Kind::Leftover]);
    assert_eq!(kinds("0 a ask r x ever"), [Kind::Unanswered]);
    good("0 1:a ask r x ever\n1 1: died");
}

#[test]
fn nonsense_is_not_passed_over() {
    assert_eq!(kinds("0 a granted 1 31"), [Kind::Malformed]);
    assert_eq!(kinds("0 a ask r x ever\n1 a failed\n2 a granted 1 31"), [Kind::Malformed]);
    let twice = "0 a ask r x ever\n1 a granted 1 31\n2 a granted 2 31\n3 a release\n4 a released";
    assert_eq!(kinds(twice), [Kind::Malformed]);
}

#[test]
fn what_is_written_is_read_back() {
    let folder = TempDir::new("history").unwrap();
    let dir = folder.path();
    let files = [dir.join("one"), dir.join("two")];
    let resource: Arc<str> = "r".into();
    for (process, file) in files.iter().enumerate() {
        let recorder = Recorder::to_file(process as u32, file).unwrap();
        let key = recorder.asked(&resource, Mode::Permits { n: 1, of: 2 }, Patience::Until(9), 7);
        recorder.record(key, What::Granted { token: u64::MAX, until: u64::MAX });
        assert!(recorder.ensured(key, || Some(5)));
        recorder.record(key, What::ReleaseBegan);
        recorder.record(key, What::Released { sure: true });
    }
    // The last line of a killed process may be incomplete.
    let mut torn = std::fs::read(&files[1]).unwrap();
    torn.extend(b"{\"at\":12");
    std::fs::write(&files[1], torn).unwrap();
    let history = History::read(&files).unwrap();
    assert_eq!(history.events().len(), 10);
    let again = dir.join("again");
    history.write(std::fs::File::create(&again).unwrap()).unwrap();
    assert_eq!(History::read([&again]).unwrap().events(), history.events());
}

#[test]
fn a_recorder_keeps_the_order_of_threads() {
    let recorder = Recorder::new(1, fencepost_testkit::history::boottime);
    let lock = std::sync::Mutex::new(());
    let resource: Arc<str> = "r".into();
    let token = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..250 {
                    let key = recorder.asked(&resource, Mode::Exclusive, Patience::Ever, 0);
                    let guard = lock.lock().unwrap();
                    let token = token.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    recorder.record(key, What::Granted { token, until: u64::MAX });
                    assert!(recorder.ensured(key, || Some(u64::MAX)));
                    recorder.record(key, What::ReleaseBegan);
                    drop(guard);
                    recorder.record(key, What::Released { sure: true });
                }
            });
        }
    });
    let history = recorder.history();
    assert_eq!(history.events().len(), 5000);
    assert_eq!(check(&history, &Promises::default()), []);
}
