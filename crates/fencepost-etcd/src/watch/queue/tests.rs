use std::sync::Arc;
use std::time::Duration;

use fencepost_core::testing::NoTasks;
use fencepost_core::{Claim, ClaimId, ClaimRecord, Clock, HolderInfo, Mode, Moment, Name, Runtime, Want};

use super::Queue;
use crate::claim::state::{ClaimState, Phase};
use crate::lease::Lease;
use crate::rpc::proto::{Event, KeyValue};

const NOW: Moment = Moment::ZERO;

fn claim(mode: Mode) -> Arc<Claim> {
    let runtime = Runtime::for_client(1, Clock::manual(), Arc::new(NoTasks));
    let want = Want { name: Name::new("stock").unwrap(), mode };
    let holder = Arc::new(HolderInfo::new("me", "h", 1));
    Arc::new(Claim::new(ClaimId::from_u128(1), want, Duration::from_secs(9), holder, runtime))
}

/// A claim with the key `7-NUMBER`.
fn state(mode: Mode, number: u64) -> Arc<ClaimState> {
    let state = Arc::new(ClaimState::new(claim(mode), number, b"stock/".to_vec()));
    state.choose_key(Arc::new(Lease::new(7, Duration::from_secs(9), false, NOW)));
    state
}

fn waiter(mode: Mode, queue: &Queue, number: u64, revision: i64) -> Arc<ClaimState> {
    let state = state(mode, number);
    state.set_phase(Phase::Queued(revision));
    assert!(queue.add_waiter(revision, &state, NOW));
    state
}

/// A key of other software, or of this client if it has a mode.
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

fn queue(revision: i64, kvs: &[KeyValue]) -> Queue {
    let queue = Queue::new(b"stock/".to_vec(), NOW);
    queue.begin(1);
    queue.read(1, revision, kvs, NOW);
    queue
}

#[test]
fn only_the_next_in_the_queue_is_granted() {
    let queue = queue(12, &[kv("a", 10, 10, None), kv("7-1", 11, 11, None), kv("7-2", 12, 12, None)]);
    let (first, second) = (waiter(Mode::Exclusive, &queue, 1, 11), waiter(Mode::Exclusive, &queue, 2, 12));
    assert!(!queue.is_empty());
    queue.apply(vec![deleted("a", 13)]);
    assert_eq!((first.phase(), second.phase()), (Phase::Granted(11), Phase::Queued(12)));
    queue.apply(vec![deleted("7-1", 14)]);
    assert_eq!(second.phase(), Phase::Granted(12));
}

#[test]
fn the_deletion_of_an_earlier_key_does_not_delete_the_present_one() {
    // The other key was deleted at 9 and created again at 10, before the queue was read.
    let queue = queue(11, &[kv("a", 10, 10, None), kv("7-1", 11, 11, None)]);
    let ours = waiter(Mode::Exclusive, &queue, 1, 11);
    queue.apply(vec![deleted("a", 9)]);
    queue.apply(vec![put("a", 10)]);
    assert_eq!(ours.phase(), Phase::Queued(11));
    // Its next key is behind this one.
    queue.apply(vec![deleted("a", 12), put("a", 13)]);
    assert_eq!(ours.phase(), Phase::Granted(11));
}

#[test]
fn all_events_of_one_revision_count() {
    let queue = queue(12, &[kv("a", 9, 9, None), kv("b", 10, 10, None), kv("7-1", 12, 12, None)]);
    let ours = waiter(Mode::Exclusive, &queue, 1, 12);
    // Both keys ended with a lease; the events came in two parts.
    queue.apply(vec![deleted("a", 13)]);
    assert_eq!(ours.phase(), Phase::Queued(12));
    queue.apply(vec![deleted("b", 13)]);
    assert_eq!(ours.phase(), Phase::Granted(12));
}

#[test]
fn events_before_the_first_reading_are_not_lost() {
    let queue = Queue::new(b"stock/".to_vec(), NOW);
    queue.begin(1);
    let ours = waiter(Mode::Exclusive, &queue, 1, 12);
    queue.apply(vec![put("7-1", 12), deleted("a", 14)]);
    assert_eq!((ours.phase(), queue.is_empty()), (Phase::Queued(12), true), "nothing is known before");
    queue.read(1, 13, &[kv("a", 10, 10, None), kv("7-1", 12, 12, None)], NOW);
    assert_eq!(ours.phase(), Phase::Granted(12));
}

#[test]
fn a_reading_of_an_earlier_stream_or_older_than_the_events_is_ignored() {
    let queue = queue(12, &[kv("a", 10, 10, None), kv("7-1", 12, 12, None)]);
    let ours = waiter(Mode::Exclusive, &queue, 1, 12);
    queue.apply(vec![put("b", 15)]);
    queue.read(1, 14, &[kv("7-1", 12, 12, None)], NOW);
    assert_eq!(ours.phase(), Phase::Queued(12), "the events are newer");
    queue.begin(2);
    queue.read(1, 20, &[kv("7-1", 12, 12, None)], NOW);
    assert_eq!(ours.phase(), Phase::Queued(12), "events between the streams may be missing");
    queue.read(2, 20, &[kv("7-1", 12, 12, None)], NOW);
    assert_eq!(ours.phase(), Phase::Granted(12));
}

