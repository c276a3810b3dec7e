//! An eviction beside an owner that does as it is told.

use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use crate::support::{Database, SOON};
use fencepost_core::{
    Attempt, BackendUrl, Claim, ClaimId, Client, Effect, Eviction, HolderInfo, How, Mode, Name, Registry,
    Removed, Runtime, Want,
};
use fencepost_testkit::sim::Executor;
use rusqlite::Connection;

/// Somebody writes from the moment that the owner is told until this is let go.
struct Writer {
    path: PathBuf,
    writes: Mutex<Option<Connection>>,
}

impl Writer {
    fn writes(&self) -> Option<Connection> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Wake for Writer {
    fn wake(self: Arc<Self>) {
        let db = Connection::open(&self.path).unwrap();
        db.execute_batch("BEGIN IMMEDIATE").unwrap();
        *self.writes.lock().unwrap() = Some(db);
    }
}

/// Between telling the owner and its last step it finds the database busy, and the owner leaves: it is done all the same.
#[tokio::test]
async fn an_owner_that_leaves_before_the_last_step_was_evicted() {
    let database = Database::new();
    // The runtime of a client that is there for that alone.
    let beside = Client::builder().connect(&Registry::new(), "memory:").await.unwrap();
    let runtime = beside.runtime().clone();
    let engine =
        fencepost_sqlite::open(BackendUrl::parse(&database.url()).unwrap(), runtime.clone()).await.unwrap();

    let name = Name::new("stock/42").unwrap();
    let want = Want { name: name.clone(), mode: Mode::Exclusive };
    let holder = Arc::new(HolderInfo::new("owner", "host", 1));
    let mut owner = Arc::clone(&engine)
        .entry(Arc::new(Claim::new(ClaimId::from_u128(7), want, SOON, holder, runtime.clone())), How::Enter);
    let Attempt::Granted(grant) = owner.attempt().await.unwrap() else { panic!("it is free") };

    let writer = Arc::new(Writer { path: database.path(), writes: Mutex::default() });
    let waker = Waker::from(Arc::clone(&writer));
    assert!(owner.poll_wait(&mut Context::from_waker(&waker)).is_pending());

    let how = Eviction::default();
    let mut evicting = engine.operator().evict(&name, grant, &how);
    poll_fn(|cx| {
        assert!(std::pin::Pin::new(&mut evicting).poll(cx).is_pending(), "nobody was writing");
        Poll::Ready(())
    })
    .await;
    let db = writer.writes().expect("the owner was told before the last step");
    db.execute_batch("COMMIT").unwrap();
    assert_eq!(owner.withdraw().await.unwrap(), Removed::Released);
    tokio::time::timeout(SOON, evicting).await.expect("nobody writes any more").unwrap();
    assert!(engine.operator().inspect(&name).await.unwrap().claims.is_empty());
}

/// Its row is gone by then, whatever becomes of the message.
#[tokio::test]
async fn an_eviction_at_once_does_not_fail_because_its_owner_cannot_be_told() {
    let database = Database::new();
    let (owner, operator) = (database.locks().await, database.locks().await);
    let guard = owner.mutex("stock/42").unwrap().lock().await.unwrap();
    let key = database.sides().into_iter().find(|name| name.len() == 32).expect("the owner has a side file");
    std::fs::create_dir_all(database.folder().join(format!("locks.db-fencepost/{key}.evicted/full")))
        .unwrap();
    operator.evict("stock/42", guard.token(), &Eviction::new(true)).await.unwrap();
    drop(operator.mutex("stock/42").unwrap().lock().wait(SOON).await.expect("its row is gone"));

    let guard = owner.mutex("b").unwrap().lock().await.unwrap();
    let error = operator.evict("b", guard.token(), &Eviction::default()).await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "it is marked: {error}");
}

