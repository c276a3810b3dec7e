//! Clients that are killed or cut off, and a clock that jumps.

use std::time::Duration;

use fencepost_core::{Client, Guard, Loss, Mutex, Name, RecordKind};
use fencepost_testkit::conformance::{Elsewhere, Holder};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::server::Proxy;
use fencepost_testkit::sql::{Postgres, ProxiedPostgres, hold_through_jumps};
use fencepost_testkit::wait::eventually;

use crate::{SOON, builder, connect, locks, registry};

/// A client that is killed while its statement waits leaves no claim in the queue.
#[tokio::test]
async fn a_client_killed_in_its_wait_leaves_nothing() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    let holder = connect(&server.url()).await;
    let guard = holder.mutex("lock").expect("a good name").lock().await.expect("it is free");
    let mut waits = Holder::waiting(&server.url(), "lock", Duration::from_secs(30), 1);
    eventually(SOON, "it waits", || async { locks(&server).trim() == "2" }).await;
    waits.kill();
    eventually(SOON, "its claim is gone", || async { locks(&server).trim() == "1" }).await;
    guard.ensure_held().expect("it is held");
    guard.release().await.expect("it was held");
    assert_eq!(locks(&server).trim(), "0");
    holder.close().await;
}

/// The server ends a session that is silent, and the holder knew of its loss before.
#[tokio::test]
async fn a_silent_holder_is_lost_before_the_server_frees_its_lock() {
    needs!(POSTGRES);
    let mut server = ProxiedPostgres::start(&()).expect("a server starts");
    let (client, other) = (connect(&server.url()).await, connect(&server.direct_url()).await);
    let lock = client.mutex("lock").expect("a good name");
    let guard = lock.lock().ttl(Duration::from_secs(2)).await.expect("it is free");
    let mutex = other.mutex("lock").expect("a good name");
    let next = async {
        let next = mutex.lock().await.expect("it is granted");
        assert!(guard.ensure_held().is_err(), "the lock was free before its holder knew");
        next
    };
    server.silence().expect("the network can be silent");
    let both = async { tokio::join!(guard.lost(), next) };
    let (lost, next) =
        tokio::time::timeout(SOON, both).await.expect("it is told, and the next one is granted");
    assert_eq!(lost, Loss::Expired);
    assert!(next.token() > guard.token());
    next.release().await.expect("it was held");
    server.mend().expect("it can be mended");
    drop(guard);
    client.close().await;
    other.close().await;
}

/// A server that hangs keeps its connections open, and another one takes over. (Here both are the same behind two addresses.)
#[tokio::test]
async fn a_connection_that_stays_silent_is_replaced() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    let proxies = [(); 2].map(|()| Proxy::start(server.address()).expect("a proxy starts"));
    let [mut first, second] = proxies;
    let url = server
        .url()
        .replace(&server.address().to_string(), &format!("{},{}", first.address(), second.address()));
    let client = connect(&url).await;
    let (one, two) = (client.mutex("one").expect("a good name"), client.mutex("two").expect("a good name"));
    // Longer than the time limit of a statement.
    let ttl = Duration::from_secs(5);
    let guard = one.lock().ttl(ttl).await.expect("it is free");
    first.silence().expect("the network can be silent");
    let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
    assert_eq!(lost, Loss::Expired);
    for mutex in [one, two] {
        let next = async || loop {
            match mutex.lock().ttl(ttl).await {
                Err(error) if error.is_unreachable() => {}
                other => break other.expect("it is free"),
            }
        };
        let next = tokio::time::timeout(SOON, next()).await.expect("the client connects again");
        next.release().await.expect("it was held");
    }
    drop(guard);
    client.close().await;
}

/// Starts two servers, the first of them behind a proxy. Returns the URL that names both.
fn start_two() -> ([Postgres; 2], Proxy, String) {
    let servers = [Postgres::start().expect("a server starts"), Postgres::start().expect("a server starts")];
    let first = Proxy::start(servers[0].address()).expect("a proxy starts");
    let hosts = format!("{},{}", first.address(), servers[1].address());
    let url = format!("postgres://fencepost@{hosts}/postgres?timeout=100ms");
    (servers, first, url)
}

