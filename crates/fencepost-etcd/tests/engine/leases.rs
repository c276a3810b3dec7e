//! Leases and the claims that end with them.

use fencepost_testkit::needs;
use std::time::{Duration, Instant};

use crate::kit::{SHORT, SOON, client_of, connect, eventually, in_line, registry, server, stand, users};
use fencepost_core::{ClaimId, Client, Clock, DetachedLease, Effect, Guard, Loss, Mode, Result, margin};
use fencepost_testkit::etcd::{Config, Look, Proxied};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::server::Proxy;

#[tokio::test(flavor = "multi_thread")]
async fn all_locks_of_a_client_share_a_lease_and_it_goes_with_the_client() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    // By its clock the server always answers the close in time.
    let locks = client_of(&Clock::manual(), &etcd.url()).await;
    let mut guards = Vec::new();
    for number in 0..50 {
        guards.push(locks.mutex(&format!("many/{number}")).unwrap().lock().await.unwrap());
    }
    guards.push(locks.rwlock("shared").unwrap().read().await.unwrap());
    guards.push(locks.rwlock("shared").unwrap().read().await.unwrap());
    assert_eq!(etcd.look().leases().len(), 1);
    for guard in guards {
        guard.release().await.unwrap();
    }
    locks.close().await;
    assert!(etcd.look().leases().is_empty() && etcd.look().keys("").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_of_its_own_goes_with_its_claim() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let locks = client_of(&Clock::manual(), &etcd.url()).await;
    let guard = locks.mutex("fixed").unwrap().lock().ttl(Duration::from_secs(60)).no_renewal().await.unwrap();
    assert_eq!(etcd.look().leases().len(), 2, "the client's, and that of the fixed lock");
    guard.release().await.unwrap();
    eventually("its lease is gone", || async { etcd.look().leases().len() == 1 }).await;
    let lease = locks.mutex("fixed").unwrap().lock().await.unwrap().detach().await.unwrap();
    locks.extend(&lease, Duration::from_secs(90)).await.unwrap();
    locks.release(&lease).await.unwrap();
    // The remaining leases are shared ones.
    let only = || async { etcd.look().leases().len() <= 2 };
    eventually("their leases are gone", only).await;
    locks.close().await;
    assert!(etcd.look().leases().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_lease_ends_its_guards_and_its_waiters_queue_again() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let (one, two) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let guard = one.mutex("stock").unwrap().lock().ttl(SOON * 4).await.unwrap();
    let held = etcd.look().leases();
    let waiting = stand(&two, "stock", 2).await;
    let waits: Vec<_> = etcd.look().leases().into_iter().filter(|lease| !held.contains(lease)).collect();
    // The waiter's lease: it joins the queue again with another one.
    etcd.look().run(&["lease", "revoke", &waits[0]]);
    eventually("it is back in the queue", || async { in_line(&one, "stock").await == 2 }).await;
    assert!(!waiting.is_answered());
    guard.ensure_held().unwrap();
    // The holder's lease: the holder is told because the queue is watched.
    etcd.look().run(&["lease", "revoke", &held[0]]);
    let why = tokio::time::timeout(SOON, guard.lost()).await.expect("the holder is told");
    assert!(matches!(why, Loss::Deleted | Loss::SessionEnded), "{why}");
    let next = waiting.granted().await;
    assert!(next.token() > guard.token());
    drop(guard);
    next.ensure_held().unwrap();
    next.release().await.unwrap();
    // The client uses another lease.
    one.mutex("stock").unwrap().lock().await.unwrap().release().await.unwrap();
    one.close().await;
    two.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_nobody_waits_for_learns_of_its_lease_by_the_next_renewal() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let clock = Clock::manual();
    let locks = client_of(&clock, &etcd.url()).await;
    let guard = locks.mutex("stock").unwrap().lock().ttl(SHORT).await.unwrap();
    for lease in etcd.look().leases() {
        // On a busy machine it may have ended before this.
        let _ = etcd.look().try_run(&["lease", "revoke", &lease]);
    }
    // Its renewal is due, and its key is not old enough for a watch.
    clock.advance_to(clock.now() + SHORT * 2 / 5);
    let why = tokio::time::timeout(SOON, guard.lost()).await.expect("it learns of that");
    assert_eq!(why, Loss::SessionEnded);
    assert!(guard.release().await.unwrap_err().is_lost());
    locks.close().await;
}

/// Returns the lease of a key, in decimal. `None`: the key is gone.
fn lease_of(look: &Look, prefix: &str) -> Option<String> {
    let text = look.run(&["get", prefix, "--prefix", "-w", "fields"]);
    text.lines().find_map(|line| line.strip_prefix("\"Lease\" : ")).map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extension_whose_answer_was_lost_leaves_no_key_on_a_lease_that_nobody_renews() {
    needs!(ETCD, ETCDCTL);
    let mut etcd = Proxied::start(&Config::new()).unwrap();
    let locks = connect(&etcd.url()).await;
    // The longer lease exists already, so one request moves the key.
    let other = locks.mutex("other").unwrap().lock().ttl(SOON * 2).await.unwrap();
    let start = Instant::now();
    let (home, guard) = loop {
        let mut guard = locks.mutex("stock").unwrap().lock().ttl(SOON).await.unwrap();
        let home = lease_of(&etcd.look(), "stock/");
        etcd.delay(Duration::from_millis(1_500)).unwrap();
        let extended = tokio::spawn(async move { (guard.extend(SOON * 2).await, guard) });
        eventually("the key hangs on the longer lease", async || lease_of(&etcd.look(), "stock/") != home)
            .await;
        etcd.cut().unwrap();
        let (extended, guard) = extended.await.unwrap();
        etcd.mend().unwrap();
        if let Err(error) = extended {
            assert_eq!(error.effect(), Effect::Unknown);
            break (home, guard);
        }
        // On a busy machine the reply may come before the cut.
        assert!(start.elapsed() < SOON, "it is extended, although the reply is lost");
        guard.release().await.unwrap();
    };
    eventually("the key is back", async || lease_of(&etcd.look(), "stock/") == home).await;
    guard.ensure_held().unwrap();
    guard.release().await.unwrap();
    other.release().await.unwrap();
    locks.close().await;
}

/// The longer lease is that of another lock, and some of its time has passed.
#[tokio::test(flavor = "multi_thread")]
async fn an_extended_claim_has_all_of_its_time_and_counts_on_no_more() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let locks = connect(&etcd.url()).await;
    let (shorter, longer) = (Duration::from_secs(15), Duration::from_secs(20));
    let other = locks.mutex("other").unwrap().lock().ttl(longer).await.unwrap();
    let left = async |name| {
        let info = locks.inspect(name).await.unwrap();
        info.holders().next().and_then(|holder| holder.expires_in).unwrap_or_default()
    };
    eventually("some of the lease has passed", async || left("other").await < Duration::from_secs(18)).await;
    let mut guard = locks.mutex("stock").unwrap().lock().ttl(shorter).await.unwrap();
    let began = Instant::now();
    guard.extend(longer).await.unwrap();
    let counted = guard.remaining();
    let all = longer - margin(longer);
    assert!(counted + began.elapsed() >= all, "{counted:?} of {all:?}");
    // The server tells whole seconds.
    let left = left("stock").await;
    assert!(guard.remaining() <= left + Duration::from_secs(1), "{:?} of {left:?}", guard.remaining());
    guard.release().await.unwrap();
    other.release().await.unwrap();
    locks.close().await;
}

/// A lease that other programs change. A busy machine mostly renews it in time.
const TTL: Duration = Duration::from_secs(4);

/// Waits for so many renewals. An error: the guard is lost.
async fn renewals(guard: &Guard, times: u32) -> Result<()> {
    for _ in 0..times {
        let until = guard.valid_until();
        let is_over = async || guard.ensure_held().is_err() || guard.valid_until() > until;
        eventually("the guard is renewed", is_over).await;
        guard.ensure_held()?;
    }
    Ok(())
}

/// Repeats a work in which a busy machine has lost the lock, so that it shows nothing.
async fn unless_busy(work: impl AsyncFn() -> Result<()>) {
    let start = Instant::now();
    loop {
        match work().await {
            Err(error) if error.is_lost() && start.elapsed() < 2 * SOON => {}
            done => return done.expect("it is lost, and not because the machine is busy"),
        }
    }
}

/// A supervisor has the text of the lease, and its extension moves the key to a lease that nobody renews. The guard counts on that lease while it
/// lasts for longer than its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_whose_lease_is_extended_elsewhere_keeps_its_lock_for_longer_than_that() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let (near, far) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    for extending in [&far, &near] {
        let keeps = async || {
            let guard = near.mutex("stock").unwrap().lock().ttl(TTL).await?;
            let lease = guard.to_lease()?;
            extending.extend(&lease, 2 * TTL).await?;
            let extended = lease_of(&etcd.look(), "stock/");
            eventually("the key is back", async || lease_of(&etcd.look(), "stock/") != extended).await;
            guard.ensure_held()?;
            extending.extend(&lease, SOON).await?;
            let extended = lease_of(&etcd.look(), "stock/");
            renewals(&guard, 3).await?;
            let now = lease_of(&etcd.look(), "stock/");
            guard.ensure_held()?;
            assert_eq!(now, extended, "the extension was shortened");
            guard.release().await
        };
        unless_busy(keeps).await;
    }
    near.close().await;
    far.close().await;
}

