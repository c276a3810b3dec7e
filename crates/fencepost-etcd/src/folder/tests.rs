use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{
    Claim, ClaimId, ClaimRecord, Clock, HolderInfo, Mode, Moment, Name, Runtime, Spawner, Task, Want,
};

use super::Folder;
use crate::member::{Member, Stand};
use crate::proto::{Event, KeyValue};

const NOW: Moment = Moment::ZERO;

/// No task is ever needed here.
struct Nobody;

impl Spawner for Nobody {
    fn spawn(&self, _: Task) {}
}

fn claim(mode: Mode) -> Arc<Claim> {
    let runtime = Runtime::for_client(1, Clock::manual(), Arc::new(Nobody));
    let want = Want { name: Name::new("stock").unwrap(), mode };
    let holder = Arc::new(HolderInfo { label: "me".into(), host: "h".into(), pid: 1 });
    Arc::new(Claim::new(ClaimId::from_u128(1), want, Duration::from_secs(9), holder, runtime))
}

fn member(mode: Mode, folder: &Folder, revision: i64) -> Arc<Member> {
    let member = Arc::new(Member::new(claim(mode), 1, b"stock/".to_vec()));
    member.put(Stand::Waiting(revision));
    assert!(folder.wait(revision, &member, NOW));
    member
}

/// A key of a neighbour's, or of ours if it says its mode.
fn kv(key: &str, created: i64, modified: i64, mode: Option<Mode>) -> KeyValue {
    let value = mode.map(|mode| ClaimRecord::of(&claim(mode)).to_bytes()).unwrap_or_default();
    let key = format!("stock/{key}").into_bytes();
    KeyValue { key, create_revision: created, mod_revision: modified, value, lease: 7 }
}

fn put(key: &str, at: i64) -> Event {
    Event { kind: 0, kv: Some(kv(key, at, at, None)) }
}

fn deleted(key: &str, at: i64) -> Event {
    Event { kind: 1, kv: Some(kv(key, 0, at, None)) }
}

fn folder(revision: i64, kvs: &[KeyValue]) -> Folder {
    let folder = Folder::new(b"stock/".to_vec(), NOW);
    folder.begin(1);
    folder.read(1, revision, kvs, NOW);
    folder
}

#[test]
fn the_next_in_line_is_granted_and_nobody_else() {
    let folder = folder(12, &[kv("a", 10, 10, None), kv("7-1", 11, 11, None), kv("7-2", 12, 12, None)]);
    let (first, second) = (member(Mode::Exclusive, &folder, 11), member(Mode::Exclusive, &folder, 12));
    assert_eq!((folder.crowd(), folder.ahead(12)), (Some(3), Some(2)));
    folder.hear(vec![deleted("a", 13)]);
    assert_eq!((first.stand(), second.stand()), (Stand::Granted(11), Stand::Waiting(12)));
    folder.hear(vec![deleted("7-1", 14)]);
    assert_eq!(second.stand(), Stand::Granted(12));
}

#[test]
fn the_end_of_an_earlier_life_is_not_that_of_the_present_one() {
    // The neighbour's key was deleted at 9 and made again at 10, before the folder was read.
    let folder = folder(11, &[kv("a", 10, 10, None), kv("7-1", 11, 11, None)]);
    let ours = member(Mode::Exclusive, &folder, 11);
    folder.hear(vec![deleted("a", 9)]);
    folder.hear(vec![put("a", 10)]);
    assert_eq!(ours.stand(), Stand::Waiting(11));
    // Its next validity is behind us.
    folder.hear(vec![deleted("a", 12), put("a", 13)]);
    assert_eq!(ours.stand(), Stand::Granted(11));
}

#[test]
fn events_of_one_revision_count_all() {
    let folder = folder(12, &[kv("a", 9, 9, None), kv("b", 10, 10, None), kv("7-1", 12, 12, None)]);
    let ours = member(Mode::Exclusive, &folder, 12);
    // A lease took both with it; the answer came in two parts.
    folder.hear(vec![deleted("a", 13)]);
    assert_eq!(ours.stand(), Stand::Waiting(12));
    folder.hear(vec![deleted("b", 13)]);
    assert_eq!(ours.stand(), Stand::Granted(12));
}