/// Takes a lock when the client has gone on to a server that answers.
async fn lock_at_next_server(mutex: &Mutex, ttl: Duration) -> Guard {
    let next = async || loop {
        match mutex.lock().ttl(ttl).await {
            Err(error) if error.is_unreachable() => {}
            other => break other.expect("it is free"),
        }
    };
    tokio::time::timeout(SOON, next()).await.expect("the client connects to the next server")
}

/// Its user keeps the guard of a lock that was waited for, so its connection is never released.
#[tokio::test]
async fn a_lost_guard_that_is_kept_does_not_keep_its_client_at_a_silent_server() {
    needs!(POSTGRES);
    let (servers, mut first, url) = start_two();
    let holder = connect(&servers[0].url()).await;
    // The last renewal times out before the server's idle timeout, because the margin of this lease is longer than a statement's time limit.
    let ttl = Duration::from_secs(10);
    // On a machine that stalls for longer than the time limit the client is at the second server, and another one begins.
    let (client, mutex, kept) = loop {
        let client = connect_patiently(&url).await;
        let guard = holder.mutex("lock").expect("a good name").lock().await.expect("it is free");
        let mutex = client.mutex("lock").expect("a good name");
        let waits = mutex.clone();
        let waiting = tokio::spawn(async move { waits.lock().ttl(ttl).await });
        eventually(SOON, "it waits", || async { locks(&servers[0]).trim() == "2" || waiting.is_finished() })
            .await;
        guard.release().await.expect("it was held");
        let kept = tokio::time::timeout(SOON, waiting).await.expect("it is granted").expect("no panic");
        match kept {
            Ok(kept) if locks(&servers[0]).trim() == "1" => break (client, mutex, kept),
            kept => drop(kept),
        }
        client.close().await;
    };
    first.silence().expect("the network can be silent");
    let lost = tokio::time::timeout(SOON, kept.lost()).await.expect("it is told");
    assert_eq!(lost, Loss::Expired);
    let next = lock_at_next_server(&mutex, ttl).await;
    assert_eq!(locks(&servers[1]).trim(), "1");
    drop((next, kept));
    client.close().await;
    holder.close().await;
}

/// Connects with a URL whose statements have a short time limit, which a busy machine exceeds.
async fn connect_patiently(url: &str) -> Client {
    builder().connect_wait(SOON).connect(&registry(), url).await.expect("it answers")
}

/// Its next ping would be sent after a third of the longest lease.
#[tokio::test]
async fn an_unused_connection_for_long_leases_does_not_keep_its_client_at_a_silent_server() {
    needs!(POSTGRES);
    let (servers, mut first, url) = start_two();
    let client = connect_patiently(&url).await;
    let mutex = client.mutex("lock").expect("a good name");
    // On a machine that stalls for longer than the time limit of a statement the connection ends.
    loop {
        let long = mutex.lock().ttl(Duration::from_secs(3600)).await.expect("it is free");
        if long.release().await.is_ok() {
            break;
        }
    }
    first.silence().expect("the network can be silent");
    let next = lock_at_next_server(&mutex, Duration::from_secs(2)).await;
    assert_eq!(locks(&servers[1]).trim(), "1");
    drop(next);
    client.close().await;
}

/// A claim waits by a statement without a time limit. Its reply does not come from a server that hangs.
#[tokio::test]
async fn a_wait_at_a_server_that_hangs_is_begun_again() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    let proxies = [(); 2].map(|()| Proxy::start(server.address()).expect("a proxy starts"));
    let [mut first, second] = proxies;
    let hosts = format!("{},{}", first.address(), second.address());
    let url = format!("{}?timeout=1s", server.url().replace(&server.address().to_string(), &hosts));
    let (holder, client) = (connect(&server.url()).await, connect_patiently(&url).await);
    let guard = holder.mutex("lock").expect("a good name").lock().await.expect("it is free");
    let mutex = client.mutex("lock").expect("a good name");
    let next = tokio::spawn(async move { mutex.lock().ttl(Duration::from_secs(2)).await });
    eventually(SOON, "it waits", || async { locks(&server).trim() == "2" }).await;
    first.silence().expect("the network can be silent");
    guard.release().await.expect("it was held");
    let next = tokio::time::timeout(SOON, next).await.expect("it is granted").expect("no panic");
    // On a machine that stalls so short a lease may end before.
    drop(next.expect("it is granted").release().await);
    client.close().await;
    holder.close().await;
}

