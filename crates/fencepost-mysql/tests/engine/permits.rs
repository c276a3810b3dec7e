//! Permits of a semaphore, which are locks of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use fencepost_core::{Client, Eviction, Guard, Loss, Mode, Page};
use fencepost_testkit::needs;
use fencepost_testkit::sql::MariaDb;
use fencepost_testkit::wait::eventually;

use crate::{SOON, connect, connect_patient, locks};

async fn try_take(client: &Client, n: u32, of: u32) -> Option<Guard> {
    let semaphore = client.semaphore("pool", of).expect("a good name");
    semaphore.try_acquire_many(n).await.expect("busy is no error")
}

async fn take(client: &Client, n: u32, of: u32) -> Guard {
    try_take(client, n, of).await.expect("they are free")
}

/// A claim gets all permits or none. One that gives another number of permits is checked against its own.
#[tokio::test]
async fn permits_are_counted_across_clients() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    // 4,096 locks are released at once, which takes a busy server long.
    let url = format!("{}?timeout=20s", server.url());
    let (one, two) = (connect_patient(&url).await, connect_patient(&url).await);
    let first = take(&one, 2, 5).await;
    let second = take(&two, 2, 5).await;
    assert!(second.token() > first.token());
    for client in [&one, &two] {
        assert!(try_take(client, 2, 5).await.is_none());
        assert_eq!(locks(&server), "4", "a claim that failed left something");
        assert!(try_take(client, 1, 4).await.is_none(), "four are held");
        take(client, 3, 7).await.release().await.expect("it was held");
    }
    // The rows of permits are only seen by those who count: the locks exclude without them.
    server.run("DELETE FROM fencepost_token").expect("deleted");
    assert!(try_take(&two, 2, 5).await.is_none());
    let third = take(&two, 1, 5).await;
    assert!(third.token() > second.token());
    for guard in [first, second, third] {
        guard.release().await.expect("it was held");
    }
    let all = take(&one, 4096, 4096).await;
    assert!(try_take(&two, 1, 4096).await.is_none());
    all.release().await.expect("it was held");
    assert_eq!(locks(&server), "0");
    let error = one.semaphore("pool", 4097).expect("a good name").acquire().await.expect_err("too many");
    assert!(error.is_invalid(), "{error}");
    one.close().await;
    two.close().await;
}

/// An exclusive holder of a name and holders of its permits exclude each other, and wait for each other.
#[tokio::test]
async fn permits_and_exclusive_holders_exclude_each_other() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    let (one, two) = (connect(&server.url()).await, connect(&server.url()).await);
    for (holder, other) in [(&one, &two), (&one, &one)] {
        let (mutex, semaphore) =
            (other.mutex("pool").expect("good"), other.semaphore("pool", 3).expect("good"));
        let permits = take(holder, 2, 3).await;
        assert!(mutex.try_lock().await.expect("busy is no error").is_none());
        let error = mutex.lock().wait(Duration::from_millis(300)).await.expect_err("permits are held");
        assert!(error.is_timeout(), "{error}");
        let (exclusive, released) = tokio::join!(mutex.lock().wait(SOON).into_future(), permits.release());
        released.expect("it was held");
        let exclusive = exclusive.expect("all permits are free");
        assert_eq!(locks(&server), "1");
        assert!(try_take(holder, 1, 3).await.is_none());
        let (permits, released) =
            tokio::join!(semaphore.acquire_many(3).wait(SOON).into_future(), exclusive.release());
        released.expect("it was held");
        permits.expect("they are free").release().await.expect("it was held");
        assert_eq!(locks(&server), "0");
    }
    one.close().await;
    two.close().await;
}

