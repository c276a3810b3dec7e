//! The engine through the client, in one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::{Database, SOON, connect, eventually};
use fencepost_core::{Client, DetachedLease, Firing, Page, Registry, State};

const NAME: &str = "stock/42";

#[tokio::test]
async fn two_clients_exclude_each_other() {
    let database = Database::new();
    let (one, other) = (database.locks().await, database.locks().await);
    let guard = one.mutex(NAME).unwrap().lock().await.unwrap();
    assert_eq!(guard.state(), State::Held);
    assert!(other.mutex(NAME).unwrap().try_lock().await.unwrap().is_none());
    let error = other.mutex(NAME).unwrap().lock().wait(Duration::from_millis(50)).await.unwrap_err();
    assert!(error.is_timeout() && error.holders().len() == 1, "{error}");
    let first = guard.token();
    guard.release().await.unwrap();
    let guard = other.mutex(NAME).unwrap().lock().wait(SOON).await.unwrap();
    assert!(guard.token() > first);
}

#[tokio::test]
async fn a_thousand_tasks_take_turns_in_the_order_of_their_arrival() {
    let database = Database::new();
    let locks = database.locks().await;
    let guard = locks.mutex(NAME).unwrap().lock().await.unwrap();
    let turn = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for n in 0..1_000 {
        let lock = locks.mutex(NAME).unwrap();
        let turn = Arc::clone(&turn);
        let (joined, arrived) = std::sync::mpsc::channel();
        tasks.push(tokio::spawn(async move {
            let mut waiting = std::pin::pin!(async { lock.lock().wait(SOON * 3).await });
            // The first poll puts it in the queue.
            std::future::poll_fn(|cx| {
                let first = waiting.as_mut().poll(cx);
                assert!(first.is_pending());
                std::task::Poll::Ready(())
            })
            .await;
            joined.send(()).unwrap();
            let guard = waiting.await.unwrap();
            assert_eq!(turn.fetch_add(1, Ordering::SeqCst), n);
            guard.release().await.unwrap();
        }));
        while arrived.try_recv().is_err() {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(database.claims(), 1_001);
    guard.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(database.claims(), 0);
}

#[tokio::test]
async fn dropped_waiters_and_guards_leave_nothing() {
    let database = Database::new();
    let locks = database.locks().await;
    let guard = locks.mutex(NAME).unwrap().lock().await.unwrap();
    for _ in 0..10 {
        let lock = locks.mutex(NAME).unwrap();
        let waited = tokio::time::timeout(Duration::from_millis(5), async { lock.lock().await }).await;
        assert!(waited.is_err());
    }
    drop(guard);
    assert_eq!(database.claims(), 0);
}

#[tokio::test]
async fn a_removed_side_file_is_made_again_by_the_next_renewal() {
    let database = Database::new();
    let (one, other) = (database.locks().await, database.locks().await);
    let mut guard = one.mutex(NAME).unwrap().lock().ttl(SOON).await.unwrap();
    let folder = database.folder().join("locks.db-fencepost");
    for name in database.sides().iter().filter(|name| name.len() == 32) {
        std::fs::remove_file(folder.join(name)).unwrap();
    }
    assert!(other.mutex(NAME).unwrap().try_lock().await.unwrap().is_none(), "unknown is not dead");
    // An extension is a renewal that comes now.
    guard.extend(SOON).await.unwrap();
    assert!(other.mutex(NAME).unwrap().try_lock().await.unwrap().is_none());
    assert_eq!(database.sides().iter().filter(|name| name.len() == 32).count(), 2);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_release_rings_for_the_next_client() {
    let database = Database::new();
    let (one, other) = (database.locks().await, database.locks().await);
    let mut guard = one.mutex(NAME).unwrap().lock().await.unwrap();
    let mut handoffs = Vec::new();
    for n in 0..8 {
        let next = if n % 2 == 0 { &other } else { &one };
        let waiting = tokio::spawn({
            let lock = next.mutex(NAME).unwrap();
            async move { lock.lock().wait(SOON).await.unwrap() }
        });
        eventually("it waits in the queue", async || database.claims() >= 2).await;
        let released = Instant::now();
        guard.release().await.unwrap();
        guard = waiting.await.unwrap();
        handoffs.push(released.elapsed());
    }
    // The poll alone takes a second for each. A machine that stalls makes some of them slow.
    handoffs.sort_unstable();
    assert!(handoffs[3] < Duration::from_millis(500), "{handoffs:?}");
}

#[tokio::test]
async fn an_extended_lease_is_as_long_in_the_eyes_of_others() {
    let database = Database::new();
    let locks = database.locks().await;
    let mut guard = locks.mutex(NAME).unwrap().lock().ttl(SOON).await.unwrap();
    let left = |info: fencepost_core::Info| info.holders().next().unwrap().expires_in.unwrap();
    assert!(left(locks.inspect(NAME).await.unwrap()) <= SOON);
    guard.extend(3 * SOON).await.unwrap();
    let seen = left(locks.inspect(NAME).await.unwrap());
    assert!(seen > guard.remaining() && seen > 2 * SOON, "{seen:?}");
    // Shorter again: a reader that saw the longer lease is still right.
    guard.extend(SOON).await.unwrap();
    let seen = left(locks.inspect(NAME).await.unwrap());
    assert!(seen > guard.remaining(), "{seen:?}");
}

#[tokio::test]
async fn a_fixed_lease_ends_and_is_extended_by_hand() {
    let database = Database::new();
    let (one, other) = (database.locks().await, database.locks().await);
    let lease = Duration::from_millis(400);
    let guard = loop {
        let start = Instant::now();
        let mut guard = one.mutex(NAME).unwrap().lock().ttl(lease).no_renewal().await.unwrap();
        // On a machine that stalls the lease may end before.
        if guard.extend(lease * 2).await.is_ok() && guard.remaining() > lease {
            break guard;
        }
        assert!(start.elapsed() >= lease / 2, "{:?} are left", guard.remaining());
    };
    let next = other.mutex(NAME).unwrap().lock().wait(SOON).await.unwrap();
    assert!(guard.ensure_held().is_err());
    assert!(guard.release().await.unwrap_err().is_lost());
    next.ensure_held().unwrap();
}

#[tokio::test]
async fn a_detached_lease_goes_from_client_to_client() {
    let database = Database::new();
    let locks = database.locks().await;
    let guard = locks.mutex(NAME).unwrap().lock().await.unwrap();
    let token = guard.token();
    let secret = guard.detach().await.unwrap().to_secret();
    locks.close().await;
    assert_eq!(database.sides(), Vec::<String>::new(), "the lease needs no process");

    let locks = database.locks().await;
    let lease: DetachedLease = secret.parse().unwrap();
    assert!(locks.mutex(NAME).unwrap().try_lock().await.unwrap().is_none());
    let info = locks.inspect(NAME).await.unwrap();
    assert!(info.holders().all(|claim| claim.detached && claim.token == Some(token)));
    let lease = locks.extend(&lease, Duration::from_secs(60)).await.unwrap();
    let guard = locks.attach(&lease).await.unwrap();
    assert_eq!(guard.token(), token);
    let lease = guard.detach().await.unwrap();
    locks.release(&lease).await.unwrap();
    assert!(locks.release(&lease).await.unwrap_err().is_lost());
    assert!(locks.attach(&lease).await.unwrap_err().is_lost());
    assert!(locks.mutex(NAME).unwrap().try_lock().await.unwrap().is_some());
}

#[tokio::test]
async fn a_detached_lease_that_nobody_extends_ends() {
    let database = Database::new();
    let locks = database.locks().await;
    let lease = loop {
        let guard = locks.mutex(NAME).unwrap().lock().ttl(Duration::from_millis(300)).await.unwrap();
        match guard.detach().await {
            Ok(lease) => break lease,
            // On a machine that stalls the lease may end before.
            Err(error) => assert!(error.is_lost(), "{error}"),
        }
    };
    let next = locks.mutex(NAME).unwrap().lock().wait(SOON).await.unwrap();
    assert!(locks.extend(&lease, Duration::from_secs(1)).await.unwrap_err().is_lost());
    next.release().await.unwrap();
}

#[tokio::test]
async fn listings_are_paged_and_sorted() {
    let database = Database::new();
    let locks = database.locks().await;
    let mut guards = Vec::new();
    for name in ["b/2", "a", "b/1", "b", "bb", "c"] {
        guards.push(locks.mutex(name).unwrap().lock().await.unwrap());
    }
    drop(locks.mutex("b/0").unwrap().lock().await.unwrap());
    let mut page = Page::of(2);
    let mut seen = Vec::new();
    loop {
        let listing = locks.list("b", &page).await.unwrap();
        assert!(listing.resources.len() <= 2);
        seen.extend(listing.resources.iter().map(|info| info.name.to_string()));
        match listing.next {
            Some(next) => page.after = Some(next),
            None => break,
        }
    }
    assert_eq!(seen, ["b", "b/1", "b/2", "bb"]);
    // A client that only inspects leaves no file.
    let onlooker = connect(&database.url()).await;
    let before = database.sides().len();
    assert_eq!(onlooker.list("", &Page::default()).await.unwrap().resources.len(), 6);
    assert_eq!(database.sides().len(), before);
}

#[tokio::test]
async fn a_database_that_was_removed_confirms_nothing_any_more() {
    let database = Database::new();
    let locks = database.locks().await;
    let guard = locks.mutex(NAME).unwrap().lock().ttl(Duration::from_secs(2)).await.unwrap();
    std::fs::remove_file(database.path()).unwrap();
    guard.lost().await;
    let error = locks.mutex(NAME).unwrap().try_lock().await.unwrap_err();
    assert!(error.is_configuration() && error.to_string().contains("removed or replaced"), "{error}");
}

/// The record of its run never decides about a lock. A firing rests on it.
#[tokio::test]
async fn a_run_that_cannot_be_recorded_costs_a_firing_and_no_lock() {
    let database = Database::new();
    let day = Duration::from_secs(86_400);
    let registry = Registry::new().with("sqlite", fencepost_sqlite::open);
    let locks = Client::builder().history(day).connect(&registry, &database.url()).await.unwrap();
    locks.mutex(NAME).unwrap().lock().await.unwrap().release().await.unwrap();
    database
        .maintain("CREATE TRIGGER full BEFORE INSERT ON record BEGIN SELECT RAISE(ABORT, 'no room'); END");
    let guard = locks.mutex(NAME).unwrap().lock().wait(SOON).await.expect("it is free");
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.mutex(NAME)?.lock().wait(SOON).await }
    });
    eventually("it waits", async || locks.inspect(NAME).await.unwrap().waiters().count() == 1).await;
    guard.report(0);
    guard.release().await.expect("it was held");
    waiting.await.unwrap().expect("it is its turn").release().await.expect("it was held");
    let once = locks.once("job", day).unwrap();
    let error = once.try_begin().await.expect_err("there is no room for its record");
    let said = format!("{error} {:?}", std::error::Error::source(&error).map(ToString::to_string));
    assert!(said.contains("no room"), "the error says why: {said}");
    // It has left no lock.
    drop(locks.mutex("job").unwrap().try_lock().await.unwrap().expect("it is free"));
    database.maintain("DROP TRIGGER full");
    let Firing::First(guard) = once.begin().wait(SOON).await.unwrap() else { panic!("it has not run") };
    guard.report(0);
    // Its work is done, so its end is no reason to keep the lock.
    database
        .maintain("CREATE TRIGGER full BEFORE INSERT ON record BEGIN SELECT RAISE(ABORT, 'no room'); END");
    guard.release().await.expect("it was held");
}
