//! Tests of the MySQL engine on real servers: statements, tokens, ended connections, users, TLS.

mod demoted;
mod dropped;
mod ends;
mod faults;
mod groups;
mod idle;
mod impatient;
mod operators;
mod rotated;
mod tokens;
mod users;

use std::time::Duration;

use fencepost_core::{Client, ClientBuilder, Guard, Registry, Result};
use fencepost_testkit::needs;
use fencepost_testkit::sql::MariaDb;
use fencepost_testkit::wait::eventually;

/// The time limit for events that should happen at once, on a busy machine.
const SOON: Duration = Duration::from_secs(30);

fn registry() -> Registry {
    fencepost_mysql::register(Registry::new())
}

/// Runs in the other process of a test; does nothing in this one.
#[test]
fn hold_elsewhere() {
    fencepost_testkit::conformance::hold_elsewhere(&registry());
}

async fn try_connect(url: &str) -> Result<Client> {
    builder().connect(&registry(), url).await
}

/// The options of a client whose requests have as much time as a busy machine needs.
fn builder() -> ClientBuilder {
    Client::builder().attempt_timeout(SOON).release_timeout(SOON)
}

async fn connect(url: &str) -> Client {
    try_connect(url).await.expect("it answers")
}

/// Readers and semaphores need the lease table, and the error says so.
#[tokio::test]
async fn other_modes_are_refused_with_advice() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    let client = connect(&server.url()).await;
    let shared = client.rwlock("lock").err();
    let permits = client.semaphore("pool", 2).err();
    for (error, what) in [(shared, "no shared holders"), (permits, "no permits")] {
        let error = error.expect("GET_LOCK is exclusive");
        let text = error.to_string();
        assert!(error.is_unsupported() && text.contains(what) && text.contains("use mode=table"), "{text}");
    }
    client.close().await;
}

/// Counts the locks of a server that are held.
fn locks(server: &MariaDb) -> String {
    let count = "SELECT COUNT(*) FROM fencepost_token WHERE IS_USED_LOCK(lock_name) IS NOT NULL";
    server.run(count).expect("the server answers").trim().to_owned()
}

/// Returns when so many claims stand in the server's queues.
async fn await_waiting(server: &MariaDb, count: usize) {
    let waits = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'";
    eventually(SOON, "they stand in the queue", || async {
        server.run(waits).expect("the server answers").trim() == count.to_string()
    })
    .await;
}

/// Counts the statements that clients have sent.
fn statements(server: &MariaDb) -> u64 {
    let counts = server.run("SHOW GLOBAL STATUS WHERE Variable_name IN ('Com_stmt_execute', 'Com_insert')");
    let counts = counts.expect("the server answers");
    let executed = counts.lines().find_map(|row| row.strip_prefix("Com_stmt_execute\t"));
    executed.and_then(|count| count.parse().ok()).expect("it is a number")
}

/// An uncontended cycle is one statement to acquire and one to release.
#[tokio::test]
async fn an_uncontended_cycle_is_two_statements() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    let client = connect(&server.url()).await;
    let mutex = client.mutex("lock").expect("a good name");
    mutex.lock().await.expect("it is free").release().await.expect("it was held");
    let before = statements(&server);
    for _ in 0..100 {
        mutex.lock().await.expect("it is free").release().await.expect("it was held");
    }
    assert_eq!(statements(&server) - before, 200);
    client.close().await;
}

/// Names that the server takes for one are two locks, and names of any characters and length work.
#[tokio::test]
async fn names_that_differ_in_case_are_two_locks() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    let client = connect(&server.url()).await;
    let long = "日".repeat(85);
    let mut guards = Vec::new();
    for name in ["lock", "Lock", "LOCK", "löck", "lock lock", "lock'", "lock\\", "%", &long] {
        let mutex = client.mutex(name).expect("a good name");
        guards.push(mutex.try_lock().await.expect("it answers").expect("it is free"));
    }
    assert_eq!(locks(&server), guards.len().to_string());
    let held = "SELECT IS_USED_LOCK('fencepost:lock') IS NOT NULL";
    assert_eq!(server.run(held).expect("the server answers").trim(), "1");
    for guard in guards {
        guard.release().await.expect("it was held");
    }
    client.close().await;
}

/// Waiters for other names do not need a connection that a held lock has.
#[tokio::test]
async fn more_waiters_than_connections_are_all_granted() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    let (client, holder) =
        (connect(&format!("{}?connections=6", server.url())).await, connect(&server.url()).await);
    let names: Vec<String> = (0..20).map(|number| format!("lock/{number}")).collect();
    let mut held = Vec::new();
    for name in &names {
        held.push(holder.mutex(name).expect("a good name").lock().await.expect("it is free"));
    }
    let mut waiting = Vec::new();
    for name in &names {
        let mutex = client.mutex(name).expect("a good name");
        waiting.push(tokio::spawn(async move { mutex.lock().await?.release().await }));
    }
    for guard in held {
        guard.release().await.expect("it was held");
    }
    for task in waiting {
        let done = tokio::time::timeout(SOON, task).await.expect("it is granted").expect("no panic");
        done.expect("it was held");
    }
    // Those of the client, one of the holder, and the one that asks.
    let connections = "SELECT COUNT(*) <= 6 + 1 + 1 FROM information_schema.PROCESSLIST WHERE USER = 'root'";
    assert_eq!(server.run(connections).expect("the server answers").trim(), "1");
    client.close().await;
    holder.close().await;
    assert_eq!(locks(&server), "0");
}

/// Claims that hold the connections for waiting must not keep others from a lock that is free.
#[tokio::test]
async fn a_claim_without_a_connection_gets_a_lock_that_is_free() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    let (client, holder) =
        (connect(&format!("{}?connections=2", server.url())).await, connect(&server.url()).await);
    let mut held = Vec::new();
    for name in ["one", "two"] {
        held.push(holder.mutex(name).expect("a good name").lock().await.expect("it is free"));
    }
    let wait = |name: &str| {
        let mutex = client.mutex(name).expect("a good name");
        tokio::spawn(async move { mutex.lock().await })
    };
    let one = wait("one");
    await_waiting(&server, 1).await;
    held.remove(0).release().await.expect("it was held");
    let granted = async |task: tokio::task::JoinHandle<Result<Guard>>| {
        tokio::time::timeout(SOON, task).await.expect("it is granted").expect("no panic").expect("granted")
    };
    let one = granted(one).await;
    // The only connection for waiting holds this lock.
    let two = wait("two");
    held.remove(0).release().await.expect("it was held");
    let two = granted(two).await;
    assert_eq!(locks(&server), "2");
    for guard in [one, two] {
        guard.release().await.expect("it was held");
    }
    client.close().await;
    holder.close().await;
    assert_eq!(locks(&server), "0");
}
