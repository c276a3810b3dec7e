//! Tests of row locks on real servers: the transaction of the lock, its end, and locks in transactions of the caller's own.

mod own;
mod pooler;

use std::time::{Duration, Instant};

use fencepost_core::{Client, Eviction, Guard, Loss, Registry, Result};
use fencepost_postgres::tokio_postgres::RowTransaction;
use fencepost_testkit::needs;
use fencepost_testkit::sql::Postgres;
use fencepost_testkit::wait::eventually;

/// The time limit for events that should happen at once, on a busy machine.
const SOON: Duration = Duration::from_secs(30);

fn registry() -> Registry {
    fencepost_postgres::register(Registry::new())
}

/// Starts a server with the tables of row locks and a table of the caller.
async fn server() -> Postgres {
    let server = Postgres::start().expect("a server starts");
    let url = url(&server);
    Client::builder().apply_schema(&registry(), &url).await.expect("the superuser may make it");
    // Once more changes nothing, also as a script.
    Client::builder().apply_schema(&registry(), &url).await.expect("it is there");
    server.run(&registry().schema(&url).expect("a good URL")).expect("it is a script for psql");
    server
        .run("CREATE TABLE stock (id int PRIMARY KEY, pieces int); INSERT INTO stock VALUES (42, 10)")
        .expect("made");
    server
}

fn url(server: &Postgres) -> String {
    format!("{}?mode=row", server.url())
}

async fn try_connect(url: &str) -> Result<Client> {
    Client::builder().connect(&registry(), url).await
}

async fn connect(url: &str) -> Client {
    try_connect(url).await.expect("it answers")
}

async fn lock(client: &Client, name: &str) -> Guard {
    client.mutex(name).expect("a good name").lock().await.expect("it is free")
}

fn transaction(guard: &mut Guard) -> RowTransaction {
    RowTransaction::of(guard).expect("a row lock has one")
}

fn pieces(server: &Postgres) -> String {
    server.run("SELECT pieces FROM stock").expect("the server answers").trim().to_owned()
}

/// Returns the transactions of clients of fencepost that are open.
fn open(server: &Postgres) -> String {
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'fencepost_%' AND xact_start IS NOT NULL";
    server.run(count).expect("the server answers").trim().to_owned()
}

const SELL: &str = "UPDATE stock SET pieces = pieces - 3";

/// The change and the lock commit together.
#[tokio::test]
async fn a_release_commits_the_change() {
    needs!(POSTGRES);
    let server = server().await;
    let (client, other) = (connect(&url(&server)).await, connect(&url(&server)).await);
    let mut guard = lock(&client, "stock/42").await;
    let token = guard.token();
    transaction(&mut guard).client().execute(SELL, &[]).await.expect("it is open");
    assert_eq!(pieces(&server), "10", "nothing is committed yet");
    let mutex = other.mutex("stock/42").expect("a good name");
    assert!(mutex.try_lock().await.expect("busy is no error").is_none());
    guard.release().await.expect("it was held");
    assert_eq!(pieces(&server), "7");
    let next = mutex.try_lock().await.expect("no error").expect("it is free");
    assert!(next.token() > token);
    next.release().await.expect("it was held");
    assert_eq!(open(&server), "0");
    client.close().await;
    other.close().await;
}

#[tokio::test]
async fn a_drop_rolls_the_change_back() {
    needs!(POSTGRES);
    let server = server().await;
    let client = connect(&url(&server)).await;
    let mut guard = lock(&client, "stock/42").await;
    transaction(&mut guard).client().execute(SELL, &[]).await.expect("it is open");
    drop(guard);
    lock(&client, "stock/42").await.release().await.expect("it was held");
    assert_eq!(pieces(&server), "10");
    client.close().await;
}

/// A statement that fails does not free the lock. The release says that nothing was committed.
#[tokio::test]
async fn a_statement_that_fails_frees_nothing() {
    needs!(POSTGRES);
    let server = server().await;
    let (client, other) = (connect(&url(&server)).await, connect(&url(&server)).await);
    let mutex = other.mutex("stock/42").expect("a good name");
    for recovers in [false, true] {
        let mut guard = lock(&client, "stock/42").await;
        let transaction = transaction(&mut guard);
        transaction.client().execute(SELL, &[]).await.expect("it is open");
        transaction.client().batch_execute("SELECT 1 / 0").await.expect_err("it fails");
        // A renewal of a failed transaction tells that the lock is still there.
        guard.extend(Duration::from_secs(30)).await.expect("it is held");
        assert!(mutex.try_lock().await.expect("busy is no error").is_none());
        if recovers {
            transaction.client().batch_execute("ROLLBACK TO SAVEPOINT fencepost").await.expect("it is there");
            transaction.client().execute(SELL, &[]).await.expect("it is open");
            guard.release().await.expect("it was held");
        } else {
            let error = guard.release().await.expect_err("nothing can be committed");
            let text = format!("{error} {:?}", std::error::Error::source(&error).map(ToString::to_string));
            assert!(text.contains("nothing of it was committed"), "{text}");
        }
        let next = mutex.lock().wait(SOON).await.expect("it is free");
        next.release().await.expect("it was held");
    }
    assert_eq!(pieces(&server), "7");
    client.close().await;
    other.close().await;
}

