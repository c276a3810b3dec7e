//! Claims that core asks no more for, although their rows may be there.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::support::Database;
use fencepost_core::{
    Attempt, Backend, BackendUrl, Claim, ClaimId, Entry, Eviction, HolderInfo, How, Loss, Mode, Name,
    Removed, Reply, Result, Runtime, Want,
};
use fencepost_testkit::sim::Executor;

const NAME: &str = "stock/42";
const TTL: Duration = Duration::from_secs(6);
const MINUTE: Duration = Duration::from_secs(60);

/// A client of a database, whose time a test moves.
struct Stage {
    time: Executor,
    runtime: Runtime,
    engine: Arc<dyn Backend>,
}

fn now<T: Unpin>(mut reply: Reply<'_, T>) -> T {
    let Poll::Ready(answer) = std::pin::Pin::new(&mut reply).poll(&mut Context::from_waker(Waker::noop()))
    else {
        panic!("nobody else writes the database")
    };
    answer
}

impl Stage {
    fn new(database: &Database) -> Stage {
        let time = Executor::new(1);
        let runtime = Runtime::for_client(1, time.clock().clone(), time.host(0));
        let url = BackendUrl::parse(&database.url()).unwrap();
        let engine = now(fencepost_sqlite::open(url, runtime.clone())).unwrap();
        Stage { time, runtime, engine }
    }

    fn claim(&self, id: u128, name: &str) -> Arc<Claim> {
        let want = Want { name: Name::new(name).unwrap(), mode: Mode::Exclusive };
        let holder = HolderInfo::labelled("test");
        Arc::new(Claim::new(ClaimId::from_u128(id), want, TTL, holder, self.runtime.clone()))
    }

    fn hold(&self, id: u128, name: &str) -> Entry {
        self.granted(self.claim(id, name), How::Enter)
    }

    fn granted(&self, claim: Arc<Claim>, how: How) -> Entry {
        let mut entry = Arc::clone(&self.engine).entry(claim, how);
        assert!(matches!(now(entry.attempt()), Ok(Attempt::Granted(_))), "it is free, or its own");
        entry
    }

    /// Takes up the detached lease with this id.
    fn attach(&self, id: u128) -> Entry {
        self.granted(self.claim(id, NAME), How::Attach)
    }

    /// Releases the grant whose claim has this id, as a program does that knows its lease.
    fn release_lease(&self, id: u128) {
        let mut entry = Arc::clone(&self.engine).entry(self.claim(id, NAME), How::Attach);
        assert_eq!(now(entry.release()).unwrap(), Removed::Released);
    }

    /// Lets the time pass, and renews `claim` meanwhile, so that the client's side file is that of a living one.
    fn pass(&mut self, time: Duration, entry: &Entry) -> Result<()> {
        let end = self.time.clock().now() + time;
        while self.time.clock().now() < end {
            self.time.run(end.min(self.time.clock().now() + TTL / 6), || false);
            let renewal = entry.renewal().expect("it holds");
            now(renewal.session.renew(&[renewal.claim]))?;
        }
        Ok(())
    }

    /// Whether another claim is granted the lock at once.
    fn is_free(&self, id: u128) -> bool {
        let mut entry = Arc::clone(&self.engine).entry(self.claim(id, NAME), How::Enter);
        let attempt = now(entry.attempt()).unwrap();
        now(entry.withdraw()).unwrap();
        matches!(attempt, Attempt::Granted(_))
    }
}

/// Its client lives, and renews another lock.
#[test]
fn a_release_that_was_given_up_frees_the_lock_once_the_database_can_be_written() {
    let database = Database::new();
    let mut stage = Stage::new(&database);
    let (released, other) = (stage.hold(1, NAME), stage.hold(2, "other"));
    let writer = rusqlite::Connection::open(database.path()).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    drop(released);
    stage.pass(MINUTE, &other).unwrap();
    assert_eq!(stage.runtime.cleaner().backlog(), 0, "the release was given up");
    writer.execute_batch("COMMIT").unwrap();
    stage.pass(TTL, &other).unwrap();
    assert!(stage.is_free(3), "nobody holds it");
}

/// Its holder has told others that it stays.
#[test]
fn a_grant_that_is_to_stay_ends_with_its_lease() {
    let database = Database::new();
    let mut stage = Stage::new(&database);
    let (stays, other) = (stage.hold(1, NAME), stage.hold(2, "other"));
    drop(stays.on_drop(None));
    stage.pass(TTL / 2, &other).unwrap();
    assert!(!stage.is_free(3), "its lease lasts");
    stage.pass(TTL, &other).unwrap();
    assert!(stage.is_free(4), "its lease has ended");
}

