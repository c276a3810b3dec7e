//! Grants that count only when replicas have them.

use crate::kit::{LONG, SOON, TRIES, Waiting, connect, eventually, granted, line_of, lock, registry, within};
use fencepost_core::{Client, Effect, Error, Guard, Page, Registry, Result, Tokens};
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis, Sentinel};
use std::cell::Cell;
use std::time::Duration;

/// A client with the usual limit of a request, a quarter of which it waits for replicas: for replicas that will not answer.
async fn connect_hasty(sentinel: &Sentinel, ttl: Duration) -> Client {
    connect(&format!("{}?timeout=2s", sentinel.url()), ttl).await
}

async fn ask(locks: &Client, replicas: u32) -> Result<Guard> {
    within(SOON, locks.mutex("lock").unwrap().lock().replicas(replicas)).await
}

/// Has `two` wait for a lock that counts with a replica; returns when it waits in the queue.
async fn wait(one: &Client, two: &Client) -> Waiting {
    let two = two.clone();
    let waiting = tokio::spawn(async move { two.mutex("lock")?.lock().replicas(1).await });
    line_of(one, "lock", 1).await;
    waiting
}

fn assert_short(error: &Error, copies: &str) {
    assert!(error.is_unreachable() && !error.is_transient(), "{error}");
    assert!(error.to_string().contains(copies), "{error}");
}

