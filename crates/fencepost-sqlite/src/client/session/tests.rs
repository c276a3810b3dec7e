use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use fencepost_core::{
    Attempt, BackendUrl, ClaimId, Clock, Entry, HolderInfo, How, Mode, Name, Runtime, Spawner, Task, Want,
};
use fencepost_testkit::server::TempDir;

use super::*;
use crate::config::Config;
use crate::place::SqlitePlace;
use crate::testing;

/// Keeps the tasks of a client, and runs none.
#[derive(Default)]
struct Idle(Mutex<Vec<Task>>);

impl Spawner for Idle {
    fn spawn(&self, task: Task) {
        self.0.lock().push(task);
    }
}

/// One client of the database, whose tasks never run: no message reaches it.
struct Stage {
    client: Arc<Client>,
    session: Arc<SqliteSession>,
    clock: Clock,
    host: Arc<Idle>,
}

impl Stage {
    fn new(folder: &TempDir) -> Stage {
        Stage::with(folder, Clock::manual())
    }

    fn with(folder: &TempDir, clock: Clock) -> Stage {
        let url = format!("sqlite:{}", folder.path().join("locks.db").display());
        let config = Config::parse(&BackendUrl::parse(&url).unwrap()).unwrap();
        let host = Arc::<Idle>::default();
        let runtime = Runtime::for_client(1, clock.clone(), Arc::clone(&host) as Arc<dyn Spawner>);
        let client =
            Arc::new(Client::open(&config, &runtime).unwrap_or_else(|failure| panic!("{failure:?}")));
        Stage { session: Arc::new(SqliteSession::new(Arc::clone(&client))), client, clock, host }
    }

    /// A claim to the lock `name`, with the answer to its first attempt.
    fn ask(&self, id: u128, name: &str) -> (Arc<Claim>, Entry, Attempt) {
        self.ask_in(Mode::Exclusive, id, name)
    }

    fn ask_in(&self, mode: Mode, id: u128, name: &str) -> (Arc<Claim>, Entry, Attempt) {
        self.come(How::Enter, mode, id, name)
    }

    fn come(&self, how: How, mode: Mode, id: u128, name: &str) -> (Arc<Claim>, Entry, Attempt) {
        let want = Want { name: Name::new(name).unwrap(), mode };
        let (id, holder) = (ClaimId::from_u128(id), HolderInfo::labelled("test"));
        let ttl = Duration::from_secs(30);
        let claim = Arc::new(Claim::new(id, want, ttl, holder, self.client.runtime.clone()));
        let (client, session) = (Arc::clone(&self.client), Arc::clone(&self.session));
        let place = SqlitePlace::new(client, session, Arc::clone(&claim), how == How::Attach);
        let mut entry = Entry::new(Arc::clone(&claim), how, place);
        let attempt = now(entry.attempt()).unwrap();
        (claim, entry, attempt)
    }

    fn row(&self, name: &str, id: u128) -> Option<rows::Row> {
        let id = id.to_be_bytes();
        self.client.database.read(|db| Ok(rows::find(db, name, &id)?)).unwrap()
    }

    fn sql(&self, sql: &str) {
        self.client.database.write(|db| Ok(db.execute_batch(sql)?)).unwrap_or_else(|e| panic!("{e:?}"));
    }
}

fn now<T: Unpin>(mut reply: Reply<'_, T>) -> T {
    let polled = Pin::new(&mut reply).poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(answer) = polled else { panic!("nobody else writes the database") };
    answer
}

fn waits(entry: &mut Entry) -> bool {
    entry.poll_wait(&mut Context::from_waker(Waker::noop())) == Poll::Pending
}

