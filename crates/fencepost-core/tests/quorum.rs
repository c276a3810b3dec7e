//! A quorum of engines in memory: who waits is woken by a release, once.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use fencepost_core::{
    Aid, Attempt, Backend, Claim, ClaimId, Entry, Eviction, Holder, Locks, Memory, Mode, Moment, Name,
    Quorum, Want,
};

fn nodes(count: usize) -> Vec<Arc<dyn Backend>> {
    (0..count).map(|_| Memory::new() as Arc<dyn Backend>).collect()
}

fn client(nodes: &[Arc<dyn Backend>]) -> (Locks, Arc<dyn Backend>, Aid) {
    let mut given = None;
    let open = |aid: &Aid| {
        let quorum = Arc::new(Quorum::new("quorum", nodes.to_vec(), aid.clock().clone())?);
        given = Some((Arc::clone(&quorum) as Arc<dyn Backend>, aid.clone()));
        Ok(quorum as Arc<dyn Backend>)
    };
    let locks = Locks::builder().open(open).unwrap();
    let (quorum, aid) = given.expect("it was opened");
    (locks, quorum, aid)
}

#[tokio::test]
async fn a_release_wakes_the_oldest_at_once() {
    let nodes = nodes(5);
    let clients = [client(&nodes).0, client(&nodes).0];
    let mutex = |turn: usize| clients[turn % 2].mutex("lock").unwrap();
    let start = Instant::now();
    let mut guard = mutex(0).lock().await.unwrap();
    for turn in 1..=40 {
        let next = mutex(turn);
        let waiting = tokio::spawn(async move { next.lock().wait(Duration::from_secs(20)).await.unwrap() });
        while clients[0].inspect("lock").await.unwrap().waiters().count() == 0 {
            tokio::task::yield_now().await;
        }
        guard.release().await.unwrap();
        guard = waiting.await.unwrap();
    }
    // One who is not woken asks again after a second.
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}: they were not woken", start.elapsed());
    guard.release().await.unwrap();
}

/// A hint of a node that the next round leaves out stays unheeded there: taken for a new one each time, the wait never waits.
#[tokio::test]
async fn a_hint_wakes_once() {
    let (locks, quorum, aid) = client(&nodes(3));
    let enter = |id| {
        let want = Want { name: Name::new("lock").unwrap(), mode: Mode::Exclusive };
        let holder = Holder::labelled("test");
        quorum.enter(Arc::new(Claim::new(
            ClaimId::from_u128(id),
            want,
            Duration::from_secs(9),
            holder,
            aid.clone(),
        )))
    };
    let polled =
        |entry: &mut dyn Entry| entry.poll_wait(&mut Context::from_waker(Waker::noop()), Moment::NEVER);
    let (mut first, mut second, mut third) = (enter(1), enter(2), enter(3));
    assert!(matches!(first.attempt().await, Ok(Attempt::Granted(_))));
    assert!(matches!(second.attempt().await, Ok(Attempt::Blocked { .. })));
    assert_eq!(polled(&mut *second), Poll::Pending);
    first.release().await.unwrap();
    assert!(matches!(third.attempt().await, Ok(Attempt::Granted(_))));
    assert_eq!(polled(&mut *second), Poll::Ready(()), "it was free for a moment");
    assert!(matches!(second.attempt().await, Ok(Attempt::Blocked { .. })));
    assert_eq!(polled(&mut *second), Poll::Pending, "it asked, and nothing has happened since");
    third.release().await.unwrap();
    assert_eq!(polled(&mut *second), Poll::Ready(()));
    assert!(matches!(second.attempt().await, Ok(Attempt::Granted(_))));
    second.release().await.unwrap();
    locks.close().await;
}

/// A holder that hears of its eviction from the first node leaves the others before they are asked.
#[tokio::test]
async fn an_eviction_that_the_holder_heeds_early_is_one() {
    let nodes = nodes(5);
    let (locks, quorum, _) = client(&nodes);
    let name = Name::new("lock").unwrap();
    let guard = locks.mutex("lock").unwrap().lock().await.unwrap();
    let how = Eviction { now: true, reason: None };
    for node in &nodes[..3] {
        node.evict(&name, guard.token(), &how).await.unwrap();
    }
    quorum.evict(&name, guard.token(), &how).await.unwrap();
    assert!(
        quorum.evict(&name, guard.token(), &how).await.unwrap_err().is_mismatch(),
        "nobody has it any more"
    );
    drop(guard);
    locks.close().await;
}