/// Fails unless nobody has the lock, and its next token is greater than that of a grant that did not count.
async fn assert_given_back(locks: &Client) {
    let info = locks.inspect("lock").await.unwrap();
    assert!(info.claims.is_empty(), "{info:?}");
    let burnt = info.last_token.expect("it was granted");
    let guard = locks.mutex("lock").unwrap().try_lock().await.unwrap().expect("it is free");
    assert!(guard.token() > burnt);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_the_replica_has_outlives_the_master() {
    needs!(REDIS);
    let mut sentinel = Sentinel::start(1, &Config::new()).unwrap();
    let (one, two) = (connect(&sentinel.url(), LONG).await, connect(&sentinel.url(), LONG).await);
    let guard = ask(&one, 1).await.expect("there is a replica");
    sentinel.fail_over().unwrap();
    let info = within(SOON + SOON, two.inspect("lock")).await.unwrap();
    let held: Vec<_> = info.holders().map(|holder| holder.token).collect();
    assert_eq!(held, [Some(guard.token())], "the new master knows of the grant");
    guard.ensure_held().unwrap();
    within(SOON + SOON, guard.release()).await.expect("it was still held");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_too_few_replicas_have_is_given_back() {
    needs!(REDIS);
    let sentinel = Sentinel::start(1, &Config::new()).unwrap();
    let locks = connect_hasty(&sentinel, LONG).await;
    for tries in 1.. {
        let error = ask(&locks, 2).await.expect_err("there is only one replica");
        assert_given_back(&locks).await;
        // On a busy machine the one that is there may be late, too.
        if tries == TRIES || error.to_string().contains("1 of the 2 replicas") {
            assert_short(&error, "1 of the 2 replicas");
            break;
        }
    }
    sentinel.cut_replica().unwrap();
    assert_short(&ask(&locks, 1).await.expect_err("it has no replica any more"), "0 of the 1 replicas");
    assert_given_back(&locks).await;
    let mutex = locks.mutex("lock").unwrap();
    assert_short(&mutex.try_lock().replicas(1).await.expect_err("nor has it for this"), "0 of the 1");
    assert_given_back(&locks).await;
    lock(&locks, "lock").await.release().await.expect("others do not mind");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_is_handed_over_waits_for_replicas_too() {
    needs!(REDIS);
    let sentinel = Sentinel::start(1, &Config::new()).unwrap();
    let (one, two) = (connect(&sentinel.url(), LONG).await, connect(&sentinel.url(), LONG).await);
    let first = lock(&one, "lock").await;
    let waiting = wait(&one, &two).await;
    let token = first.token();
    first.release().await.unwrap();
    let second = granted(waiting, SOON).await;
    assert!(second.token() > token && second.remaining() > LONG / 2, "it is confirmed for all its lease");
    second.release().await.unwrap();
    let first = lock(&one, "lock").await;
    let two = connect_hasty(&sentinel, LONG).await;
    let waiting = wait(&one, &two).await;
    sentinel.cut_replica().unwrap();
    first.release().await.unwrap();
    let answer = within(SOON, waiting).await.expect("it does not panic");
    assert_short(&answer.expect_err("the replica has not got it"), "0 of the 1 replicas");
    assert_given_back(&one).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_dropped_while_he_waits_for_replicas_leaves_nothing() {
    needs!(REDIS);
    let sentinel = Sentinel::start(1, &Config::new()).unwrap();
    let locks = connect_hasty(&sentinel, LONG).await;
    let look = connect(&sentinel.url(), LONG).await;
    sentinel.cut_replica().unwrap();
    for _ in 0..TRIES {
        let asking = tokio::spawn({
            let locks = locks.clone();
            async move { ask(&locks, 1).await }
        });
        let is_granted = Cell::new(false);
        eventually("the server has granted it", async || {
            is_granted.set(look.inspect("lock").await.is_ok_and(|info| info.holders().count() == 1));
            is_granted.get() || asking.is_finished()
        })
        .await;
        asking.abort();
        eventually("it is taken back", async || {
            look.inspect("lock").await.is_ok_and(|info| info.claims.is_empty())
        })
        .await;
        assert_given_back(&look).await;
        if is_granted.get() {
            return;
        }
    }
    panic!("the grant was not seen in {TRIES} tries");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_no_replica_has_is_none() {
    needs!(REDIS);
    for _ in 0..TRIES {
        if try_to_renew_without_replicas().await {
            return;
        }
    }
    panic!("a lease of three seconds ended, or a server was late, in each of {TRIES} tries");
}

/// Returns whether the leases lasted for as long as they should, for which a busy machine may be too slow.
async fn try_to_renew_without_replicas() -> bool {
    let sentinel = Sentinel::start(1, &Config::new()).unwrap();
    let ttl = Duration::from_secs(3);
    let locks = connect_hasty(&sentinel, ttl).await;
    // A replica has half a second for its answer.
    let Ok(mut guard) = ask(&locks, 1).await else { return false };
    let other = lock(&locks, "another").await;
    let first = guard.valid_until();
    eventually("it is renewed", async || guard.valid_until() > first || guard.ensure_held().is_err()).await;
    sentinel.cut_replica().unwrap();
    let error = guard.extend(LONG).await.expect_err("the replica does not hear of it");
    // It stands as before.
    if guard.ensure_held().is_err() || !error.to_string().contains("0 of the 1 replicas") {
        println!("{error}");
        return false;
    }
    assert_eq!(error.effect(), Effect::Unknown, "the master has the longer lease");
    let valid = guard.valid_until();
    within(ttl + SOON, guard.lost()).await;
    assert_eq!(guard.valid_until().since(valid), Duration::ZERO, "it was never renewed again");
    // Who asked for no replicas does not mind.
    let is_held = other.ensure_held().is_ok();
    drop(guard);
    eventually("it is free", async || locks.inspect("lock").await.is_ok_and(|info| info.claims.is_empty()))
        .await;
    is_held
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_waits_for_replicas_where_the_client_does() {
    needs!(REDIS);
    let sentinel = Sentinel::start(1, &Config::new()).unwrap();
    let url = format!("{}?replicas=1", sentinel.url());
    let (all, none) = (connect(&url, LONG).await, connect(&sentinel.url(), LONG).await);
    let lease = lock(&all, "lock").await.detach().await.expect("there is a replica");
    let lease = all.extend(&lease, LONG).await.expect("there is a replica");
    let guard = all.attach(&lease).await.expect("there is a replica");
    let lease = guard.detach().await.expect("there is a replica");
    sentinel.cut_replica().unwrap();
    let all = connect(&format!("{url}&timeout=2s"), LONG).await;
    let error = all.extend(&lease, LONG).await.expect_err("the replica does not hear of it");
    assert!(error.to_string().contains("0 of the 1 replicas"), "{error}");
    assert_eq!(error.effect(), Effect::Unknown, "the master has the longer lease");
    none.extend(&lease, LONG).await.expect("it is there all the same");
    none.release(&lease).await.expect("it is there all the same");
    let error = all.mutex("lock").unwrap().lock().await.expect_err("the URL asks for a replica");
    assert_short(&error, "0 of the 1 replicas");
}

/// Others may have seen the mark at the master, so it is not taken back.
#[tokio::test(flavor = "multi_thread")]
async fn a_mark_that_too_few_replicas_have_stays() {
    needs!(REDIS);
    let sentinel = Sentinel::start(1, &Config::new()).unwrap();
    let locks = connect(&format!("{}?replicas=1", sentinel.url()), LONG).await;
    let guard = ask(&locks, 1).await.expect("there is a replica");
    sentinel.cut_replica().unwrap();
    let error = within(SOON, guard.leave_mark(LONG)).await.expect_err("the replica does not hear of it");
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    locks.close().await;
    let look = connect(&sentinel.url(), LONG).await;
    let info = look.inspect("lock").await.unwrap();
    assert!(info.holders().all(|holder| holder.detached) && info.holders().count() == 1, "{info:?}");
}

#[tokio::test]
async fn what_cannot_be_had_is_refused() {
    needs!(REDIS);
    let server = Redis::start(&Config::new()).unwrap();
    let registry = fencepost_redis::register(Registry::new());
    let builder = Client::builder().require_tokens(Tokens::Durable);
    let error = builder.connect(&registry, &server.url()).await.expect_err("the server's clock makes them");
    assert!(error.is_unsupported() && error.to_string().contains("clock-bounded"), "{error}");
    let builder = Client::builder().connect_wait(SOON).require_tokens(Tokens::ClockBounded);
    builder.connect(&registry, &server.url()).await.expect("they are").close().await;
    let nodes = "redlock:redis://127.0.0.1:1,redis://127.0.0.1:2,redis://127.0.0.1:3?replicas=1";
    let error = Client::builder().connect(&registry, nodes).await.expect_err("it has a quorum");
    assert!(error.is_invalid() && error.to_string().contains("replicas="), "{error}");
}

/// Many who wait for a replica that does not answer: each has an answer, and what is left in the connection's queue is nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_without_replicas_is_answered() {
    needs!(REDIS);
    let server = Redis::start(&Config::new()).unwrap();
    let url = format!("{}?timeout=400ms", server.url());
    let locks = Client::builder().ttl(LONG).connect_wait(SOON).replicas(1);
    let locks = locks.connect(&fencepost_redis::register(Registry::new()), &url).await.unwrap();
    let names: Vec<_> = (0..16).map(|n| format!("lock/{n}")).collect();
    let each = names.iter().map(|name| {
        let locks = locks.clone();
        async move { within(SOON + SOON, locks.mutex(name).unwrap().lock()).await }
    });
    for answer in futures_util::future::join_all(each).await {
        let error = answer.expect_err("there is no replica");
        assert!(error.is_unreachable(), "{error}");
    }
    eventually("nothing is left", async || {
        locks.list("", &Page::default()).await.is_ok_and(|list| list.resources.is_empty())
    })
    .await;
}

/// It answers at once, so "the engine did not answer" would be false.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_refuses_writes_is_quoted() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new()).unwrap();
    let locks =
        Client::builder().ttl(LONG).connect_wait(SOON).connect(&registry(), &redis.url()).await.unwrap();
    redis.look().ask::<()>(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let mutex = locks.mutex("lock").unwrap();
    for tries in 1.. {
        let tried = mutex.try_lock().await.map(drop);
        let waited = mutex.lock().wait(Duration::from_millis(500)).await.map(drop);
        let said = [tried, waited].map(|answer| {
            let error = answer.expect_err("the server takes no writes");
            format!("{error} {:?}", std::error::Error::source(&error).map(ToString::to_string))
        });
        // On a busy machine it may not answer within the limits of these calls.
        if said.iter().all(|said| said.contains("min-replicas-to-write")) {
            break;
        }
        assert!(tries < TRIES, "{said:?}");
    }
    locks.close().await;
}
