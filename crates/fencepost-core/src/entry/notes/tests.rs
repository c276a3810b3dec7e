use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::*;
use crate::backend::Reply;
use crate::backend::claim::Want;
use crate::backend::claim_id::ClaimId;
use crate::backend::records::{Record, StoredRecord};
use crate::client::Client;
use crate::memory::Memory;
use crate::name::Name;
use crate::operator::holder::HolderInfo;
use crate::runtime::Runtime;
use crate::runtime::spawner::{Spawner, Task};
use crate::sync::Mutex;
use crate::time::Clock;

const START: u64 = 1_700_000_000_000_000;

fn read(text: String) -> Runs {
    Runs::of_record(&Record { text, keep: Duration::ZERO }).unwrap()
}

/// Counts what is to run in the background.
#[derive(Default)]
struct Background(Mutex<u32>);

impl Spawner for Background {
    fn spawn(&self, _: Task) {
        *self.0.lock() += 1;
    }
}

/// One record, on the claims' clock.
struct Store {
    clock: Clock,
    /// The text, until when it is kept, and its version.
    stored: Mutex<Option<(String, Moment, u64)>>,
    fails: Mutex<bool>,
    /// So many of the next writes find that another one came first.
    conflicts: Mutex<u32>,
    background: Arc<Background>,
}

impl RecordStore for Store {
    fn read<'a>(&'a self, _: RecordKind, _: &'a Name) -> Reply<'a, Result<StoredRecord>> {
        if *self.fails.lock() {
            return Reply::ready(Err(Error::no_answer()));
        }
        let now = self.clock.now();
        let stored = self.stored.lock().clone();
        let version = stored.as_ref().map_or(0, |(.., version)| *version);
        let record = stored.map(|(text, until, _)| Record { text, keep: until.since(now) });
        Reply::ready(Ok(StoredRecord { record, version, now_micros: START + now.as_nanos() / 1_000 }))
    }

    fn write<'a>(
        &'a self,
        _: RecordKind,
        _: &'a Name,
        record: Option<&'a Record>,
        version: u64,
    ) -> Reply<'a, Result<Option<u64>>> {
        let mut stored = self.stored.lock();
        let mut conflicts = self.conflicts.lock();
        if *conflicts > 0 {
            *conflicts -= 1;
            return Reply::ready(Ok(None));
        }
        if stored.as_ref().map_or(0, |(.., at)| *at) != version {
            return Reply::ready(Ok(None));
        }
        let until = |record: &Record| self.clock.now() + record.keep;
        *stored = record.map(|record| (record.text.clone(), until(record), version + 1));
        Reply::ready(Ok(Some(version + 1)))
    }
}

fn stage(mode: Mode) -> (Arc<Store>, Arc<Memory>, impl Fn(u128) -> Notes) {
    let clock = Clock::manual();
    let store = Arc::new(Store {
        clock: clock.clone(),
        stored: Mutex::default(),
        fails: Mutex::default(),
        conflicts: Mutex::default(),
        background: Arc::default(),
    });
    let made = Arc::clone(&store);
    let notes = move |id| {
        let want = Want { name: Name::new("job").unwrap(), mode };
        let runtime = Runtime::for_client(1, clock.clone(), Arc::clone(&made.background) as Arc<dyn Spawner>);
        let (id, holder) = (ClaimId::from_u128(id), HolderInfo::labelled("me"));
        let mut claim = Claim::new(id, want, Duration::from_secs(30), holder, runtime);
        claim.history = Some(Duration::from_secs(60));
        let sent = clock.now();
        claim.confirm(sent, Duration::from_secs(1_000_000));
        claim.report(0, RunEnd::Exited);
        Notes::new(Arc::<Store>::clone(&made), Arc::new(claim))
    };
    (store, Memory::new(), notes)
}

/// ZooKeeper counts a node's versions from its creation.
#[tokio::test]
async fn a_run_that_outlives_its_record_overwrites_no_other() {
    let (store, backend, notes) = stage(Mode::Exclusive);
    let (mut long, mut other) = (notes(1), notes(2));
    long.begin(Token::new(1), &*backend).await.unwrap();
    store.clock.advance_to(store.clock.now() + Duration::from_secs(1_000));
    // Its time is over, and the next run has a record of the same version.
    *store.stored.lock() = None;
    other.begin(Token::new(2), &*backend).await.unwrap();
    long.end(Token::new(1)).await.unwrap();
    let (text, ..) = store.stored.lock().clone().unwrap();
    assert_eq!(read(text).running.map(|run| run.token), Some(Token::new(2)));
}