#[test]
fn an_eviction_ends_the_claims_that_it_marked_or_removed_and_no_others() {
    let folder = testing::folder();
    let stage = Stage::new(&folder);
    let mut held: Vec<_> = ["marked", "removed", "released", "kept"]
        .into_iter()
        .zip(1..)
        .map(|(name, id)| stage.ask(id, name))
        .collect();
    let seq = stage.row("marked", 1).expect("it is there").seq;
    stage.client.database.write(|db| Ok(rows::mark_evicted(db, "marked", seq)?)).unwrap();
    stage.sql("DELETE FROM line WHERE resource IN ('removed', 'released')");
    now(held[2].1.release()).unwrap();
    eviction_file::write(&stage.client.eviction_file(stage.client.key), "").unwrap();
    let due: Vec<_> = held.iter().map(|(claim, ..)| Arc::clone(claim)).collect();
    now(stage.session.renew(&due)).unwrap();
    let ended: Vec<_> = due.iter().map(|claim| claim.validity.ended()).collect();
    assert_eq!(ended, [Some(Loss::Evicted), Some(Loss::Evicted), None, None]);
}

/// Its row has its last end, so the message must not be lost while the claim learns of its grant.
#[test]
fn an_eviction_ends_a_claim_that_has_not_learned_of_its_grant() {
    let folder = testing::folder();
    let (holder, stage) = (Stage::new(&folder), Stage::new(&folder));
    let (kept, _kept, _) = stage.ask(9, "another");
    let (_, mut held, _) = holder.ask(1, "a");
    let (claim, _entry, _) = stage.ask_in(Mode::Shared, 2, "a");
    now(held.release()).unwrap();
    // Granted beside this one.
    let _other = holder.ask_in(Mode::Shared, 3, "a");
    let seq = stage.row("a", 2).expect("it is granted").seq;
    stage.client.database.write(|db| Ok(rows::mark_evicted(db, "a", seq)?)).unwrap();
    eviction_file::write(&stage.client.eviction_file(stage.client.key), "").unwrap();
    now(stage.session.renew(&[kept])).unwrap();
    assert_eq!(claim.validity.ended(), Some(Loss::Evicted));
}

/// The disk may be full, so that the message could not be written again.
#[test]
fn an_eviction_is_looked_for_until_the_rows_could_be_read() {
    let folder = testing::folder();
    let stage = Stage::new(&folder);
    let (claim, _entry, _) = stage.ask(1, "a");
    let message = stage.client.eviction_file(stage.client.key);
    let seq = stage.row("a", 1).expect("it is granted").seq;
    stage.client.database.write(|db| Ok(rows::mark_evicted(db, "a", seq)?)).unwrap();
    let id = claim.id.as_u128().to_be_bytes();
    eviction_file::write(&message, &eviction_file::line(&id, "an operator")).unwrap();
    stage.sql("ALTER TABLE line RENAME TO away");
    assert!(now(stage.session.renew(&[Arc::clone(&claim)])).is_err());
    let _ = std::fs::remove_file(&message);
    stage.sql("ALTER TABLE away RENAME TO line");
    now(stage.session.renew(&[Arc::clone(&claim)])).unwrap();
    assert_eq!(claim.validity.ended(), Some(Loss::Evicted));
    assert_eq!(claim.validity.detail().as_deref(), Some("an operator"));
}

/// A client that is closed has no timers, so pauses end at once.
#[test]
fn a_request_of_a_stopped_client_does_not_wait_for_a_busy_database() {
    let folder = testing::folder();
    let (stage, writer) = (Stage::with(&folder, Clock::boot()), Stage::new(&folder));
    let (_claim, mut entry, _) = stage.ask(1, "a");
    stage.clock.stop();
    let release = writer.client.database.write(|_| {
        let start = std::time::Instant::now();
        let mut release = entry.release();
        let polled = Pin::new(&mut release).poll(&mut Context::from_waker(Waker::noop()));
        assert!(start.elapsed() < BUSY_TIMEOUT / 2, "it has polled without a pause");
        Ok(polled)
    });
    let Ok(Poll::Ready(Err(error))) = release else { panic!("it is busy: {release:?}") };
    assert!(error.is_unreachable(), "{error}");
}

