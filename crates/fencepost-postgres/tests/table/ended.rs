//! Connections that a client replaces although they are open.

use std::time::Duration;

use fencepost_testkit::needs;
use fencepost_testkit::server::Proxy;
use fencepost_testkit::sql::Postgres;
use fencepost_testkit::wait::eventually;

use crate::{Psql, SOON, await_blocked, await_open, builder, connect, number, registry, start, try_connect};

/// The setting of a user or a database is that of a session from its beginning, so a session stays without writes after it was taken back.
#[tokio::test]
async fn a_session_that_accepts_no_writes_is_replaced() {
    needs!(POSTGRES);
    let (server, url) = start().await;
    let user = "CREATE ROLE app LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO app; \
        ALTER ROLE app SET default_transaction_read_only = on";
    server.run(user).expect("made");
    let client = connect(&url.replace("fencepost@", "app@")).await;
    let mutex = client.mutex("lock").expect("a good name");
    let error = mutex.try_lock().await.expect_err("its session accepts no writes");
    assert!(error.to_string().contains("default_transaction_read_only"), "{error}");
    server.run("ALTER ROLE app RESET default_transaction_read_only").expect("set");
    let guard = mutex.try_lock().await.expect("another session accepts writes").expect("it is free");
    guard.release().await.expect("it was held");
    client.close().await;
}

/// Makes each transaction of a server read-only, as an operator does before another server becomes the primary. No connection ends by that.
async fn demote(server: &Postgres) {
    server.run("ALTER SYSTEM SET default_transaction_read_only = on").expect("set");
    server.run("SELECT pg_reload_conf()").expect("it reads its settings");
    eventually(SOON, "it is read-only", || async {
        server.run("SHOW transaction_read_only").expect("the server answers").trim() == "on"
    })
    .await;
}

/// The client would connect to the same server again, although the next one in its URL is the primary by now.
#[tokio::test]
async fn a_server_that_accepts_no_writes_is_passed_over() {
    needs!(POSTGRES);
    let servers = [start().await.0, start().await.0];
    let [one, two] = servers.each_ref().map(Postgres::address);
    // The second one is asked if the first one is silent for a quarter of this time.
    let url = format!("postgres://fencepost@{one},{two}/postgres?mode=table&connect_timeout=20s");
    let client = connect(&url).await;
    client
        .mutex("before")
        .expect("a good name")
        .lock()
        .await
        .expect("it is free")
        .release()
        .await
        .expect("it was held");
    demote(&servers[0]).await;
    // Its session has a row of its own. That of the other lease is at the first server alone, as no replication would leave it.
    let lock = client.mutex("lock").expect("a good name");
    // Long enough for a busy machine. A renewal comes after a third of it.
    let guard =
        tokio::time::timeout(SOON, lock.lock().ttl(Duration::from_secs(8))).await.expect("it answers");
    let guard = guard.expect("the second server grants it");
    let owned = "SELECT count(owner) FROM fencepost_lock";
    assert_eq!(number(&servers[1], owned), 1, "the second server has granted it");
    // The connection for renewals still leads to the first server.
    let renewed = "SELECT count(*) FROM fencepost_lock_session WHERE modified > created + interval '100 ms'";
    eventually(SOON, "the lease is renewed", || async { number(&servers[1], renewed) > 0 }).await;
    guard.release().await.expect("it was held");
    client.close().await;
    // A client that begins now passes over the first server, too.
    let client = connect(&url).await;
    client
        .mutex("after")
        .expect("a good name")
        .lock()
        .await
        .expect("it is free")
        .release()
        .await
        .expect("it was held");
    client.close().await;
}

/// During a switchover no server accepts writes for a while. A claim that waits asks again until one does.
#[tokio::test]
async fn a_claim_waits_while_no_server_accepts_writes() {
    needs!(POSTGRES);
    let servers = [start().await.0, start().await.0];
    let second = Proxy::start(servers[1].address()).expect("a free port");
    let [one, two] = [servers[0].address(), second.address()];
    // The second one is asked if the first one is silent for a quarter of this time.
    let url = format!("postgres://fencepost@{one},{two}/postgres?mode=table&connect_timeout=20s");
    let client = connect(&url).await;
    for server in &servers {
        demote(server).await;
    }
    let error = try_connect(&url).await.expect_err("no server accepts writes");
    assert!(error.to_string().contains("accepts no writes"), "{error}");
    let (mutex, tried) = (client.mutex("lock").expect("a good name"), second.passed());
    let waiting = tokio::spawn(async move { mutex.lock().await });
    eventually(SOON, "it asks again", || async { waiting.is_finished() || second.passed() >= tried + 3 })
        .await;
    servers[1].run("ALTER SYSTEM RESET default_transaction_read_only").expect("set");
    servers[1].run("SELECT pg_reload_conf()").expect("it reads its settings");
    let guard = tokio::time::timeout(SOON, waiting).await.expect("it is granted").expect("no panic");
    guard.expect("the second server grants it").release().await.expect("it was held");
    client.close().await;
}