#[test]
fn a_detached_grant_outlasts_the_entries_that_know_it() {
    let database = Database::new();
    let mut stage = Stage::new(&database);
    let (mut detached, other) = (stage.hold(1, NAME), stage.hold(2, "other"));
    let claim = Arc::clone(detached.claim());
    claim.set_ttl(2 * MINUTE);
    now(detached.detach()).unwrap();
    detached.forget();
    Arc::clone(&stage.engine).entry(Arc::clone(&claim), How::Attach).forget();
    let mut attached = Arc::clone(&stage.engine).entry(claim, How::Attach);
    assert!(matches!(now(attached.attempt()), Ok(Attempt::Granted(_))));
    attached.forget();
    stage.pass(MINUTE, &other).unwrap();
    assert!(!stage.is_free(3), "its lease lasts");
    assert_eq!(database.claims(), 2);
}

/// A client can be given the id of its own grant, which was not detached.
#[test]
fn a_live_grant_keeps_its_row_after_an_attempt_to_attach_to_it() {
    let database = Database::new();
    let mut stage = Stage::new(&database);
    let held = stage.hold(1, NAME);
    let mut attached = Arc::clone(&stage.engine).entry(stage.claim(1, NAME), How::Attach);
    assert_eq!(now(attached.attempt()).unwrap(), Attempt::Gone, "it is not detached");
    drop(attached);
    stage.pass(TTL / 2, &held).unwrap();
    assert!(!stage.is_free(2), "it is held");
}

#[test]
fn a_live_grant_is_renewed_during_and_after_an_attempt_to_attach_to_it() {
    let database = Database::new();
    let mut stage = Stage::new(&database);
    let held = stage.hold(1, NAME);
    let mut attached = Arc::clone(&stage.engine).entry(stage.claim(1, NAME), How::Attach);
    assert_eq!(now(attached.attempt()).unwrap(), Attempt::Gone, "it is not detached");
    stage.pass(2 * TTL, &held).unwrap();
    assert!(held.claim().is_valid(), "its row names this client");
    drop(attached);
    stage.pass(2 * TTL, &held).unwrap();
    assert!(held.claim().is_valid(), "its row names this client");
}

#[test]
fn an_attached_grant_is_renewed_although_its_lease_is_extended_meanwhile() {
    let database = Database::new();
    let mut stage = Stage::new(&database);
    let mut detached = stage.hold(1, NAME);
    now(detached.detach()).unwrap();
    drop(detached);
    let mut attached = Arc::clone(&stage.engine).entry(stage.claim(1, NAME), How::Attach);
    assert!(matches!(now(attached.attempt()), Ok(Attempt::Granted(_))));
    let mut extension = Arc::into_inner(stage.claim(1, NAME)).expect("nobody else has it");
    extension.renewed = false;
    let mut extending = Arc::clone(&stage.engine).entry(Arc::new(extension), How::Attach);
    assert!(matches!(now(extending.attempt()), Ok(Attempt::Granted(_))));
    drop(extending);
    stage.pass(2 * TTL, &attached).unwrap();
    assert!(attached.claim().is_valid(), "its guard renews it");
}

/// The timers of a closed client end at once.
#[test]
fn a_grant_that_is_to_stay_outlasts_the_close_of_its_client() {
    let database = Database::new();
    let mut stage = Stage::new(&database);
    let stays = stage.hold(1, NAME);
    drop(stays.on_drop(None));
    stage.time.clock().stop();
    stage.time.run(stage.time.clock().now(), || false);
    assert_eq!(database.claims(), 1, "its lease lasts");
}

/// Two guards of one client have the same lease.
#[test]
fn an_attached_grant_is_renewed_after_another_guard_of_its_lease_has_detached_it() {
    let database = Database::new();
    let mut stage = Stage::new(&database);
    now(stage.hold(1, NAME).detach()).unwrap();
    let (first, mut second) = (stage.attach(1), stage.attach(1));
    stage.pass(2 * TTL, &first).unwrap();
    assert!(first.claim().is_valid(), "its guard renews it");
    now(second.detach()).unwrap();
    drop(second);
    stage.pass(2 * TTL, &first).unwrap();
    assert!(first.claim().is_valid(), "its guard renews it");
}

#[test]
fn a_guard_is_told_at_once_that_another_guard_of_its_lease_has_released_it() {
    for first_releases in [true, false] {
        let database = Database::new();
        let stage = Stage::new(&database);
        now(stage.hold(1, NAME).detach()).unwrap();
        let (first, second) = (stage.attach(1), stage.attach(1));
        let (mut released, told) = if first_releases { (first, second) } else { (second, first) };
        assert_eq!(now(released.release()).unwrap(), Removed::Released);
        assert_eq!(told.claim().validity.ended(), Some(Loss::Deleted));
        assert_eq!(released.claim().validity.ended(), None, "its own release is no loss");
    }
}

#[test]
fn a_guard_is_told_at_once_that_its_client_has_released_its_lease() {
    let database = Database::new();
    let stage = Stage::new(&database);
    for a_later_claim_comes in [false, true] {
        let held = stage.hold(1, NAME);
        if a_later_claim_comes {
            drop(Arc::clone(&stage.engine).entry(stage.claim(1, NAME), How::Enter));
        }
        stage.release_lease(1);
        assert_eq!(held.claim().validity.ended(), Some(Loss::Deleted), "{a_later_claim_comes}");
    }
    now(stage.hold(2, NAME).detach()).unwrap();
    let attached = stage.attach(2);
    stage.release_lease(2);
    assert_eq!(attached.claim().validity.ended(), Some(Loss::Deleted));
    assert!(stage.is_free(3));
}