/// Nobody rang for them: the process that held the locks is gone.
#[test]
fn a_round_wakes_the_waiters_whose_turn_it_is() {
    let folder = testing::folder();
    let (holder, stage) = (Stage::new(&folder), Stage::new(&folder));
    let held = ["a", "b"].map(|name| holder.ask(u128::from(name.as_bytes()[0]), name));
    let mut first = ["a", "b"].into_iter().zip(1..).map(|(name, id)| stage.ask(id, name)).collect::<Vec<_>>();
    let (behind, mut behind_entry, _) = stage.ask(3, "a");
    let (kept, ..) = stage.ask(4, "c");
    for (_, entry, attempt) in &mut first {
        assert!(matches!(attempt, Attempt::Blocked { .. }) && waits(entry));
    }
    let due: Vec<_> = first.iter().map(|(claim, ..)| Arc::clone(claim)).chain([behind, kept]).collect();
    now(stage.session.renew(&due)).unwrap();
    assert!(first.iter_mut().all(|(_, entry, _)| waits(entry)), "the locks are held");
    holder.sql("DELETE FROM line WHERE token > 0 AND resource != 'c'");
    now(stage.session.renew(&due)).unwrap();
    assert!(first.iter_mut().all(|(_, entry, _)| !waits(entry)));
    assert!(waits(&mut behind_entry), "the first is before it");
    drop(held);
}

/// Nobody rings for them, because their rows are gone: a smaller limit has removed them, or this process was stopped for so long that it was
/// taken for dead.
#[test]
fn a_round_wakes_the_waiters_whose_rows_are_gone() {
    for mode in [Mode::Permits { n: 2, of: 2 }, Mode::Exclusive] {
        let folder = testing::folder();
        let stage = Stage::new(&folder);
        let held = stage.ask(1, "a");
        let mut waiting = [2, 3].map(|id| stage.ask_in(mode, id, "a"));
        let due: Vec<_> = waiting.iter().map(|(claim, ..)| Arc::clone(claim)).collect();
        // Those who are not the first in the queue look in every third round.
        let rounds = || (0..3).for_each(|_| now(stage.session.renew(&due)).unwrap());
        rounds();
        assert!(waiting.iter_mut().all(|(_, entry, _)| waits(entry)), "the lock is held");
        stage.sql("DELETE FROM line WHERE resource = 'a' AND token = 0 AND seq > 0");
        rounds();
        assert!(waiting.iter_mut().all(|(_, entry, _)| !waits(entry)), "{mode:?}");
        drop(held);
    }
}

/// They ask then, and their callers get the error.
#[test]
fn a_round_wakes_the_waiters_if_the_queue_cannot_be_read() {
    let folder = testing::folder();
    let stage = Stage::new(&folder);
    let held = stage.ask(1, "a");
    let mut waiting = [2, 3].map(|id| stage.ask(id, "a"));
    let due: Vec<_> = waiting.iter().map(|(claim, ..)| Arc::clone(claim)).collect();
    stage.sql("ALTER TABLE line RENAME TO away");
    now(stage.session.renew(&due)).unwrap();
    stage.sql("ALTER TABLE away RENAME TO line");
    assert!(waiting.iter_mut().all(|(_, entry, _)| !waits(entry)));
    drop(held);
}

/// It may have died between the look at its row and the watch.
#[test]
fn a_waiter_looks_once_more_after_it_has_begun_to_watch_a_process() {
    let folder = testing::folder();
    let (holder, stage) = (Stage::new(&folder), Stage::new(&folder));
    let held = holder.ask(1, "a");
    let next_attempt = |attempt: Attempt| match attempt {
        Attempt::Blocked { next_attempt, .. } => next_attempt,
        other => panic!("{other:?}"),
    };
    let soon = stage.clock.now() + Duration::from_millis(5);
    let (_claim, mut entry, first) = stage.ask(2, "a");
    assert_eq!(next_attempt(first), Some(soon));
    let second = next_attempt(now(entry.attempt()).unwrap());
    assert!(second.is_none_or(|next| next > soon), "{second:?}");
    drop(held);
}