/// Operators see each claim once, with its permits, and evict it.
#[tokio::test]
async fn operators_see_and_evict_holders_of_permits() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    let (holder, operator) = (connect(&server.url()).await, connect(&server.url()).await);
    let ttl = Duration::from_secs(2);
    let semaphore = holder.semaphore("pool", 4).expect("a good name");
    let pair = semaphore.acquire_many(2).ttl(ttl).await.expect("they are free");
    let single = take(&holder, 1, 4).await;
    let other = holder.mutex("mutex").expect("a good name").lock().await.expect("it is free");
    let info = operator.inspect("pool").await.expect("the engine can look");
    let mut modes: Vec<_> =
        info.holders().map(|claim| (claim.token.expect("it holds"), claim.mode)).collect();
    modes.sort_by_key(|(token, _)| *token);
    let expected =
        [(pair.token(), Mode::Permits { n: 2, of: 4 }), (single.token(), Mode::Permits { n: 1, of: 4 })];
    assert_eq!(modes, expected);
    let listing = operator.list("", &Page::default()).await.expect("the engine can look");
    let listed: Vec<_> =
        listing.resources.iter().map(|info| (info.name.as_str(), info.holders().count())).collect();
    assert_eq!(listed, [("mutex", 1), ("pool", 2)]);
    operator.evict("pool", pair.token(), &Eviction::new(false)).await.expect("it is held");
    let lost = tokio::time::timeout(SOON, pair.lost()).await.expect("it is told");
    assert_eq!(lost, Loss::Evicted);
    single.ensure_held().expect("the other claim is not evicted");
    eventually(SOON, "its permits are free after its lease", || async { locks(&server) == "2" }).await;
    operator.evict("pool", single.token(), &Eviction::new(true)).await.expect("it is held");
    let lost = tokio::time::timeout(SOON, single.lost()).await.expect("it is told");
    assert_eq!(lost, Loss::SessionEnded);
    tokio::time::timeout(SOON, other.lost()).await.expect("its session has ended");
    assert_eq!(locks(&server), "0");
    holder.close().await;
    operator.close().await;
}

/// Claims of several clients that come at once never hold too many permits, and none is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_are_never_exceeded() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    let (held, mut tasks) = (Arc::new(AtomicU32::new(0)), Vec::new());
    for number in 0..9_u32 {
        let client = connect(&server.url()).await;
        let held = Arc::clone(&held);
        tasks.push(tokio::spawn(async move {
            let semaphore = client.semaphore("pool", 4).expect("a good name");
            for round in 0..10 {
                let n = 1 + (number + round) % 3;
                let guard = semaphore.acquire_many(n).wait(SOON).await.expect("it comes");
                assert!(held.fetch_add(n, SeqCst) + n <= 4, "too many permits are held");
                tokio::task::yield_now().await;
                held.fetch_sub(n, SeqCst);
                match round % 2 {
                    0 => guard.release().await.expect("it was held"),
                    _ => drop(guard),
                }
            }
            client.close().await;
        }));
    }
    for task in tasks {
        task.await.expect("no task panics");
    }
    assert_eq!(locks(&server), "0");
}

/// The statements of a claim for permits use variables of the session, which all claims of a client share, on all threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn claims_for_permits_of_several_names_do_not_mix() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    let client = connect_patient(&server.url()).await;
    let holders: Arc<[AtomicU32; 8]> = Arc::default();
    let tasks: Vec<_> = (0..32)
        .map(|task| {
            let (client, holders, name) = (client.clone(), Arc::clone(&holders), task % 8);
            tokio::spawn(async move {
                let semaphore = client.semaphore(&format!("pool {name}"), 1).expect("a good name");
                for _ in 0..100 {
                    let Some(guard) = semaphore.try_acquire().await.expect("busy is no error") else {
                        continue;
                    };
                    assert_eq!(holders[name].fetch_add(1, SeqCst), 0, "another claim holds the only permit");
                    tokio::task::yield_now().await;
                    holders[name].fetch_sub(1, SeqCst);
                    guard.release().await.expect("it was held");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no claim had a permit of another");
    }
    assert_eq!(locks(&server), "0");
    client.close().await;
}