/// A COMMIT of the holder frees the lock. Its renewal and its release notice.
#[tokio::test]
async fn a_commit_of_the_holder_is_noticed() {
    needs!(POSTGRES);
    let server = server().await;
    let client = connect(&url(&server)).await;
    for renews in [true, false] {
        let mut guard = lock(&client, "stock/42").await;
        transaction(&mut guard).client().batch_execute("COMMIT").await.expect("nobody forbids it");
        if renews {
            let error = guard.extend(Duration::from_secs(30)).await.expect_err("the lock is free");
            assert!(error.is_lost(), "{error}");
            assert!(guard.ensure_held().is_err());
        }
        let error = guard.release().await.expect_err("the lock was free");
        assert!(error.is_lost(), "{error}");
    }
    client.close().await;
}

/// The holder is told at once when its backend ends: the test prints the time. Another client gets the lock, and nothing was written.
#[tokio::test]
async fn a_holder_whose_backend_is_ended_is_told() {
    needs!(POSTGRES);
    let server = server().await;
    let (client, other) = (connect(&url(&server)).await, connect(&url(&server)).await);
    let mut guard = lock(&client, "stock/42").await;
    transaction(&mut guard).client().execute(SELL, &[]).await.expect("it is open");
    let (killer, connection) =
        tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.expect("it answers");
    tokio::spawn(connection);
    let end = "SELECT pg_terminate_backend(connection::int4) FROM fencepost.row_claim";
    let start = Instant::now();
    killer.batch_execute(end).await.expect("it can be ended");
    let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
    println!("told after {:?}", start.elapsed());
    assert_eq!(lost, Loss::SessionEnded);
    let next = lock(&other, "stock/42").await;
    assert!(next.token() > guard.token());
    assert!(guard.release().await.expect_err("it was lost").is_lost());
    assert_eq!(pieces(&server), "10");
    next.release().await.expect("it was held");
    client.close().await;
    other.close().await;
}

/// A silent holder's statement keeps its lock, and a renewal waits behind it. If it lasts longer than the lease, the lock is lost and
/// nothing is committed.
#[tokio::test]
async fn a_renewal_waits_for_a_statement_of_the_holder() {
    needs!(POSTGRES);
    let server = server().await;
    let (client, other) = (connect(&url(&server)).await, connect(&url(&server)).await);
    let mutex = client.mutex("stock/42").expect("a good name");
    // Each statement takes longer than a third of the lease, and all of them longer than the lease.
    let mut guard = mutex.lock().ttl(Duration::from_secs(3)).await.expect("it is free");
    let transaction = transaction(&mut guard);
    for _ in 0..3 {
        transaction.client().batch_execute("SELECT pg_sleep(1.5)").await.expect("it is open");
        guard.ensure_held().expect("a renewal got through");
    }
    transaction.client().execute(SELL, &[]).await.expect("it is open");
    guard.release().await.expect("it was held");
    assert_eq!(pieces(&server), "7");
    let mut guard = mutex.lock().ttl(Duration::from_secs(1)).await.expect("it is free");
    let held = self::transaction(&mut guard);
    held.client().execute(SELL, &[]).await.expect("it is open");
    let long = held.client().batch_execute("SELECT pg_sleep(600)");
    let next = async { lock(&other, "stock/42").await };
    // The lock is free only when the statement has been cancelled.
    let (long, next) = tokio::time::timeout(SOON, async { tokio::join!(long, next) }).await.expect("it ends");
    long.expect_err("it was cancelled");
    assert!(guard.ensure_held().expect_err("its lease is over").is_lost());
    assert!(guard.release().await.expect_err("its lease is over").is_lost());
    assert_eq!(pieces(&server), "7");
    next.release().await.expect("it was held");
    client.close().await;
    other.close().await;
}

/// The server itself ends a holder that falls silent: the client's process is stopped, or its network is cut.
#[tokio::test]
async fn the_lease_is_the_server_s() {
    needs!(POSTGRES);
    let server = server().await;
    let client = connect(&url(&server)).await;
    let guard = client
        .mutex("lock")
        .expect("a good name")
        .lock()
        .ttl(Duration::from_millis(1_500))
        .await
        .expect("free");
    let setting = "SELECT count(*) FROM pg_stat_activity a, fencepost.row_claim c WHERE a.pid = c.connection \
                   AND a.state = 'idle in transaction'";
    assert_eq!(server.run(setting).expect("the server answers").trim(), "1");
    // Renewals restart it.
    let until = guard.valid_until();
    eventually(SOON, "it is renewed", || async {
        guard.valid_until() > until + Duration::from_millis(1_500)
    })
    .await;
    guard.ensure_held().expect("it is renewed");
    guard.release().await.expect("it was held");
    client.close().await;
}