#[tokio::test]
async fn a_run_whose_beginning_was_not_noted_began_with_its_grant() {
    let (store, backend, notes) = stage(Mode::Exclusive);
    let mut notes = notes(1);
    *store.fails.lock() = true;
    notes.begin(Token::new(1), &*backend).await.unwrap_err();
    store.clock.advance_to(store.clock.now() + Duration::from_secs(600));
    *store.fails.lock() = false;
    notes.end(Token::new(1)).await.unwrap();
    let (text, ..) = store.stored.lock().clone().unwrap();
    let last = read(text).last.unwrap();
    assert_eq!(last.ended_micros.unwrap() - last.since_micros, 600_000_000);
}

impl Store {
    /// The tokens of the run under way, of the last one and of the last good one.
    fn tokens(&self) -> [Option<u64>; 3] {
        let (text, ..) = self.stored.lock().clone().unwrap();
        let runs = read(text);
        [runs.running, runs.last, runs.good].map(|run| run.map(|run| run.token.get()))
    }
}

/// Lets time pass until the work is done.
fn driven<T>(clock: &Clock, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        if let Poll::Ready(done) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return done;
        }
        clock.advance_to(clock.now() + Duration::from_millis(100));
    }
}

#[test]
fn a_note_is_written_again_if_another_came_first_and_given_up_at_last() {
    let (store, backend, notes) = stage(Mode::Exclusive);
    *store.conflicts.lock() = TRIES - 1;
    driven(&store.clock, notes(1).begin(Token::new(1), &*backend)).unwrap();
    assert_eq!(store.tokens(), [Some(1), None, None]);
    for conflicts in [TRIES, u32::MAX] {
        *store.conflicts.lock() = conflicts;
        let start = store.clock.now();
        let error = driven(&store.clock, notes(2).begin(Token::new(2), &*backend)).unwrap_err();
        assert!(error.is_unreachable() && error.is_transient(), "{error}");
        assert!(store.clock.now() > start, "it rests between two tries");
    }
}

#[test]
fn a_run_that_was_displaced_is_lost_and_the_one_that_displaced_it_is_not() {
    let (store, backend, notes) = stage(Mode::Exclusive);
    let (mut first, mut second) = (notes(1), notes(2));
    driven(&store.clock, first.begin(Token::new(1), &*backend)).unwrap();
    driven(&store.clock, second.begin(Token::new(2), &*backend)).unwrap();
    driven(&store.clock, first.end(Token::new(1))).unwrap();
    assert_eq!(store.tokens(), [Some(2), Some(1), None], "a later holder has found that it holds no more");
    let mut third = notes(3);
    driven(&store.clock, third.begin(Token::new(3), &*backend)).unwrap();
    assert_eq!(store.tokens(), [Some(3), Some(2), None]);
    driven(&store.clock, third.end(Token::new(3))).unwrap();
    assert_eq!(store.tokens(), [None, Some(3), Some(3)], "the second one has no end, and is the last one");
}

#[tokio::test]
async fn a_run_that_shares_the_lock_displaces_one_that_does_not_hold() {
    let (store, memory, notes) = stage(Mode::Shared);
    let engine = Arc::<Memory>::clone(&memory);
    let lock = Client::builder().open(|_| Ok(engine)).unwrap().rwlock("job").unwrap();
    let (first, second) = (lock.read().await.unwrap(), lock.read().await.unwrap());
    for (id, guard) in [(1, &first), (2, &second)] {
        notes(id).begin(guard.token(), &*memory).await.unwrap();
    }
    let held = [&first, &second].map(|guard| Some(guard.token().get()));
    assert_eq!(store.tokens(), [held[1], None, None], "both are under way, and one is shown");
    // Nobody notes the end of this one.
    second.release().await.unwrap();
    let third = lock.read().await.unwrap();
    notes(3).begin(third.token(), &*memory).await.unwrap();
    assert_eq!(store.tokens(), [Some(third.token().get()), held[1], None]);
    drop(first);
}

#[test]
fn a_run_keeps_its_end_when_its_token_changes() {
    let (store, backend, notes) = stage(Mode::Exclusive);
    let mut notes = notes(1);
    driven(&store.clock, notes.begin(Token::new(1), &*backend)).unwrap();
    notes.rename(Token::new(1), Token::new(5));
    driven(&store.clock, notes.renumber(Token::new(5))).unwrap();
    assert_eq!(store.tokens(), [Some(5), None, None]);
    driven(&store.clock, notes.end(Token::new(5))).unwrap();
    assert_eq!(store.tokens(), [None, Some(5), Some(5)]);
}

#[test]
fn about_one_write_of_a_hundred_deletes_expired_records() {
    let (store, backend, notes) = stage(Mode::Exclusive);
    let writes = 2_000;
    for number in 1..=writes {
        driven(&store.clock, notes(0x1234_5678_9abc_def0).begin(Token::new(number), &*backend)).unwrap();
    }
    let sweeps = u64::from(*store.background.0.lock());
    let expected = writes / SWEEP_EVERY;
    assert!((expected / 2..=expected * 2).contains(&sweeps), "{sweeps} of {writes}");
}