/// The extension moves the key away from the guard's own lease and back, and the guard is renewed all the time.
#[tokio::test(flavor = "multi_thread")]
async fn an_attached_guard_outlives_an_extension_elsewhere() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let (near, far) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let outlives = async || {
        let lease = near.mutex("stock").unwrap().lock().ttl(TTL).await?.detach().await?;
        let guard = far.attach(&lease).await?;
        near.extend(&lease, 2 * TTL).await?;
        let extended = lease_of(&etcd.look(), "stock/");
        eventually("the key is back", async || lease_of(&etcd.look(), "stock/") != extended).await;
        renewals(&guard, 4).await?;
        let lease = guard.detach().await?;
        near.release(&lease).await
    };
    unless_busy(outlives).await;
    near.close().await;
    far.close().await;
}

/// The program that takes up the lease has an old text of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_takes_up_a_lease_does_not_shorten_it() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let (near, far) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let mutex = near.mutex("stock").unwrap();
    for (number, extends) in [(1, false), (2, true)] {
        let id = ClaimId::from_u128(number);
        let guard = mutex.lock().claim_id(id).ttl(SOON).await.unwrap();
        let old = DetachedLease::of(id, mutex.name().clone(), Mode::Exclusive, SHORT);
        if extends {
            far.extend(&old, SHORT).await.unwrap();
        }
        let attached = far.attach(&old).await.unwrap();
        let info = near.inspect("stock").await.unwrap();
        let left = info.holders().next().and_then(|holder| holder.expires_in);
        assert!(left > Some(SOON / 2), "{left:?}");
        attached.release().await.unwrap();
        drop(guard);
    }
    near.close().await;
    far.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_cannot_be_deleted_for_long_goes_in_the_end() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    users(&etcd);
    let root = etcd.look().of("root:topsecret");
    let url = etcd.url().replace("etcd://", "etcd://app:hunter2@");
    let locks = connect(&format!("{url}?prefix=locks/")).await;
    let mutex = locks.mutex("stock").unwrap();
    let (guard, other) = (mutex.lock().await.unwrap(), locks.mutex("other").unwrap().lock().await.unwrap());
    let permit = |what| root.run(&["role", "grant-permission", "locks", "--prefix=true", what, "locks/"]);
    permit("read");
    drop(guard);
    eventually("it is given up", async || locks.backlog() == 0).await;
    assert_eq!(root.keys("locks/stock/").len(), 1, "it was deleted all the same");
    permit("readwrite");
    // The other lock keeps the lease.
    eventually("it is deleted", async || root.keys("locks/stock/").is_empty()).await;
    other.ensure_held().unwrap();
    other.release().await.unwrap();
    locks.close().await;
}

