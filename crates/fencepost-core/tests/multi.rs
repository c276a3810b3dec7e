//! Locks over several names, of one engine and of several: on memory and a manual clock.

mod manual_time;

use std::future::{Future, IntoFuture, pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use fencepost_core::{
    AnyLock, Client, Clock, ErrorKind, Eviction, Kind, Leave, Loss, Memory, MultiLock, Runtime, testing,
};

use manual_time::settle;

/// Two engines and their clock.
struct Stage {
    engines: [Arc<Memory>; 2],
    clock: Clock,
}

impl Stage {
    fn new() -> Stage {
        Stage { engines: [Memory::new(), Memory::new()], clock: Clock::manual() }
    }

    /// The clients of one process.
    fn clients(&self) -> [Client; 2] {
        self.engines
            .clone()
            .map(|engine| Client::builder().runtime(self.runtime()).open(|_| Ok(engine)).unwrap())
    }

    fn runtime(&self) -> Runtime {
        static CLIENTS: AtomicU64 = AtomicU64::new(0);
        manual_time::runtime(CLIENTS.fetch_add(1, Ordering::Relaxed), &self.clock)
    }

    async fn pass(&self, time: Duration) {
        manual_time::pass(&self.clock, time).await;
    }

    async fn assert_free(&self) {
        settle().await;
        for client in self.clients() {
            for name in ["a", "b"] {
                let claims = client.inspect(name).await.unwrap().claims;
                assert!(claims.is_empty(), "{name}: {claims:?}");
            }
        }
    }
}

/// Both names at both engines: `a` and `b` of the first, then those of the second.
fn all([one, two]: &[Client; 2]) -> MultiLock {
    let names = |client: &Client| client.multi(["b", "a"]).unwrap();
    MultiLock::across([("two", names(two)), ("one", names(one))]).unwrap()
}

async fn is_held(client: &Client, name: &str) -> bool {
    client.inspect(name).await.unwrap().holders().count() > 0
}

fn one_engine() -> Client {
    Client::builder().open(|_| Ok(Memory::new())).unwrap()
}

#[tokio::test]
async fn names_of_one_engine_are_all_or_none() {
    let locks = one_engine();
    let held = locks.mutex("b").unwrap().lock().await.unwrap();
    let multi = locks.multi(["c", "b", "a", "a"]).unwrap();
    assert_eq!(multi.names().len(), 3);
    assert!(multi.try_lock().await.unwrap().is_none());
    assert!(multi.lock().wait(Duration::from_millis(20)).await.unwrap_err().is_timeout());
    drop(locks.mutex("a").unwrap().try_lock().await.unwrap().expect("given back"));
    drop(held);
    let guard = multi.lock().await.unwrap();
    assert_eq!(guard.tokens().count(), 3);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn each_name_of_a_multi_lock_has_its_kind() {
    let locks = one_engine();
    let multi = locks.multi(["a", "b", "c"]).unwrap().kind(Kind::Write);
    let multi = multi.kind_of("a", Kind::Read).unwrap().kind_of("b", Kind::Permits { n: 1, of: 2 }).unwrap();
    let guard = multi.lock().await.unwrap();
    drop(locks.rwlock("a").unwrap().try_read().await.unwrap().expect("readers read together"));
    drop(locks.semaphore("b", 2).unwrap().try_acquire().await.unwrap().expect("a permit is left"));
    assert!(locks.rwlock("c").unwrap().try_read().await.unwrap().is_none());
    guard.release().await.unwrap();
    let error = locks.multi(["a"]).unwrap().kind_of("b", Kind::Read).unwrap_err();
    assert!(error.is_invalid() && error.resource() == Some("b"), "{error}");
}

#[tokio::test]
async fn opposite_orders_never_wait_in_a_circle() {
    let stage = Stage::new();
    let work = |reversed: bool| {
        let [one, two] = stage.clients();
        let mut parts = [("one", one.multi(["a", "b"]).unwrap()), ("two", two.multi(["a"]).unwrap())];
        if reversed {
            parts.reverse();
        }
        let set = MultiLock::across(parts).unwrap();
        async move {
            for _ in 0..50 {
                let guard = set.lock().await.unwrap();
                guard.ensure_held().unwrap();
                tokio::task::yield_now().await;
                guard.release().await.unwrap();
            }
        }
    };
    let all = async { tokio::join!(work(false), work(true), work(true)) };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("they wait for each other");
    stage.assert_free().await;
}

#[tokio::test]
async fn it_holds_nothing_behind_the_name_that_it_waits_for() {
    let stage = Stage::new();
    let ([one, two], clients) = (stage.clients(), stage.clients());
    // The second engine's `a` comes after both names of the first, and before its own `b`.
    let busy = two.mutex("a").unwrap().lock().await.unwrap();
    let set = all(&clients);
    let names: Vec<_> = set.names().iter().map(|name| name.as_str()).collect();
    assert_eq!(names, ["a", "b", "a", "b"]);
    let waiting = tokio::spawn(async move { set.lock().await });
    settle().await;
    assert!(is_held(&one, "a").await && is_held(&one, "b").await && !is_held(&two, "b").await);
    assert_eq!(two.inspect("a").await.unwrap().waiters().count(), 1);
    busy.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert_eq!(guard.tokens().count(), 4);
    assert!(is_held(&two, "b").await);
    guard.release().await.unwrap();
    stage.assert_free().await;
}

#[tokio::test]
async fn all_engines_share_one_waiting_time() {
    let stage = Stage::new();
    let ([one, two], clients) = (stage.clients(), stage.clients());
    let first = one.mutex("b").unwrap().lock().await.unwrap();
    let second = two.mutex("b").unwrap().lock().await.unwrap();
    let set = all(&clients);
    let waiting = tokio::spawn(async move { set.lock().wait(Duration::from_secs(5)).await });
    stage.pass(Duration::from_secs(3)).await;
    first.release().await.unwrap();
    stage.pass(Duration::from_millis(1_900)).await;
    assert!(!waiting.is_finished() && is_held(&one, "b").await);
    stage.pass(Duration::from_millis(100)).await;
    assert!(waiting.is_finished(), "the second engine began a time of its own");
    let error = waiting.await.unwrap().unwrap_err();
    assert!(error.is_timeout() && error.resource() == Some("b"), "{error}");
    second.release().await.unwrap();
    stage.assert_free().await;
}

#[tokio::test]
async fn all_or_none() {
    let stage = Stage::new();
    let ([_, two], clients) = (stage.clients(), stage.clients());
    let set = AnyLock::from(all(&clients));
    let busy = two.mutex("b").unwrap().lock().await.unwrap();
    assert!(set.try_lock().await.unwrap().is_none());
    busy.release().await.unwrap();
    stage.assert_free().await;
    let guard = set.try_lock().await.unwrap().expect("all are free");
    assert!(set.try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
    stage.assert_free().await;
}

#[tokio::test]
async fn the_loss_of_one_is_the_loss_of_all() {
    let stage = Stage::new();
    let ([_, two], clients) = (stage.clients(), stage.clients());
    let set = all(&clients);
    let work = set.lock().run(|held| {
        let two = &two;
        async move {
            // The last one: the second engine's `b`.
            two.evict("b", held[3].token(), &Eviction::default()).await.unwrap();
            pending::<()>().await;
        }
    });
    let error = work.await.unwrap_err();
    assert_eq!((error.loss(), error.resource()), (Some(Loss::Evicted), Some("b")), "{error}");
    stage.assert_free().await;
    let guard = set.lock().await.unwrap();
    two.evict("a", guard.guards()[2].token(), &Eviction::default()).await.unwrap();
    let (name, why) = guard.lost().await;
    assert_eq!((name.as_str(), why), ("a", Loss::Evicted));
    assert!(guard.ensure_held().unwrap_err().is_lost() && guard.remaining().is_zero());
    assert!(guard.release().await.unwrap_err().is_lost());
    stage.assert_free().await;
}

#[tokio::test]
async fn dropped_at_any_await_it_leaves_nothing() {
    let stage = Stage::new();
    let (others, clients) = (stage.clients(), stage.clients());
    let set = all(&clients);
    for polls in 0.. {
        let busy = [
            others[0].mutex("b").unwrap().lock().await.unwrap(),
            others[1].mutex("a").unwrap().lock().await.unwrap(),
        ];
        let mut busy = busy.into_iter();
        let mut request = Box::pin(set.lock().into_future());
        let mut done = false;
        for _ in 0..polls {
            done = poll_fn(|cx| Poll::Ready(request.as_mut().poll(cx).is_ready())).await;
            settle().await;
            drop(busy.next());
            settle().await;
        }
        drop((request, busy));
        stage.assert_free().await;
        if done {
            assert!(polls > 2, "it waited for two names");
            return;
        }
    }
}

#[tokio::test]
async fn what_cannot_be_ordered_is_refused() {
    let stage = Stage::new();
    let ([one, two], [again, _]) = (stage.clients(), stage.clients());
    let names = |client: &Client| client.multi(["a"]).unwrap();
    let refused = |parts: Vec<(&str, MultiLock)>, says: &str| {
        let error = MultiLock::across(parts).unwrap_err();
        assert!(error.is_invalid() && error.to_string().contains(says), "{error}");
    };
    refused(vec![], "at least one name");
    refused(vec![("x", names(&one)), ("x", names(&two))], "give each engine one key");
    refused(vec![("x", names(&one)), ("y", names(&one))], "give each engine one key");
    refused(vec![("x", names(&one)), ("x", names(&again))], "all its names from one client");
    refused(vec![("x", all(&[one.clone(), two.clone()]))], "give each engine one key");
    refused(vec![("x", names(&one)), ("x", names(&one).kind(Kind::Read))], "different kinds");
    let more = one.multi(["a", "b"]).unwrap();
    let set = MultiLock::across([("x", names(&one)), ("x", more), ("y", names(&two))]).unwrap();
    assert_eq!(set.names().len(), 3, "a double is dropped");
    let guard = set.kind_of("a", Kind::Read).unwrap().lock().await.unwrap();
    for client in [&one, &two] {
        drop(client.rwlock("a").unwrap().try_read().await.unwrap().expect("readers read together"));
    }
    assert!(one.rwlock("b").unwrap().try_read().await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn each_client_keeps_its_own_lease() {
    let stage = Stage::new();
    let [one, _] = stage.clients();
    let engine = Arc::clone(&stage.engines[1]);
    let builder = Client::builder().runtime(stage.runtime()).ttl(Duration::from_secs(9));
    let two = builder.open(|_| Ok(engine)).unwrap();
    let guard = all(&[one, two]).lock().await.unwrap();
    let lasts: Vec<_> =
        guard.guards().iter().map(|guard| guard.remaining() > Duration::from_secs(9)).collect();
    assert_eq!(lasts, [true, true, false, false]);
    stage.pass(Duration::from_secs(60)).await;
    guard.ensure_held().unwrap();
    guard.release().await.unwrap();
}

/// The first round does not end the call: a single lock waits for such an engine, too.
#[tokio::test]
async fn an_engine_that_fails_in_the_first_round_is_waited_for() {
    let (locks, clock, engine) = testing::client();
    let other = engine.other();
    engine.fail("b", ErrorKind::Unreachable);
    let set = locks.multi(["a", "b", "c"]).unwrap();
    let mut request = pin!(set.lock().into_future());
    let advance = clock.advance(Duration::from_secs(2));
    tokio::select! {
        biased;
        answer = &mut request => panic!("the engine may come back: {answer:?}"),
        () = advance => {}
    }
    assert!(is_held(&other, "a").await && !is_held(&other, "c").await);
    engine.heal("b");
    let (guard, ()) = tokio::join!(request, clock.advance(Duration::from_secs(2)));
    guard.unwrap().release().await.unwrap();
}

/// A part of a set is no use to anybody, so nothing is kept for the least time.
#[tokio::test]
async fn a_set_that_is_not_granted_is_kept_for_no_least_time() {
    let least = Duration::from_secs(60);
    for (busy, free) in [("a", "b"), ("b", "a")] {
        for dropped in [false, true] {
            let (locks, clock, engine) = testing::client();
            let (other, held) = (engine.other(), engine.busy(busy).await.unwrap());
            let set = locks.multi(["a", "b"]).unwrap();
            let again = set.clone();
            let request = set.lock().at_least(least).wait(Duration::from_secs(5));
            let mut request = Box::pin(request.into_future());
            tokio::select! {
                biased;
                answer = &mut request => panic!("it waits: {answer:?}"),
                () = clock.advance(Duration::from_secs(1)) => {}
            }
            assert_eq!(is_held(&other, free).await, free == "a", "nothing behind the busy name is held");
            if dropped {
                drop(request);
            } else {
                let (answer, ()) = tokio::join!(request, clock.advance(Duration::from_secs(5)));
                assert!(answer.unwrap_err().is_timeout());
            }
            clock.advance(Duration::from_secs(1)).await;
            assert!(!is_held(&other, free).await, "after a busy {busy}");
            held.release().await.unwrap();
            again.lock().at_least(least).await.unwrap().release().await.unwrap();
            clock.advance(least / 2).await;
            assert!(is_held(&other, "a").await && is_held(&other, "b").await);
            clock.advance(least).await;
            assert!(!is_held(&other, "a").await && !is_held(&other, "b").await);
        }
    }
}

#[tokio::test]
async fn a_set_that_is_not_granted_is_no_run() {
    let (locks, clock, engine) = testing::client();
    let builder = Client::builder().runtime(locks.runtime().clone()).history(Duration::from_secs(3600));
    let locks = builder.open(|_| Ok(engine.backend())).unwrap();
    let held = engine.busy("b").await.unwrap();
    let set = locks.multi(["a", "b"]).unwrap();
    let request = set.lock().wait(Duration::from_secs(1)).into_future();
    let (answer, ()) = tokio::join!(request, clock.advance(Duration::from_secs(2)));
    assert!(answer.unwrap_err().is_timeout());
    let last = async || locks.inspect("a").await.unwrap().runs.and_then(|runs| runs.last);
    assert_eq!(last().await, None);
    held.release().await.unwrap();
    set.lock().await.unwrap().release().await.unwrap();
    assert!(last().await.is_some());
}

/// Others may have taken the grant up by the id of its claim, so the end of its least time does not end it either.
#[tokio::test]
async fn a_grant_that_stays_after_its_drop_stays_after_its_least_time() {
    let (locks, clock, engine) = testing::client();
    let other = engine.other();
    let (least, ttl) = (Duration::from_secs(5), Duration::from_secs(30));
    for stays in [false, true] {
        let lock = locks.mutex("a").unwrap();
        let mut guard = lock.lock().ttl(ttl).no_renewal().at_least(least).await.unwrap();
        guard.set_on_drop(if stays { None } else { Some(Leave::Release) });
        drop(guard);
        clock.advance(least * 2).await;
        assert_eq!(is_held(&other, "a").await, stays, "after the least time");
        clock.advance(ttl).await;
        assert!(!is_held(&other, "a").await, "after its lease");
    }
}
