//! A server that accepts no writes any more, because another one is the primary by now. No connection ends by that.

use std::time::Duration;

use fencepost_core::Loss;
use fencepost_testkit::needs;
use fencepost_testkit::sql::MariaDb;

use crate::{SOON, await_waiting, connect, locks};

/// Long enough for a busy machine. A ping comes after a third of it.
const TTL: Duration = Duration::from_secs(9);

/// Starts two servers, which have the same tables as a primary and its replica do. Returns the URL that names both, for a user whose
/// writes `read_only` refuses. `rights`: those on the database.
async fn start(rights: &str) -> ([MariaDb; 2], String) {
    let servers = [MariaDb::start().expect("a server starts"), MariaDb::start().expect("a server starts")];
    for server in &servers {
        connect(&server.url()).await.close().await;
        server.run(&format!("CREATE USER app; GRANT {rights} ON fencepost.* TO app")).expect("made");
    }
    let [one, two] = servers.each_ref().map(MariaDb::address);
    // The second one is asked if the first one is silent for a quarter of this time.
    (servers, format!("mysql://app@{one},{two}/fencepost?connect_timeout=20s"))
}

/// Otherwise the holder would be confirmed without end, beside a holder at the new primary.
#[tokio::test]
async fn holders_and_waiters_leave_a_server_that_was_demoted() {
    needs!(MARIADB);
    let (servers, url) = start("ALL").await;
    let (client, other) = (connect(&url).await, connect(&url).await);
    let mutex = client.mutex("lock").expect("a good name");
    let guard = mutex.lock().ttl(TTL).await.expect("it is free");
    let theirs = other.mutex("lock").expect("a good name");
    let waiting = tokio::spawn(async move { theirs.lock().await });
    await_waiting(&servers[0], 1).await;
    servers[0].run("SET GLOBAL read_only = 1").expect("set");
    let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
    assert_eq!(lost, Loss::SessionEnded);
    let next = tokio::time::timeout(SOON, waiting).await.expect("it is granted").expect("no panic");
    let next = next.expect("it asks again");
    assert_eq!(locks(&servers[1]), "1", "the new primary has granted it");
    next.release().await.expect("it was held");
    let again = tokio::time::timeout(SOON, mutex.lock()).await.expect("it is granted").expect("it is free");
    assert_eq!(locks(&servers[1]), "1", "the new primary has granted it");
    again.release().await.expect("it was held");
    client.close().await;
    other.close().await;
}

/// Where no statement of a grant writes, the ping alone finds it.
#[tokio::test]
async fn a_holder_without_a_token_leaves_a_server_that_was_demoted() {
    needs!(MARIADB);
    let (servers, url) = start("SELECT").await;
    let client = connect(&url).await;
    let mutex = client.mutex("lock").expect("a good name");
    let guard = mutex.lock().ttl(TTL).await.expect("it is free");
    servers[0].run("SET GLOBAL read_only = 1").expect("set");
    let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
    assert_eq!(lost, Loss::SessionEnded);
    // Connections for other leases ping at other times, and a lock without a token needs no write.
    let lock = mutex.lock().ttl(TTL);
    let next = tokio::time::timeout(SOON, lock).await.expect("it is granted").expect("it is free");
    let holder = "SELECT IS_USED_LOCK('fencepost:lock') IS NOT NULL";
    assert_eq!(servers[1].run(holder).expect("the server answers").trim(), "1");
    next.release().await.expect("it was held");
    client.close().await;
}

/// Other connections of the client would be pinged much later, and a client stays off the new primary as long as it has one to the old.
#[tokio::test]
async fn the_first_ping_that_finds_a_demoted_server_ends_all_connections() {
    needs!(MARIADB);
    let (servers, url) = start("ALL").await;
    let client = connect(&url).await;
    let hold = async |name: &str, ttl| {
        client.mutex(name).expect("a good name").lock().ttl(ttl).await.expect("it is free")
    };
    let long = hold("long", 40 * TTL).await;
    let first = hold("first", TTL).await;
    servers[0].run("SET GLOBAL read_only = 1").expect("set");
    for guard in [first, long] {
        let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
        assert_eq!(lost, Loss::SessionEnded);
    }
    let next = tokio::time::timeout(SOON, hold("long", 40 * TTL)).await.expect("it is granted");
    assert_eq!(locks(&servers[1]), "1", "the new primary has granted it");
    next.release().await.expect("it was held");
    client.close().await;
}