/// Otherwise a waiter would hear no message of the new primary, and would only poll.
#[tokio::test]
async fn the_connection_for_messages_leaves_a_server_that_accepts_no_writes() {
    needs!(POSTGRES);
    let (one, two) = (start().await, start().await);
    for (server, _) in [&one, &two] {
        let user = "CREATE ROLE app LOGIN; \
            GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO app";
        server.run(user).expect("made");
    }
    // The second one is asked if the first one is silent for a quarter of this time.
    let [first, second] = [one.0.address(), two.0.address()];
    let url = format!("postgres://app@{first},{second}/postgres?mode=table&connect_timeout=20s");
    let (holder, next, waiter) = (connect(&one.1).await, connect(&two.1).await, connect(&url).await);
    let held = holder.mutex("lock").expect("a good name").lock().await.expect("it is free");
    // The waiter finds the lock held at the second server as well.
    let guard = next.mutex("lock").expect("a good name").lock().await.expect("it is free");
    let mutex = waiter.mutex("lock").expect("a good name");
    let waiting = tokio::spawn(async move { mutex.lock().ttl(Duration::from_secs(3)).await });
    let listens = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app' AND query LIKE 'LISTEN %'";
    eventually(SOON, "it listens", || async { number(&one.0, listens) == 1 }).await;
    demote(&one.0).await;
    eventually(SOON, "it listens at the second server", || async { number(&two.0, listens) == 1 }).await;
    eventually(SOON, "it does not listen at the first server any more", || async {
        number(&one.0, listens) == 0
    })
    .await;
    guard.release().await.expect("it was held");
    let guard = tokio::time::timeout(SOON, waiting).await.expect("it is granted").expect("no panic");
    // On a machine that stalls so short a lease may end before.
    drop(guard.expect("the second server grants it").release().await);
    drop(held);
    for client in [holder, next, waiter] {
        client.close().await;
    }
}

/// Counts the connections of the user `app`.
const CONNECTIONS: &str = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'";

/// Starts two servers, which have the same tables and the user `app`. Returns a URL that names both.
async fn start_two() -> ([Postgres; 2], String) {
    let servers = [start().await.0, start().await.0];
    for server in &servers {
        let user = "CREATE ROLE app LOGIN; \
            GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO app";
        server.run(user).expect("made");
    }
    let [one, two] = servers.each_ref().map(Postgres::address);
    // The second one is asked if the first one is silent for a quarter of this time.
    (servers, format!("postgres://app@{one},{two}/postgres?mode=table&connect_timeout=20s&timeout=60s"))
}

/// Locks rows of a server, so that the statements of claims wait.
async fn lock_rows(server: &Postgres) -> Psql {
    let mut rows = Psql::start(server);
    rows.send("BEGIN; SELECT name FROM fencepost_lock FOR UPDATE;");
    await_open(server).await;
    rows
}

/// Its transaction began before, so it may write. Statements that only read would find the former primary on it for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_in_use_leaves_a_server_that_accepts_no_writes() {
    needs!(POSTGRES);
    let (servers, url) = start_two().await;
    let client = connect(&url).await;
    let mutex = client.mutex("slow").expect("a good name");
    mutex.lock().await.expect("it is free").release().await.expect("it was held");
    let mut rows = lock_rows(&servers[0]).await;
    let trying = tokio::spawn(async move { mutex.try_lock().await });
    await_blocked(&servers[0], 1).await;
    let held = client.mutex("held").expect("a good name");
    let held = held.lock().ttl(Duration::from_secs(6)).await.expect("it is free");
    demote(&servers[0]).await;
    // The renewal finds that the server accepts no writes, and the next server has no row of the session.
    tokio::time::timeout(SOON, held.lost()).await.expect("it is told");
    rows.send("COMMIT;");
    rows.end();
    let granted = trying.await.expect("no panic").expect("its transaction began before");
    eventually(SOON, "no connection leads there", || async { number(&servers[0], CONNECTIONS) == 0 }).await;
    drop((held, granted));
    client.close().await;
}