/// The server's timeout is that of the longest lease, also if the statement for a shorter one is sent before the longer one has its reply.
#[tokio::test]
async fn two_lengths_at_once_leave_the_timeout_of_the_longer_lease() {
    needs!(POSTGRES);
    let mut server = ProxiedPostgres::start(&()).expect("a server starts");
    let (client, short) = (connect(&server.url()).await, Duration::from_secs(2));
    let hold = async |name: &str| {
        let lock = client.mutex(name).expect("a good name");
        lock.lock().ttl(short).no_renewal().await.expect("it is free")
    };
    let (one, two) = loop {
        let (mut one, mut two) = (hold("one").await, hold("two").await);
        match tokio::join!(one.extend(4 * short), two.extend(short)) {
            (Ok(()), Ok(())) if one.remaining() > 3 * short => break (one, two),
            // On a machine that stalls so short a lease may end before, or its extension is late.
            (longer, shorter) => {
                let errors = [longer, shorter].map(Result::err).into_iter().flatten();
                errors.for_each(|error| assert!(error.is_lost(), "{error}"));
            }
        }
    };
    server.silence().expect("the network can be silent");
    let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    eventually(SOON, "the server ends the session", || async {
        server.run(held).expect("the server answers").trim() == "0"
    })
    .await;
    assert!(one.ensure_held().is_err(), "its lock is free, and it is valid for {:?}", one.remaining());
    server.mend().expect("it can be mended");
    drop((one, two));
    client.close().await;
}

/// The pings for a fixed lease keep the connection open, and would keep a lock whose holder is lost.
#[tokio::test]
async fn a_lost_claim_frees_its_lock_beside_a_fixed_lease() {
    needs!(POSTGRES);
    let mut server = ProxiedPostgres::start(&()).expect("a server starts");
    // One connection holds.
    let client = connect_patiently(&format!("{}?connections=2&timeout=1s", server.url())).await;
    let lock = |name: &str| client.mutex(name).expect("a good name");
    let fixed = lock("fixed").lock().ttl(Duration::from_secs(18)).no_renewal().await.expect("it is free");
    let renewed = lock("renewed").lock().ttl(Duration::from_secs(2)).await.expect("it is free");
    server.silence().expect("the network can be silent");
    let lost = tokio::time::timeout(SOON, renewed.lost()).await.expect("it is told");
    assert_eq!(lost, Loss::Expired);
    // A renewal that is under way would free its lock. Its time limit ends before that of this statement.
    client.inspect("fixed").await.expect_err("the network is silent");
    server.mend().expect("it can be mended");
    let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    eventually(SOON, "its lock is free", || async {
        server.run(held).expect("the server answers").trim() == "1"
    })
    .await;
    fixed.ensure_held().expect("its lease goes on");
    fixed.release().await.expect("it was held");
    drop(renewed);
    client.close().await;
}

/// A step of the server's wall clock can end a session. Its holder is told.
#[tokio::test]
async fn a_clock_that_jumps_makes_no_second_holder() {
    needs!(POSTGRES);
    let mut server = Postgres::start_clock().expect("a server starts");
    let (client, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let lost = hold_through_jumps(&client, &other, &mut server, 1).await;
    println!("{lost} of 4 grants were lost");
    client.close().await;
    other.close().await;
}

#[tokio::test]
async fn a_stopped_process_holds_up_nobody_for_its_lease() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    fencepost_testkit::sql::a_stopped_process_holds_up_nobody_for_its_lease(&registry(), &server.url()).await;
}

/// A silent server in front of the URL's others delays the first connection, and no later one.
#[tokio::test]
async fn a_silent_first_server_is_passed_over() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    let mut silent = Proxy::start(server.address()).expect("a free port");
    silent.silence().expect("it can be silenced");
    let (address, both) =
        (server.address().to_string(), format!("{},{}", silent.address(), server.address()));
    let url = format!("{}?connect_timeout=8s", server.url().replace(&address, &both));
    let client = builder().connect_wait(Duration::from_millis(7_900)).connect(&registry(), &url).await;
    let client = client.expect("the second server answers");
    let mutex = client.mutex("lock").expect("a good name");
    let guard = mutex.lock().await.expect("it is free");
    // The waiter has a connection of its own.
    assert!(mutex.try_lock().wait(Duration::from_millis(50)).await.expect("busy is no error").is_none());
    guard.release().await.expect("it was held");
    assert_eq!(silent.passed(), 1);
    client.close().await;
}