/// The next holder is granted the lock at once.
#[test]
fn a_guard_is_told_of_a_release_of_its_lease_before_the_next_claim_is() {
    struct Woken(Arc<Claim>, Mutex<Option<Option<Loss>>>);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            *self.1.lock().unwrap() = Some(self.0.validity.ended());
        }
    }
    let database = Database::new();
    let stage = Stage::new(&database);
    now(stage.hold(1, NAME).detach()).unwrap();
    let attached = stage.attach(1);
    let mut next = Arc::clone(&stage.engine).entry(stage.claim(2, NAME), How::Enter);
    assert!(matches!(now(next.attempt()), Ok(Attempt::Blocked { .. })));
    let woken = Arc::new(Woken(Arc::clone(attached.claim()), Mutex::default()));
    assert!(next.poll_wait(&mut Context::from_waker(&Waker::from(Arc::clone(&woken)))).is_pending());
    stage.release_lease(1);
    assert_eq!(*woken.1.lock().unwrap(), Some(Some(Loss::Deleted)), "the next one was woken");
}

#[test]
fn a_guard_is_told_at_once_that_its_client_has_evicted_its_lease() {
    for at_once in [true, false] {
        let database = Database::new();
        let stage = Stage::new(&database);
        now(stage.hold(1, NAME).detach()).unwrap();
        let mut attached = Arc::clone(&stage.engine).entry(stage.claim(1, NAME), How::Attach);
        let Ok(Attempt::Granted(token)) = now(attached.attempt()) else { panic!("it is detached") };
        let (name, how) = (Name::new(NAME).unwrap(), Eviction::new(at_once));
        now(stage.engine.operator().evict(&name, token, &how)).unwrap();
        assert_eq!(attached.claim().validity.ended(), Some(Loss::Evicted), "at once: {at_once}");
    }
}

/// The later claim has its id, so messages that name it do not reach the earlier one.
#[test]
fn a_guard_is_told_of_its_eviction_although_a_claim_with_its_id_comes_and_goes() {
    let database = Database::new();
    let (stage, operator) = (Stage::new(&database), Stage::new(&database));
    let mut held = Arc::clone(&stage.engine).entry(stage.claim(1, NAME), How::Enter);
    let Ok(Attempt::Granted(token)) = now(held.attempt()) else { panic!("it is free") };
    drop(Arc::clone(&stage.engine).entry(stage.claim(1, NAME), How::Enter));
    let name = Name::new(NAME).unwrap();
    now(operator.engine.operator().evict(&name, token, &Eviction::default())).unwrap();
    let renewal = held.renewal().expect("it holds");
    now(renewal.session.renew(&[renewal.claim])).unwrap();
    assert_eq!(held.claim().validity.ended(), Some(Loss::Evicted));
}

#[test]
fn a_guard_is_told_at_once_of_removed_files_although_a_claim_with_its_id_comes_and_goes() {
    let database = Database::new();
    let stage = Stage::new(&database);
    let (held, other) = (stage.hold(1, NAME), stage.hold(2, "other"));
    drop(Arc::clone(&stage.engine).entry(stage.claim(1, NAME), How::Enter));
    std::fs::remove_file(database.path()).unwrap();
    // The next client may be granted the lock from now on.
    let renewal = other.renewal().expect("it holds");
    now(renewal.session.renew(&[renewal.claim])).unwrap_err();
    assert_eq!(held.claim().validity.ended(), Some(Loss::Deleted));
}

/// The holder has told others of the lease, as of that of the claim before.
#[test]
fn a_grant_that_is_to_stay_outlasts_an_earlier_claim_with_its_id() {
    for (first, second) in [(TTL, MINUTE), (MINUTE, TTL)] {
        let database = Database::new();
        let mut stage = Stage::new(&database);
        let other = stage.hold(2, "other");
        for ttl in [first, second] {
            let claim = stage.claim(1, NAME);
            claim.set_ttl(ttl);
            stage.granted(claim, How::Enter).forget();
        }
        stage.pass(MINUTE / 2, &other).unwrap();
        assert!(!stage.is_free(3), "the longer lease lasts");
        stage.pass(MINUTE, &other).unwrap();
        assert!(stage.is_free(4), "both leases have ended");
    }
}

/// The later claim was made, and asked for nothing.
#[test]
fn a_grant_that_is_to_stay_ends_with_its_lease_although_a_claim_with_its_id_comes_and_goes() {
    let database = Database::new();
    let mut stage = Stage::new(&database);
    let other = stage.hold(2, "other");
    stage.hold(1, NAME).forget();
    let later = Arc::clone(&stage.engine).entry(stage.claim(1, NAME), How::Enter);
    stage.pass(2 * TTL, &other).unwrap();
    drop(later);
    stage.pass(TTL, &other).unwrap();
    assert!(stage.is_free(3), "its lease has ended");
}