/// Somebody writes for longer than an eviction waits for that, from the moment that the owner is told.
#[tokio::test]
async fn an_eviction_that_is_busy_in_its_last_step_may_have_taken_effect() {
    let database = Database::new();
    let time = Executor::new(1);
    let clock = time.clock();
    let runtime = Runtime::for_client(1, clock.clone(), time.host(0));
    let engine =
        fencepost_sqlite::open(BackendUrl::parse(&database.url()).unwrap(), runtime.clone()).await.unwrap();
    let name = Name::new("stock/42").unwrap();
    let want = Want { name: name.clone(), mode: Mode::Exclusive };
    let claim = Claim::new(ClaimId::from_u128(7), want, SOON, HolderInfo::labelled("owner"), runtime.clone());
    let mut owner = Arc::clone(&engine).entry(Arc::new(claim), How::Enter);
    let Attempt::Granted(grant) = owner.attempt().await.unwrap() else { panic!("it is free") };
    let writer = Arc::new(Writer { path: database.path(), writes: Mutex::default() });
    let waker = Waker::from(Arc::clone(&writer));
    assert!(owner.poll_wait(&mut Context::from_waker(&waker)).is_pending());

    let how = Eviction::default();
    let mut evicting = engine.operator().evict(&name, grant, &how);
    let error = poll_fn(|cx| match std::pin::Pin::new(&mut evicting).poll(cx) {
        Poll::Ready(answer) => Poll::Ready(answer.unwrap_err()),
        Poll::Pending => {
            clock.advance_to(clock.next_timer().expect("it looks again"));
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await;
    assert!(error.is_unreachable() && error.to_string().contains("locked"), "{error}");
    assert_eq!(error.effect(), Effect::Unknown, "the owner was told: {error}");
    drop(writer.writes());
    let info = engine.operator().inspect(&name).await.unwrap();
    assert!(info.holders().all(|claim| claim.evicted), "it is marked");
}

/// Its owner has not learned of the grant, and does not react to the eviction. Its client lives, and renews another lock.
#[tokio::test]
async fn an_evicted_grant_of_a_fixed_lease_ends_although_it_was_never_collected() {
    let database = Database::new();
    let time = Executor::new(1);
    let clock = time.clock();
    let runtime = Runtime::for_client(1, clock.clone(), time.host(0));
    let engine =
        fencepost_sqlite::open(BackendUrl::parse(&database.url()).unwrap(), runtime.clone()).await.unwrap();
    let name = Name::new("stock/42").unwrap();
    let entry = |id, name: &Name, mode, renewed| {
        let want = Want { name: name.clone(), mode };
        let holder = HolderInfo::labelled(if renewed { "other" } else { "owner" });
        let mut claim = Claim::new(ClaimId::from_u128(id), want, SOON, holder, runtime.clone());
        claim.renewed = renewed;
        Arc::clone(&engine).entry(Arc::new(claim), How::Enter)
    };
    let mut kept = entry(1, &Name::new("other").unwrap(), Mode::Exclusive, true);
    kept.attempt().await.unwrap();
    let mut before = entry(2, &name, Mode::Exclusive, true);
    before.attempt().await.unwrap();
    let mut owner = entry(3, &name, Mode::Shared, false);
    assert!(matches!(owner.attempt().await, Ok(Attempt::Blocked { .. })));
    before.withdraw().await.unwrap();
    let mut beside = entry(4, &name, Mode::Shared, true);
    assert!(matches!(beside.attempt().await, Ok(Attempt::Granted(_))));
    beside.withdraw().await.unwrap();

    let info = engine.operator().inspect(&name).await.unwrap();
    let grant = info.holders().find_map(|claim| claim.token).expect("it was granted beside the later claim");
    engine.operator().evict(&name, grant, &Eviction::default()).await.unwrap();
    clock.advance_to(clock.now() + SOON);
    let renewal = kept.renewal().expect("it holds");
    renewal.session.renew(&[renewal.claim]).await.unwrap();
    let mut next = entry(5, &name, Mode::Exclusive, true);
    assert!(matches!(next.attempt().await, Ok(Attempt::Granted(_))), "its last lease has ended");
}

/// The row of the renewed claim still has the end of the fixed lease.
#[tokio::test]
async fn a_renewed_claim_that_follows_a_fixed_one_with_its_id_keeps_its_lease_when_it_is_evicted() {
    let database = Database::new();
    let time = Executor::new(1);
    let clock = time.clock();
    let open = async |client| {
        let runtime = Runtime::for_client(client, clock.clone(), time.host(0));
        fencepost_sqlite::open(BackendUrl::parse(&database.url()).unwrap(), runtime).await.unwrap()
    };
    let (owner, operator) = (open(1).await, open(2).await);
    let name = Name::new("stock/42").unwrap();
    let claim = |id, ttl, renewed| {
        let want = Want { name: name.clone(), mode: Mode::Exclusive };
        let runtime = Runtime::for_client(1, clock.clone(), time.host(0));
        let mut claim = Claim::new(ClaimId::from_u128(id), want, ttl, HolderInfo::labelled("owner"), runtime);
        claim.renewed = renewed;
        Arc::new(claim)
    };
    let mut fixed = Arc::clone(&owner).entry(claim(7, SOON / 2, false), How::Enter);
    assert!(matches!(fixed.attempt().await, Ok(Attempt::Granted(_))));
    let mut renewed = Arc::clone(&owner).entry(claim(7, SOON, true), How::Enter);
    let Attempt::Granted(grant) = renewed.attempt().await.unwrap() else { panic!("it has the row") };
    clock.advance_to(clock.now() + SOON / 2);
    let renewal = renewed.renewal().expect("it holds");
    renewal.session.renew(&[renewal.claim]).await.unwrap();

    operator.operator().evict(&name, grant, &Eviction::default()).await.unwrap();
    let mut next = Arc::clone(&operator).entry(claim(8, SOON, true), How::Enter);
    assert!(matches!(next.attempt().await, Ok(Attempt::Blocked { .. })), "its owner was not told yet");
    assert!(renewed.claim().is_valid());
    clock.advance_to(clock.now() + SOON);
    assert!(!renewed.claim().is_valid());
    assert!(matches!(next.attempt().await, Ok(Attempt::Granted(_))), "its last lease has ended");
}