/// The other connections lead there, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_leaves_a_server_that_accepts_no_writes() {
    needs!(POSTGRES);
    let (servers, url) = start_two().await;
    // No renewal finds it meanwhile.
    let ttl = Duration::from_secs(3600);
    let client = builder().ttl(ttl).connect(&registry(), &url).await.expect("it answers");
    let lock = |name: &str| client.mutex(name).expect("a good name");
    for name in ["one", "two"] {
        lock(name).lock().await.expect("it is free").release().await.expect("it was held");
    }
    let mut rows = lock_rows(&servers[0]).await;
    let trying = ["one", "two"].map(|name| {
        let mutex = lock(name);
        tokio::spawn(async move { mutex.lock().await })
    });
    await_blocked(&servers[0], 2).await;
    rows.send("COMMIT;");
    rows.end();
    for trying in trying {
        let guard = trying.await.expect("no panic").expect("it is free");
        guard.release().await.expect("it was held");
    }
    demote(&servers[0]).await;
    let shared = client.rwlock("shared").expect("a good name");
    // A shared lock is granted in a transaction.
    let guard = tokio::time::timeout(SOON, async { shared.read().await }).await.expect("it is granted");
    eventually(SOON, "no connection leads there", || async { number(&servers[0], CONNECTIONS) == 0 }).await;
    // The row of its session is at the first server alone, as no replication would leave it.
    drop(guard.expect("the second server grants it"));
    client.close().await;
}

/// The connection for messages is opened when the server is left. Waiters would hear nothing of the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_for_messages_that_is_being_opened_leaves_as_well() {
    needs!(POSTGRES);
    let (servers, url) = start_two().await;
    // One connection is for claims.
    let client = connect(&format!("{url}&connections=3")).await;
    let mutex = client.mutex("slow").expect("a good name");
    mutex.lock().await.expect("it is free").release().await.expect("it was held");
    let held = client.mutex("held").expect("a good name");
    let held = held.lock().ttl(Duration::from_secs(6)).await.expect("it is free");
    let mut rows = lock_rows(&servers[0]).await;
    let trying = tokio::spawn(async move { mutex.try_lock().await });
    await_blocked(&servers[0], 1).await;
    // A client that has held for a second listens. The proof that messages arrive waits for the connection for claims.
    let listens = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app' AND query LIKE 'LISTEN %'";
    eventually(SOON, "it begins to listen", || async { number(&servers[0], listens) == 1 }).await;
    demote(&servers[0]).await;
    tokio::time::timeout(SOON, held.lost()).await.expect("it is told");
    rows.send("COMMIT;");
    rows.end();
    let granted = trying.await.expect("no panic").expect("its transaction began before");
    eventually(SOON, "it listens at the second server", || async { number(&servers[1], listens) == 1 }).await;
    assert_eq!(number(&servers[0], listens), 0);
    drop((held, granted));
    client.close().await;
}

/// PostgreSQL 17 ends the session of a transaction that lasts for longer than `transaction_timeout`. A trigger gives the same error on each
/// version.
#[tokio::test]
async fn a_transaction_that_took_too_long_can_be_tried_again() {
    needs!(POSTGRES);
    let (server, url) = start().await;
    let client = connect(&url).await;
    let mutex = client.mutex("lock").expect("a good name");
    mutex.lock().await.expect("it is free").release().await.expect("it was held");
    let trigger = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql \
        AS 'BEGIN RAISE EXCEPTION USING ERRCODE = ''25P04'', MESSAGE = ''transaction timeout''; END'; \
        CREATE TRIGGER refuse BEFORE UPDATE ON fencepost_lock FOR EACH ROW EXECUTE FUNCTION refuse()";
    server.run(trigger).expect("made");
    let error = mutex.try_lock().await.expect_err("its transaction took too long");
    assert!(error.is_unreachable() && error.is_transient(), "{error}");
    server.run("DROP TRIGGER refuse ON fencepost_lock").expect("dropped");
    mutex.lock().await.expect("it is free").release().await.expect("it was held");
    client.close().await;
}
