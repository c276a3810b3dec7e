//! The limit on claims that wait at the engine: their number, their order, and their answers.

use fencepost_core::{
    Backend, Capabilities, Claim, Client, Entry, Guard, How, Memory, Name, Operator, Reply, Result,
};
use fencepost_testkit::chaos::{Chaos, Odds};
use fencepost_testkit::limited::Limited;
use fencepost_testkit::wait::{Stalls, all_along, eventually};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

const SOON: Duration = Duration::from_secs(30);
const MOST: u32 = 4;

/// Makes a client whose claims pass a limit, and the engine that counts them.
fn client(name: &str) -> (Client, Arc<Memory>) {
    let memory = Memory::new();
    let inner = Arc::clone(&memory);
    let locks = Client::builder().open(|_| Ok(Arc::new(Limited::new(inner, MOST, name)))).unwrap();
    (locks, memory)
}

async fn waiters(memory: &Memory) -> usize {
    memory.operator().inspect(&Name::new("stock").unwrap()).await.unwrap().waiters().count()
}

fn ask(locks: &Client, count: usize) -> Vec<JoinHandle<Result<Guard>>> {
    let mutex = || locks.mutex("stock").unwrap();
    (0..count).map(|_| mutex()).map(|mutex| tokio::spawn(async move { mutex.lock().await })).collect()
}

#[tokio::test]
async fn few_wait_at_the_engine_and_all_are_granted_in_the_order_of_their_calls() {
    let (locks, memory) = client("order");
    let guard = locks.mutex("stock").unwrap().lock().await.unwrap();
    let mut last = guard.token();
    let asked = ask(&locks, 1_000);
    eventually(SOON, "they wait", async || waiters(&memory).await == MOST as usize).await;
    assert!(locks.mutex("stock").unwrap().try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
    for (number, asked) in asked.into_iter().enumerate() {
        // Every third claim is dropped, wherever it waits.
        if number % 3 == 2 {
            asked.abort();
            assert!(asked.await.is_err());
            continue;
        }
        let guard = tokio::time::timeout(SOON, asked).await.expect("it is its turn").unwrap().unwrap();
        assert!(guard.token() > last, "claim {number} was overtaken");
        last = guard.token();
        assert!(waiters(&memory).await <= MOST as usize);
        guard.release().await.unwrap();
    }
    eventually(SOON, "all are gone", async || locks.backlog() == 0).await;
    locks.mutex("stock").unwrap().try_lock().await.unwrap().expect("it is free").release().await.unwrap();
    locks.close().await;
}

/// Readers hold together, so only their tokens show the order in which they were granted.
#[tokio::test]
async fn readers_that_have_waited_here_are_granted_in_the_order_of_their_calls() {
    let memory = Memory::new();
    let late = Odds { late_request: 500, delay: Duration::from_millis(5), ..Odds::NONE };
    let open = |seed| {
        let inner = Arc::clone(&memory);
        Client::builder().open(move |runtime| {
            let layer = Chaos::new(inner, runtime.clock().clone(), seed, late);
            Ok(Arc::new(Limited::new(Arc::new(layer), MOST, "reading")))
        })
    };
    let clients = [open(1).unwrap(), open(2).unwrap()];
    let writer = clients[0].rwlock("stock").unwrap().write().await.unwrap();
    let readers: Vec<_> = (0..40)
        .map(|number| clients[number % 2].rwlock("stock").unwrap())
        .map(|lock| tokio::spawn(async move { lock.read().await }))
        .collect();
    eventually(SOON, "they wait", async || waiters(&memory).await == MOST as usize).await;
    writer.release().await.unwrap();
    let mut tokens = Vec::new();
    for reader in readers {
        let guard = tokio::time::timeout(SOON, reader).await.expect("it is granted").unwrap().unwrap();
        tokens.push(guard.token());
        guard.release().await.unwrap();
    }
    // The first `MOST` are sent together.
    assert!(tokens[MOST as usize..].is_sorted(), "{tokens:?}");
    for client in clients {
        client.close().await;
    }
}

#[tokio::test]
async fn readers_and_permits_that_hold_are_not_limited() {
    let (locks, _) = client("readers");
    let mut held = Vec::new();
    for _ in 0..10 * MOST {
        held.push(locks.rwlock("stock").unwrap().read().await.unwrap());
    }
    let writer = ask(&locks, 1).pop().unwrap();
    for _ in 0..10 * MOST {
        held.push(locks.semaphore("permits", 1_000).unwrap().acquire().await.unwrap());
    }
    drop(held);
    writer.await.unwrap().unwrap().release().await.unwrap();
    locks.close().await;
}

#[tokio::test]
async fn clients_of_a_process_share_the_limit() {
    let memory = Memory::new();
    let open = || {
        let inner = Arc::clone(&memory);
        Client::builder().open(|_| Ok(Arc::new(Limited::new(inner, MOST, "shared")))).unwrap()
    };
    let (one, two) = (open(), open());
    let guard = one.mutex("stock").unwrap().lock().await.unwrap();
    let asked = [ask(&one, 10), ask(&two, 10)];
    eventually(SOON, "they wait", async || waiters(&memory).await == MOST as usize).await;
    guard.release().await.unwrap();
    for asked in asked.into_iter().flatten() {
        asked.await.unwrap().unwrap().release().await.unwrap();
        assert!(waiters(&memory).await <= MOST as usize);
    }
    one.close().await;
    two.close().await;
}

#[tokio::test]
async fn a_claim_that_waits_in_the_process_is_told_that_the_engine_fails() {
    let memory = Memory::new();
    let mut chaos = None;
    let outage = Duration::from_millis(200);
    let locks = Client::builder().ttl(Duration::from_millis(300)).outage(outage).open(|runtime| {
        let layer = Arc::new(Chaos::new(memory.clone(), runtime.clock().clone(), 1, Odds::NONE));
        chaos = Some(Arc::clone(&layer));
        Ok(Arc::new(Limited::new(layer, MOST, "outage")))
    });
    let (locks, chaos) = (locks.unwrap(), chaos.unwrap());
    // Another client, so that its claim does not depend on the network.
    let other = Client::builder().open(|_| Ok(memory.clone())).unwrap();
    let guard = other.mutex("stock").unwrap().lock().await.unwrap();
    let mut asked = ask(&locks, 20);
    eventually(SOON, "they wait", async || waiters(&memory).await == MOST as usize).await;
    chaos.cut(true);
    for asked in asked.split_off(MOST as usize) {
        let error = tokio::time::timeout(SOON, asked).await.expect("it is told").unwrap().unwrap_err();
        assert!(error.is_unreachable(), "{error}");
    }
    chaos.cut(false);
    guard.release().await.unwrap();
    // The engine in memory needs no renewal of the claims that wait there. On a machine that stalls so short a lease ends before its release.
    for asked in asked {
        drop(asked.await.unwrap().unwrap().release().await);
    }
    locks.close().await;
    other.close().await;
}

/// An engine that reports whether it can be reached when the test says so.
struct Slow {
    inner: Arc<Memory>,
    asked: AtomicBool,
    answer: Notify,
}

impl Backend for Slow {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        Arc::clone(&self.inner).entry(claim, how)
    }

    fn operator(&self) -> &dyn Operator {
        self.inner.operator()
    }
    fn reach(&self) -> Reply<'_, Result<()>> {
        Reply::coming(async {
            self.asked.store(true, Ordering::SeqCst);
            self.answer.notified().await;
            Ok(())
        })
    }
}