/// The next claim tries again, and so do many.
#[test]
fn a_first_claim_that_fails_keeps_no_descriptor_and_no_task() {
    let folder = testing::folder();
    let stage = Stage::new(&folder);
    let bell = crate::process::notify_fifo::path(&stage.client.folder, stage.client.key);
    let descriptors = || {
        let all = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(std::result::Result::ok);
        all.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|file| file == bell)).count()
    };
    let in_the_way = stage.client.folder.join(format!("{}.new", stage.client.key));
    std::fs::create_dir(&in_the_way).unwrap();
    for _ in 0..3 {
        assert!(stage.client.heartbeat().is_err());
    }
    assert_eq!((descriptors(), stage.host.0.lock().len()), (0, 0));
    std::fs::remove_dir(&in_the_way).unwrap();
    let (_claim, _entry, attempt) = stage.ask(1, "a");
    assert!(matches!(attempt, Attempt::Granted(_)));
    assert_eq!(descriptors(), 1);
}

/// Else a second removal would end the lease by the note of the first.
#[test]
fn a_round_that_makes_the_side_file_again_removes_the_notes_that_it_is_missing() {
    let folder = testing::folder();
    let (holder, other) = (Stage::new(&folder), Stage::new(&folder));
    let (claim, _entry, _) = holder.ask(1, "a");
    let missing = || {
        let id = 1u128.to_be_bytes();
        other.client.database.read(|db| Ok(rows::find(db, "a", &id)?)).unwrap().expect("it is held").missing
    };
    for (id, removal) in (2..).zip(["first", "second"]) {
        std::fs::remove_file(holder.client.heartbeat().unwrap().path()).unwrap();
        let (_, _asked, attempt) = other.ask(id, "a");
        assert!(matches!(attempt, Attempt::Blocked { .. }), "{removal}");
        assert!(missing().is_some(), "{removal}");
        now(holder.session.renew(&[Arc::clone(&claim)])).unwrap();
        assert_eq!(missing(), None, "{removal}");
    }
}

/// The holder may have renewed its lease in the meantime.
#[test]
fn a_side_file_is_missing_since_the_look_at_it_and_not_since_the_request_began() {
    let folder = testing::folder();
    let (holder, other) = (Stage::new(&folder), Stage::new(&folder));
    let (_claim, _entry, _) = holder.ask(1, "a");
    std::fs::remove_file(holder.client.heartbeat().unwrap().path()).unwrap();
    let began = other.client.now();
    // Its process is stopped here.
    other.clock.advance_to(other.clock.now() + Duration::from_secs(60));
    let looked = other.clock.now().as_nanos();
    other.client.database.write(|db| queue::next(db, &mut other.client.liveness(began), "a")).unwrap();
    assert_eq!(other.row("a", 1).expect("it is held").missing, Some(looked));
}

/// What it wrote there would not be what others see.
#[test]
fn a_grant_in_removed_files_is_not_detached() {
    let folder = testing::folder();
    let stage = Stage::new(&folder);
    let (claim, mut entry, _) = stage.ask(1, "a");
    std::fs::remove_file(stage.client.path()).unwrap();
    let error = now(entry.detach()).unwrap_err();
    assert!(error.is_configuration(), "{error}");
    assert_eq!(claim.validity.ended(), Some(Loss::Deleted));
}

