use std::time::Duration;

use super::*;
use crate::backend::Reply;
use crate::backend::claim::Want;
use crate::backend::claim_id::ClaimId;
use crate::backend::records::{Record, StoredRecord};
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

struct Nobody;

impl Spawner for Nobody {
    fn spawn(&self, _: Task) {}
}

/// One record, on the claims' clock.
struct Store {
    clock: Clock,
    /// The text, until when it is kept, and its version.
    stored: Mutex<Option<(String, Moment, u64)>>,
    fails: Mutex<bool>,
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
        if stored.as_ref().map_or(0, |(.., at)| *at) != version {
            return Reply::ready(Ok(None));
        }
        let until = |record: &Record| self.clock.now() + record.keep;
        *stored = record.map(|record| (record.text.clone(), until(record), version + 1));
        Reply::ready(Ok(Some(version + 1)))
    }
}

fn stage() -> (Arc<Store>, Arc<Memory>, impl Fn(u128) -> Notes) {
    let clock = Clock::manual();
    let store = Arc::new(Store { clock: clock.clone(), stored: Mutex::default(), fails: Mutex::default() });
    let made = Arc::clone(&store);
    let notes = move |id| {
        let want = Want { name: Name::new("job").unwrap(), mode: Mode::Exclusive };
        let runtime = Runtime::for_client(1, clock.clone(), Arc::new(Nobody));
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
    let (store, backend, notes) = stage();
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
    let (store, backend, notes) = stage();
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