#[tokio::test]
async fn a_grant_that_comes_while_the_engine_is_asked_for_is_renewed() {
    let mut stalls = Stalls::default();
    while stalls.spoilt(grant_while_the_engine_is_asked_for().await) {}
}

async fn grant_while_the_engine_is_asked_for() -> Result<()> {
    let memory = Memory::new();
    let slow = Slow { inner: memory.clone(), asked: AtomicBool::new(false), answer: Notify::new() };
    let (slow, ttl) = (Arc::new(slow), Duration::from_millis(300));
    let inner = Arc::clone(&slow);
    let locks = Client::builder().ttl(ttl).open(|_| Ok(Arc::new(Limited::new(inner, 1, "slow")))).unwrap();
    let other = Client::builder().open(|_| Ok(memory.clone())).unwrap();
    let guard = other.mutex("stock").unwrap().lock().await.unwrap();
    let first = ask(&locks, 1).pop().unwrap();
    eventually(SOON, "it waits at the engine", async || waiters(&memory).await == 1).await;
    let second = ask(&locks, 1).pop().unwrap();
    eventually(SOON, "the engine is asked for", async || slow.asked.load(Ordering::SeqCst)).await;
    first.abort();
    guard.release().await.unwrap();
    let guard = second.await.unwrap().unwrap();
    slow.answer.notify_one();
    let mut held = Ok(());
    all_along(ttl * 3, async || held = guard.ensure_held()).await;
    held?;
    guard.release().await?;
    locks.close().await;
    other.close().await;
    Ok(())
}