/// Nothing ends the connections to a former primary whose transactions are read-only, so its locks are held. A claim that connects to
/// another server meanwhile would hold the same lock.
#[tokio::test]
async fn a_client_stays_at_a_server_with_read_only_transactions() {
    needs!(POSTGRES);
    let servers = [Postgres::start().expect("a server starts"), Postgres::start().expect("a server starts")];
    let [one, two] = servers.each_ref().map(Postgres::address);
    // The second one is asked if the first one is silent for a quarter of this time.
    let client = connect(&format!("postgres://fencepost@{one},{two}/postgres?connect_timeout=20s")).await;
    let mutex = client.mutex("lock").expect("a good name");
    let guard = mutex.lock().await.expect("it is free");
    servers[0].run("ALTER SYSTEM SET default_transaction_read_only = on").expect("set");
    servers[0].run("SELECT pg_reload_conf()").expect("it reads its settings");
    eventually(SOON, "it is read-only", || async {
        servers[0].run("SHOW transaction_read_only").expect("the server answers").trim() == "on"
    })
    .await;
    // It waits on a connection of its own, which is opened now.
    let waiting = tokio::spawn(async move { mutex.lock().await });
    eventually(SOON, "it waits at the first server", || async { locks(&servers[0]).trim() == "2" }).await;
    guard.ensure_held().expect("it is held");
    guard.release().await.expect("it was held");
    let next = tokio::time::timeout(SOON, waiting).await.expect("it is granted").expect("no panic");
    next.expect("it is granted").release().await.expect("it was held");
    client.close().await;
}

/// A former primary can keep its open connections and refuse a new one. The client's claims would hold one lock at both servers.
#[tokio::test]
async fn a_client_is_at_one_server_only() {
    needs!(POSTGRES);
    let mut servers =
        [Postgres::start().expect("a server starts"), Postgres::start().expect("a server starts")];
    for server in &servers {
        server.run("CREATE ROLE app LOGIN").expect("made");
    }
    let second = Proxy::start(servers[1].address()).expect("a free port");
    let hosts = format!("{},{}", servers[0].address(), second.address());
    // The second one is asked if the first one is silent for a quarter of this time.
    let url = format!("postgres://app@{hosts}/postgres?connect_timeout=20s");
    // The claim asks again for as long as an outage may last.
    let client = builder().outage(SOON).connect(&registry(), &url).await.expect("it answers");
    let lock = || client.mutex("lock").expect("a good name");
    let guard = lock().lock().await.expect("it is free");
    servers[0].run("ALTER ROLE app CONNECTION LIMIT 1").expect("set");
    // It waits on a connection of its own, which only the second server accepts.
    let mutex = lock();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    eventually(SOON, "it asks again", || async { waiting.is_finished() || second.passed() >= 3 }).await;
    assert!(!waiting.is_finished(), "the second server has granted the lock that the first one holds");
    guard.ensure_held().expect("it is held");
    // Those who hold nothing are told why they are refused.
    let other = client.mutex("other").expect("a good name");
    let error = other.try_lock().ttl(Duration::from_secs(7)).await.expect_err("a connection is open");
    assert!(error.is_unreachable() && error.is_transient(), "{error}");
    for part in ["has no connection left", "another server"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    // A job would run twice if its lock and the record of its last run were at two servers.
    let (records, name) = (client.records().expect("it keeps some"), Name::new("lock").expect("a good name"));
    let error = records.read(RecordKind::Run, &name).await.expect_err("a connection is open");
    assert!(error.to_string().contains("another server"), "{error}");
    servers[0].run("ALTER ROLE app CONNECTION LIMIT -1").expect("set");
    eventually(SOON, "it waits at the first server", || async { locks(&servers[0]).trim() == "2" }).await;
    guard.release().await.expect("it was held");
    let guard = tokio::time::timeout(SOON, waiting).await.expect("it is granted").expect("no panic");
    let guard = guard.expect("the first server grants it");
    // When no connection to the first server is open, its holders have been told, and the client goes on at the second one.
    servers[0].kill().expect("killed");
    let next = tokio::time::timeout(SOON, lock().lock()).await.expect("it answers").expect("it is free");
    assert_eq!(guard.ensure_held().expect_err("it is told").loss(), Some(Loss::SessionEnded));
    assert_eq!(locks(&servers[1]).trim(), "1");
    next.release().await.expect("it was held");
    client.close().await;
}