#[test]
fn a_waiter_without_a_key_is_told() {
    let queue = queue(12, &[kv("a", 10, 10, None), kv("7-1", 11, 11, None), kv("7-2", 12, 12, None)]);
    let (one, two) = (waiter(Mode::Exclusive, &queue, 1, 11), waiter(Mode::Exclusive, &queue, 2, 12));
    queue.apply(vec![deleted("7-1", 13)]);
    assert_eq!((one.phase(), two.phase()), (Phase::Gone, Phase::Queued(12)));
    // A reading finds the same. A key that was created after it is not missing.
    let late = waiter(Mode::Exclusive, &queue, 3, 30);
    queue.begin(2);
    queue.read(2, 20, &[kv("a", 10, 10, None)], NOW);
    assert_eq!((two.phase(), late.phase()), (Phase::Gone, Phase::Queued(30)));
    // A waiter that is added when its key is known to be gone.
    let gone = waiter(Mode::Exclusive, &queue, 4, 15);
    assert_eq!(gone.phase(), Phase::Gone);
}

/// The store was restored from a snapshot that has neither the waiter's key nor the revisions since.
#[test]
fn a_waiter_of_revisions_that_the_store_has_lost_is_told() {
    let contents = [kv("a", 10, 10, None), kv("7-1", 12, 12, None)];
    let lost = queue(12, &contents);
    let ours = waiter(Mode::Exclusive, &lost, 1, 12);
    lost.begin(2);
    lost.read(2, 11, &contents[..1], NOW);
    assert_eq!(ours.phase(), Phase::Gone, "no later event would tell");
    // Since then the store has given the waiter's revision to another key.
    let used = queue(12, &contents);
    let ours = waiter(Mode::Exclusive, &used, 1, 12);
    used.begin(2);
    used.read(2, 15, &[kv("b", 12, 12, None)], NOW);
    assert_eq!(ours.phase(), Phase::Gone, "the other key is in front");
    // The same by an event, if the waiter's own was not received before.
    let behind = queue(10, &contents[..1]);
    let ours = waiter(Mode::Exclusive, &behind, 1, 12);
    behind.begin(2);
    behind.read(2, 11, &[], NOW);
    assert_eq!(ours.phase(), Phase::Queued(12));
    behind.apply(vec![put("b", 12)]);
    assert_eq!(ours.phase(), Phase::Gone);
    // The reply to its creation may be later than the reading, too.
    let ours = waiter(Mode::Exclusive, &behind, 1, 12);
    assert_eq!(ours.phase(), Phase::Gone);
}

#[test]
fn modes_are_admitted_and_other_software_is_exclusive() {
    let (s, p) = (Mode::Shared, |n| Mode::Permits { n, of: 3 });
    let keys =
        [kv("7-1", 1, 1, Some(s)), kv("7-2", 2, 2, Some(s)), kv("a", 3, 3, None), kv("7-4", 4, 4, Some(s))];
    let readers = queue(4, &keys);
    let second = waiter(s, &readers, 2, 2);
    let fourth = waiter(s, &readers, 4, 4);
    assert_eq!((second.phase(), fourth.phase()), (Phase::Granted(2), Phase::Queued(4)));
    let keys = [kv("7-1", 1, 1, Some(p(2))), kv("7-2", 2, 2, Some(p(2))), kv("7-3", 3, 3, Some(p(1)))];
    let permits = queue(3, &keys);
    let (large, small) = (waiter(p(2), &permits, 2, 2), waiter(p(1), &permits, 3, 3));
    assert_eq!((large.phase(), small.phase()), (Phase::Queued(2), Phase::Queued(3)), "no waiter overtakes");
    permits.apply(vec![deleted("7-1", 4)]);
    assert_eq!((large.phase(), small.phase()), (Phase::Granted(2), Phase::Granted(3)));
}

#[test]
fn keys_with_another_slash_are_no_contenders() {
    let queue = queue(12, &[kv("b/6b", 10, 10, None), kv("7-1", 12, 12, None)]);
    assert_eq!(waiter(Mode::Exclusive, &queue, 1, 12).phase(), Phase::Granted(12));
}

#[test]
fn a_closed_queue_takes_no_waiter() {
    let queue = queue(12, &[kv("7-1", 12, 12, None)]);
    assert!(queue.close(NOW + Duration::from_secs(1)));
    let late = state(Mode::Exclusive, 1);
    assert!(!queue.add_waiter(12, &late, NOW));
}