/// Nobody can tell whether a record of a later format is that of the lease. The error names both formats, and nothing is written.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_beside_a_record_of_a_later_format_is_not_called_lost() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let locks = connect(&etcd.url()).await;
    let lease = locks.mutex("stock").unwrap().lock().await.unwrap().detach().await.unwrap();
    let key = etcd.look().keys("stock/").remove(0);
    let record = etcd.look().run(&["get", "--print-value-only", &key]);
    let later = record.trim_end().replacen(r#""fencepost":1"#, r#""fencepost":2"#, 1);
    etcd.look().run(&["put", "--ignore-lease", &key, &later]);
    for refused in [
        locks.extend(&lease, SOON).await.map(drop),
        locks.attach(&lease).await.map(drop),
        locks.release(&lease).await,
    ] {
        let error = refused.expect_err("its record has format 2");
        let text = error.to_string();
        assert!(error.is_configuration() && text.contains("format 2") && text.contains("knows 1"), "{text}");
    }
    assert_eq!(etcd.look().run(&["get", "--print-value-only", &key]).trim_end(), later);
    etcd.look().run(&["put", "--ignore-lease", &key, record.trim_end()]);
    // The client repeats the release that it could not confirm.
    eventually("it is released", async || etcd.look().keys("stock/").is_empty()).await;
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn extensions_at_the_same_time_lose_nothing_and_the_longest_counts() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let (one, two) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let lease = one.mutex("stock").unwrap().lock().await.unwrap().detach().await.unwrap();
    let long = |times: u32| Duration::from_secs(100) * times;
    for round in 1..=15 {
        let (shorter, longer) = (long(2 * round), long(2 * round + 1));
        let (first, second) = tokio::join!(one.extend(&lease, shorter), two.extend(&lease, longer));
        first.unwrap();
        second.unwrap();
        let info = one.inspect("stock").await.unwrap();
        let left = info.claims[0].expires_in.expect("it has a lease");
        assert!(left > shorter, "{left:?} of {longer:?}");
    }
    one.release(&lease).await.unwrap();
    eventually("all leases but the clients' are gone", async || etcd.look().leases().len() <= 2).await;
    one.close().await;
    two.close().await;
}