#[test]
fn what_happens_before_the_folder_is_read_is_not_lost() {
    let folder = Folder::new(b"stock/".to_vec(), NOW);
    folder.begin(1);
    let ours = member(Mode::Exclusive, &folder, 12);
    folder.hear(vec![put("7-1", 12), deleted("a", 14)]);
    assert_eq!((ours.stand(), folder.crowd()), (Stand::Waiting(12), None), "nothing is known before");
    folder.read(1, 13, &[kv("a", 10, 10, None), kv("7-1", 12, 12, None)], NOW);
    assert_eq!(ours.stand(), Stand::Granted(12));
}

#[test]
fn a_reading_of_an_earlier_stream_or_behind_the_events_is_ignored() {
    let folder = folder(12, &[kv("a", 10, 10, None), kv("7-1", 12, 12, None)]);
    let ours = member(Mode::Exclusive, &folder, 12);
    folder.hear(vec![put("b", 15)]);
    folder.read(1, 14, &[kv("7-1", 12, 12, None)], NOW);
    assert_eq!(ours.stand(), Stand::Waiting(12), "the events know better");
    folder.begin(2);
    folder.read(1, 20, &[kv("7-1", 12, 12, None)], NOW);
    assert_eq!(ours.stand(), Stand::Waiting(12), "events between the streams may be missing");
    folder.read(2, 20, &[kv("7-1", 12, 12, None)], NOW);
    assert_eq!(ours.stand(), Stand::Granted(12));
}

#[test]
fn who_is_not_in_line_any_more_is_told() {
    let folder = folder(12, &[kv("a", 10, 10, None), kv("7-1", 11, 11, None), kv("7-2", 12, 12, None)]);
    let (one, two) = (member(Mode::Exclusive, &folder, 11), member(Mode::Exclusive, &folder, 12));
    folder.hear(vec![deleted("7-1", 13)]);
    assert_eq!((one.stand(), two.stand()), (Stand::Gone, Stand::Waiting(12)));
    // The same found by a reading; one that was made after it is not missing.
    let late = member(Mode::Exclusive, &folder, 30);
    folder.begin(2);
    folder.read(2, 20, &[kv("a", 10, 10, None)], NOW);
    assert_eq!((two.stand(), late.stand()), (Stand::Gone, Stand::Waiting(30)));
    // One that comes when its key is known to be gone.
    let gone = member(Mode::Exclusive, &folder, 15);
    assert_eq!(gone.stand(), Stand::Gone);
}

#[test]
fn modes_are_admitted_as_everywhere_and_strangers_are_exclusive() {
    let (s, p) = (Mode::Shared, |n| Mode::Permits { n, of: 3 });
    let line =
        [kv("7-1", 1, 1, Some(s)), kv("7-2", 2, 2, Some(s)), kv("a", 3, 3, None), kv("7-4", 4, 4, Some(s))];
    let folder_of_readers = folder(4, &line);
    let second = member(s, &folder_of_readers, 2);
    let fourth = member(s, &folder_of_readers, 4);
    assert_eq!((second.stand(), fourth.stand()), (Stand::Granted(2), Stand::Waiting(4)));
    let line = [kv("7-1", 1, 1, Some(p(2))), kv("7-2", 2, 2, Some(p(2))), kv("7-3", 3, 3, Some(p(1)))];
    let permits = folder(3, &line);
    let (large, small) = (member(p(2), &permits, 2), member(p(1), &permits, 3));
    assert_eq!((large.stand(), small.stand()), (Stand::Waiting(2), Stand::Waiting(3)), "nobody overtakes");
    permits.hear(vec![deleted("7-1", 4)]);
    assert_eq!((large.stand(), small.stand()), (Stand::Granted(2), Stand::Granted(3)));
}

#[test]
fn keys_below_the_folder_are_no_contenders() {
    let folder = folder(12, &[kv("b/6b", 10, 10, None), kv("7-1", 12, 12, None)]);
    assert_eq!(member(Mode::Exclusive, &folder, 12).stand(), Stand::Granted(12));
}

#[test]
fn a_folder_that_is_closed_takes_nobody() {
    let folder = folder(12, &[kv("7-1", 12, 12, None)]);
    assert!(folder.close(NOW + Duration::from_secs(1)));
    let late = Arc::new(Member::new(claim(Mode::Exclusive), 1, b"stock/".to_vec()));
    assert!(!folder.wait(12, &late, NOW));
}