/// A commit can take seconds. Meanwhile others would take this client's leases and positions for expired.
#[test]
fn a_round_renews_while_another_thread_has_the_connection() {
    let folder = testing::folder();
    let stage = Stage::new(&folder);
    let (claim, _entry, _) = stage.ask(1, "a");
    let (waiting, _waiting, _) = stage.ask(2, "a");
    let before = claim.validity.until();
    stage.clock.advance_to(stage.clock.now() + Duration::from_secs(10));
    let (session, due) = (Arc::clone(&stage.session), vec![Arc::clone(&claim), waiting]);
    let (sender, renewed) = std::sync::mpsc::channel();
    let renewed = stage.client.database.write(|_| {
        std::thread::spawn(move || sender.send(now(session.renew(&due)).is_ok()));
        Ok(renewed.recv_timeout(Duration::from_secs(60)))
    });
    assert_eq!(renewed.unwrap(), Ok(true));
    assert!(claim.validity.until() > before);
}

/// The id may be that of a claim before the program was started again.
#[test]
fn a_claim_with_the_id_of_another_clients_claim_is_gone_and_leaves_that_one_alone() {
    let folder = testing::folder();
    let (stage, other) = (Stage::new(&folder), Stage::new(&folder));
    let (claim, mut held, _) = stage.ask(1, "a");
    for detached in [false, true] {
        if detached {
            now(held.detach()).unwrap();
        }
        let row = stage.row("a", 1);
        let (asks, mut entry, attempt) = other.ask(1, "a");
        assert_eq!((attempt, asks.validity.is_confirmed()), (Attempt::Gone, false), "detached: {detached}");
        now(entry.withdraw()).unwrap();
        assert_eq!(stage.row("a", 1), row, "detached: {detached}");
    }
    assert_eq!(claim.validity.ended(), None);
}

/// The others of its round may not wait for it, because the side file confirms them.
#[test]
fn a_round_gives_up_a_busy_database_before_the_leases_in_the_side_file_are_due_again() {
    for (waits, limit) in [(false, Duration::from_secs(5)), (true, Duration::from_secs(3))] {
        let folder = testing::folder();
        let (writer, stage) = (Stage::new(&folder), Stage::new(&folder));
        let (_, mut detached, _) = stage.ask(1, "a");
        now(detached.detach()).unwrap();
        let (attached, _attached, _) = stage.come(How::Attach, Mode::Exclusive, 1, "a");
        let (plain, _plain, _) = stage.ask(2, "b");
        let (waiting, _waiting, _) = stage.ask(3, "b");
        let due: Vec<_> = [attached, plain].into_iter().chain(waits.then_some(waiting)).collect();
        let ended = writer.client.database.write(|_| {
            let mut round = stage.session.renew(&due);
            let mut poll = || Pin::new(&mut round).poll(&mut Context::from_waker(Waker::noop()));
            let start = stage.clock.now();
            for waited in [Duration::ZERO, limit * 9 / 10] {
                stage.clock.advance_to(start + waited);
                assert!(poll().is_pending(), "waits: {waits}");
            }
            stage.clock.advance_to(start + limit);
            Ok(matches!(poll(), Poll::Ready(Err(_))))
        });
        assert!(ended.unwrap(), "waits: {waits}");
    }
}

/// Others judge the claim by the length in its row already, so that length needs the side file alone.
#[test]
fn a_lease_is_renewed_while_its_extension_waits_for_the_database() {
    let folder = testing::folder();
    let (writer, stage) = (Stage::new(&folder), Stage::new(&folder));
    let (claim, _entry, _) = stage.ask(1, "a");
    let (before, due, pause) = (claim.validity.until(), [Arc::clone(&claim)], Duration::from_secs(10));
    claim.set_ttl(Duration::from_secs(60));
    stage.clock.advance_to(stage.clock.now() + pause);
    let round = writer.client.database.write(|_| {
        let mut round = stage.session.renew(&due);
        assert!(Pin::new(&mut round).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        Ok(round)
    });
    assert_eq!(claim.validity.until(), before + pause);
    stage.clock.advance_to(stage.clock.now() + Duration::from_millis(20));
    now(round.unwrap()).unwrap();
    assert!(claim.validity.until() > before + 2 * pause, "the lease is longer");
}