/// One thousand guards and waiters that are dropped at random moments leave no transaction and no note.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drops_at_random_moments_leave_nothing() {
    needs!(POSTGRES);
    let server = server().await;
    let url = format!("{}&connections=60", url(&server));
    let client = connect(&url).await;
    let mut tasks = Vec::new();
    for task in 0..20_u64 {
        let client = client.clone();
        tasks.push(tokio::spawn(async move {
            let mut granted = 0;
            for round in 0..50_u64 {
                let micros = (task * 50 + round).wrapping_mul(0x9e37_79b9_7f4a_7c15) % 300_000;
                let mutex = client.mutex(&format!("lock/{}", (task + round) % 5)).expect("a good name");
                let request = mutex.lock().into_future();
                if let Ok(guard) = tokio::time::timeout(Duration::from_micros(micros), request).await {
                    drop(guard.expect("no connection is missing"));
                    granted += 1;
                }
            }
            granted
        }));
    }
    let mut granted = 0;
    for task in tasks {
        granted += task.await.expect("no task panics");
    }
    println!("{granted} of 1000 were granted");
    eventually(SOON, "no transaction is open", || async { open(&server) == "0" }).await;
    eventually(SOON, "no note is left", || async {
        server.run("SELECT count(*) FROM fencepost.row_claim").expect("the server answers").trim() == "0"
    })
    .await;
    for name in 0..5 {
        lock(&client, &format!("lock/{name}")).await.release().await.expect("it was held");
    }
    client.close().await;
}

/// A client refuses a lock for which it has no connection.
#[tokio::test]
async fn a_lock_beyond_the_connections_is_refused() {
    needs!(POSTGRES);
    let server = server().await;
    let client = connect(&format!("{}&connections=2", url(&server))).await;
    let (one, two) = (lock(&client, "one").await, lock(&client, "two").await);
    let error = client.mutex("three").expect("a good name").lock().await.expect_err("there is no connection");
    assert!(error.to_string().contains("raise connections="), "{error}");
    one.release().await.expect("it was held");
    lock(&client, "three").await.release().await.expect("it was held");
    two.release().await.expect("it was held");
    client.close().await;
}

#[tokio::test]
async fn what_is_missing_is_named() {
    needs!(POSTGRES);
    let bare = Postgres::start().expect("a server starts");
    let error = try_connect(&url(&bare)).await.expect_err("there are no tables");
    assert!(error.is_configuration() && error.to_string().contains("fencepost schema --apply"), "{error}");
    let server = server().await;
    server.run("CREATE ROLE app LOGIN").expect("made");
    let app = format!("postgres://app@{}/postgres?mode=row", server.address());
    let error = try_connect(&app).await.expect_err("it has no rights");
    assert!(error.is_denied() && error.to_string().contains("fencepost schema"), "{error}");
    // The comments of the schema name the rights.
    let schema = registry().schema(&app).expect("a good URL");
    let rights: String = schema.lines().filter_map(|line| line.strip_prefix("--     ")).collect();
    server.run(&rights).expect("granted");
    let client = connect(&app).await;
    lock(&client, "lock").await.release().await.expect("it was held");
    let semaphore = client.semaphore("pool", 3);
    let error = match semaphore {
        Ok(semaphore) => semaphore.acquire().await.expect_err("there are no permits"),
        Err(error) => error,
    };
    assert!(error.is_unsupported(), "{error}");
    client.close().await;
}

/// A row that somebody deletes is made again.
#[tokio::test]
async fn a_deleted_row_is_made_again() {
    needs!(POSTGRES);
    let server = server().await;
    let client = connect(&url(&server)).await;
    lock(&client, "lock").await.release().await.expect("it was held");
    server.run("DELETE FROM fencepost.row WHERE name = 'lock'").expect("it can be deleted");
    lock(&client, "lock").await.release().await.expect("it was held");
    client.close().await;
}

/// An eviction at once ends the holder's connection.
#[tokio::test]
async fn an_eviction_at_once_undoes_the_change() {
    needs!(POSTGRES);
    let server = server().await;
    let (client, operator) = (connect(&url(&server)).await, connect(&url(&server)).await);
    let mut guard = lock(&client, "stock/42").await;
    transaction(&mut guard).client().execute(SELL, &[]).await.expect("it is open");
    operator.evict("stock/42", guard.token(), &Eviction::new(true)).await.expect("it is held");
    tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
    lock(&operator, "stock/42").await.release().await.expect("it was held");
    assert!(guard.release().await.expect_err("it was evicted").is_lost());
    assert_eq!(pieces(&server), "10");
    let report = operator.examine().await.expect("it answers");
    assert!(format!("{report:?}").contains("transactions"), "{report:?}");
    client.close().await;
    operator.close().await;
}
