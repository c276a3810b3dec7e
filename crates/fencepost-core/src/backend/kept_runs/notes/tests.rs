use std::time::Duration;

use super::*;
use crate::backend::Reply;
use crate::backend::claim::Want;
use crate::backend::claim_id::ClaimId;
use crate::memory::Memory;
use crate::name::Name;
use crate::operator::holder::HolderInfo;
use crate::runtime::Runtime;
use crate::runtime::spawner::{Spawner, Task};
use crate::sync::Mutex;
use crate::time::Clock;

const START: u64 = 1_700_000_000_000_000;

struct Nobody;

impl Spawner for Nobody {
    fn spawn(&self, _: Task) {}
}

/// One record, on the claims' clock.
struct Store {
    clock: Clock,
    stored: Mutex<Option<(RunRecord, u64)>>,
    fails: Mutex<bool>,
}

impl RunStore for Store {
    fn read<'a>(&'a self, _: &'a Name) -> Reply<'a, Result<StoredRuns>> {
        if *self.fails.lock() {
            return Reply::ready(Err(Error::no_answer()));
        }
        let (record, version) =
            self.stored.lock().clone().map_or((None, 0), |(record, at)| (Some(record), at));
        let now_micros = START + self.clock.now().as_nanos() / 1_000;
        Reply::ready(Ok(StoredRuns { record, version, now_micros }))
    }

    fn write<'a>(
        &'a self,
        _: &'a Name,
        record: &'a RunRecord,
        version: u64,
    ) -> Reply<'a, Result<Option<u64>>> {
        let mut stored = self.stored.lock();
        if stored.as_ref().map_or(0, |(_, at)| *at) != version {
            return Reply::ready(Ok(None));
        }
        *stored = Some((record.clone(), version + 1));
        Reply::ready(Ok(Some(version + 1)))
    }
}

fn stage() -> (Arc<Store>, Arc<dyn Backend>, impl Fn(u128) -> Notes) {
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
    long.begin(Token::new(1), &backend).await.unwrap();
    store.clock.advance_to(store.clock.now() + Duration::from_secs(1_000));
    // Its time is over, and the next run has a record of the same version.
    *store.stored.lock() = None;
    other.begin(Token::new(2), &backend).await.unwrap();
    long.end(Token::new(1)).await.unwrap();
    let (record, _) = store.stored.lock().clone().unwrap();
    assert_eq!(record.runs.running.map(|run| run.token), Some(Token::new(2)));
}

#[tokio::test]
async fn a_run_whose_beginning_was_not_noted_began_with_its_grant() {
    let (store, backend, notes) = stage();
    let mut notes = notes(1);
    *store.fails.lock() = true;
    notes.begin(Token::new(1), &backend).await.unwrap_err();
    store.clock.advance_to(store.clock.now() + Duration::from_secs(600));
    *store.fails.lock() = false;
    notes.end(Token::new(1)).await.unwrap();
    let last = store.stored.lock().clone().unwrap().0.runs.last.unwrap();
    assert_eq!(last.ended_micros.unwrap() - last.since_micros, 600_000_000);
}