/// The extension finds the key rewritten, with the lease of somebody else.
#[tokio::test(flavor = "multi_thread")]
async fn an_extended_claim_keeps_its_key_when_another_lease_that_it_was_given_ends() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let locks = connect(&etcd.url()).await;
    let mut guard = locks.mutex("stock").unwrap().lock().ttl(SOON).await.unwrap();
    let look = etcd.look();
    let keys = look.keys("");
    let [key] = &keys[..] else { panic!("{keys:?}") };
    let value = look.run(&["get", key, "--print-value-only"]);
    let granted = look.run(&["lease", "grant", "60"]);
    let other = granted.split_whitespace().nth(1).expect("an id").to_owned();
    look.run(&["put", &format!("--lease={other}"), key, value.trim_end()]);
    guard.extend(SOON * 2).await.expect("the key is there");
    look.run(&["lease", "revoke", &other]);
    assert_eq!(look.keys(""), keys);
    guard.release().await.expect("it was held");
    locks.close().await;
}

/// A client uses the numbers of its claims again, so the key of a later claim has the name of the one that the lease is for.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_release_by_a_lease_deletes_no_later_claims_key() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let mut proxy = Proxy::start(etcd.address()).unwrap();
    let near = connect(&etcd.url()).await;
    let far = Client::builder().release_timeout(SOON);
    let far = far.connect(&registry(), &format!("etcd://{}?timeout=20s", proxy.address())).await.unwrap();
    let mutex = near.mutex("stock").unwrap();
    let reads = || etcd.requests().unwrap().get("Range").copied().unwrap_or_default();
    let start = Instant::now();
    loop {
        let guard = mutex.lock().await.unwrap();
        let (lease, key) = (guard.to_lease().unwrap(), etcd.look().keys("stock/"));
        let before = reads();
        proxy.delay(Duration::from_secs(1)).unwrap();
        let releasing = far.clone();
        let late = tokio::spawn(async move { releasing.release(&lease).await });
        eventually("it reads the queue", async || reads() > before).await;
        // The answer and the deletion take 2 s.
        let released = guard.release().await;
        let next = mutex.lock().await.unwrap();
        let again = etcd.look().keys("stock/");
        let late = late.await.unwrap();
        proxy.mend().unwrap();
        let Err(error) = late else {
            // On a busy machine the deletion comes before the release.
            assert!(start.elapsed() < SOON, "that grant is gone");
            next.release().await.unwrap();
            continue;
        };
        released.unwrap();
        assert_eq!(again, key, "the name is used again");
        assert!(error.is_lost(), "{error}");
        assert_eq!(etcd.look().keys("stock/"), key, "the next claim has lost its key");
        next.release().await.unwrap();
        break;
    }
    far.close().await;
    near.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_release_of_an_attached_guard_deletes_no_later_claims_key() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let (first, other) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let mutex = first.mutex("stock").unwrap();
    let guard = mutex.lock().await.unwrap();
    let (attached, key) =
        (other.attach(&guard.to_lease().unwrap()).await.unwrap(), etcd.look().keys("stock/"));
    guard.release().await.unwrap();
    let next = mutex.lock().await.unwrap();
    assert_eq!(etcd.look().keys("stock/"), key, "the name is used again");
    assert!(attached.release().await.expect_err("that grant is gone").is_lost());
    assert_eq!(etcd.look().keys("stock/"), key, "the next claim has lost its key");
    next.release().await.unwrap();
    first.close().await;
    other.close().await;
}