/// A claim that connects for another length of its lease finds it as well.
#[tokio::test]
async fn a_new_connection_that_finds_a_demoted_server_ends_the_others() {
    needs!(MARIADB);
    let (servers, url) = start("ALL").await;
    let client = connect(&url).await;
    let mutex = client.mutex("lock").expect("a good name");
    let guard = mutex.lock().ttl(40 * TTL).await.expect("it is free");
    servers[0].run("SET GLOBAL read_only = 1").expect("set");
    let other = client.mutex("other").expect("a good name");
    let next = tokio::time::timeout(SOON, other.lock().ttl(TTL)).await.expect("it is granted");
    let next = next.expect("the new primary grants it");
    assert_eq!(guard.ensure_held().expect_err("it is told").loss(), Some(Loss::SessionEnded));
    next.release().await.expect("it was held");
    client.close().await;
}

/// Nothing renews a fixed lease, whether it was granted at once or after a wait.
#[tokio::test]
async fn a_holder_with_a_fixed_lease_leaves_a_server_that_was_demoted() {
    needs!(MARIADB);
    let (servers, url) = start("ALL").await;
    let (client, other) = (connect(&url).await, connect(&url).await);
    let mutex = client.mutex("lock").expect("a good name");
    let guard = mutex.lock().ttl(TTL).no_renewal().await.expect("it is free");
    let theirs = other.mutex("lock").expect("a good name");
    let waiting = tokio::spawn(async move { theirs.lock().ttl(TTL).no_renewal().await });
    await_waiting(&servers[0], 1).await;
    guard.release().await.expect("it was held");
    let waited = tokio::time::timeout(SOON, waiting).await.expect("it is granted").expect("no panic");
    let free = client.mutex("free").expect("a good name").lock().ttl(TTL).no_renewal().await;
    servers[0].run("SET GLOBAL read_only = 1").expect("set");
    for guard in [free, waited] {
        let guard = guard.expect("it is granted");
        let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
        assert_eq!(lost, Loss::SessionEnded, "its lease would have ended later");
    }
    client.close().await;
    other.close().await;
}

/// Statements for other claims keep the connection open, and do not ask whether the server accepts writes.
#[tokio::test]
async fn a_holder_with_a_fixed_lease_leaves_on_a_busy_connection() {
    needs!(MARIADB);
    let (servers, url) = start("SELECT").await;
    let client = connect(&url).await;
    let (lock, other) = ["lock", "other"].map(|name| client.mutex(name).expect("a good name")).into();
    let guard = lock.lock().ttl(TTL).no_renewal().await.expect("it is free");
    servers[0].run("SET GLOBAL read_only = 1").expect("set");
    let busy = async {
        loop {
            // Without a token the server needs no write for it. It fails when the client leaves the server.
            if let Ok(guard) = other.lock().ttl(TTL).no_renewal().await {
                let _ = guard.release().await;
            }
        }
    };
    let lost = tokio::select! {
        lost = tokio::time::timeout(SOON, guard.lost()) => lost.expect("it is told"),
        () = busy => unreachable!("it has no end"),
    };
    assert_eq!(lost, Loss::SessionEnded, "its lease would have ended later");
    client.close().await;
}

/// A client with few connections holds on one whose idle timeout is that of a longer lease.
#[tokio::test]
async fn a_holder_with_a_fixed_lease_leaves_on_a_connection_for_longer_leases() {
    needs!(MARIADB);
    let (servers, url) = start("ALL").await;
    // One connection holds.
    let client = connect(&format!("{url}&connections=2")).await;
    let long = client.mutex("long").expect("a good name");
    long.lock().ttl(40 * TTL).await.expect("it is free").release().await.expect("it was held");
    let mutex = client.mutex("lock").expect("a good name");
    let guard = mutex.lock().ttl(TTL).no_renewal().await.expect("it is free");
    servers[0].run("SET GLOBAL read_only = 1").expect("set");
    let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
    assert_eq!(lost, Loss::SessionEnded, "its lease would have ended later");
    client.close().await;
}
