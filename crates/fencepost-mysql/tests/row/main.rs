//! Tests of row locks on real servers: the transaction of the lock, its end, and locks in transactions of the caller's own.

mod own;

use std::time::{Duration, Instant};

use fencepost_core::{Client, Eviction, Guard, Loss, Registry, Result};
use fencepost_mysql::mysql_async::RowTransaction;
use fencepost_testkit::needs;
use fencepost_testkit::sql::MariaDb;
use fencepost_testkit::wait::eventually;
use mysql_async::params;

/// The time limit for events that should happen at once, on a busy machine.
const SOON: Duration = Duration::from_secs(30);

fn registry() -> Registry {
    fencepost_mysql::register(Registry::new())
}

/// Starts a server with the tables of row locks and a table of the caller.
async fn server() -> MariaDb {
    let server = MariaDb::start().expect("a server starts");
    let url = url(&server);
    Client::builder().apply_schema(&registry(), &url).await.expect("the superuser may make it");
    // Once more changes nothing, also as a script.
    Client::builder().apply_schema(&registry(), &url).await.expect("it is there");
    run(&server, &registry().schema(&url).expect("a good URL"));
    run(&server, "CREATE TABLE stock (id INT PRIMARY KEY, pieces INT); INSERT INTO stock VALUES (42, 10)");
    server
}

fn url(server: &MariaDb) -> String {
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

fn run(server: &MariaDb, statements: &str) -> String {
    server.run(statements).expect("the server answers").trim().to_owned()
}

fn pieces(server: &MariaDb) -> String {
    run(server, "SELECT pieces FROM stock")
}

/// Returns the number of transactions that are open. The server refreshes its list only if nobody has read the list for 100 ms.
fn open(server: &MariaDb) -> String {
    run(server, "DO SLEEP(0.12); SELECT COUNT(*) FROM information_schema.INNODB_TRX")
}

const SELL: &str = "UPDATE stock SET pieces = pieces - 3";

/// Sells three pieces.
async fn sell(guard: &mut Guard) {
    let sold = transaction(guard).execute(SELL, ()).await.expect("it is open");
    assert_eq!(sold.affected_rows, 1);
}

/// The change and the lock commit together.
#[tokio::test]
async fn a_release_commits_the_change() {
    needs!(MARIADB);
    let server = server().await;
    let (client, other) = (connect(&url(&server)).await, connect(&url(&server)).await);
    let mut guard = lock(&client, "stock/42").await;
    let token = guard.token();
    let sold = transaction(&mut guard);
    let update = "UPDATE stock SET pieces = pieces - :sold WHERE id = :id";
    let params = params! { "sold" => 3, "id" => 42 };
    assert_eq!(sold.execute(update, params).await.expect("it is open").affected_rows, 1);
    let read = sold.execute("SELECT pieces FROM stock WHERE id = ?", (42,)).await.expect("it is open");
    assert_eq!(read.rows.into_iter().map(mysql_async::from_row::<i64>).collect::<Vec<_>>(), [7]);
    let error = sold.execute("SELECT ?, ?", (42,)).await.expect_err("a value is missing");
    assert!(error.to_string().contains("takes 2 parameters"), "{error}");
    assert_eq!(pieces(&server), "10", "nothing is committed yet");
    let mutex = other.mutex("stock/42").expect("a good name");
    assert!(mutex.try_lock().await.expect("busy is no error").is_none());
    guard.release().await.expect("it was held");
    assert_eq!(pieces(&server), "7");
    sold.execute(SELL, ()).await.expect_err("the transaction is over");
    let next = mutex.try_lock().await.expect("no error").expect("it is free");
    assert!(next.token() > token);
    next.release().await.expect("it was held");
    assert_eq!(open(&server), "0");
    client.close().await;
    other.close().await;
}

#[tokio::test]
async fn a_drop_rolls_the_change_back() {
    needs!(MARIADB);
    let server = server().await;
    let client = connect(&url(&server)).await;
    let mut guard = lock(&client, "stock/42").await;
    sell(&mut guard).await;
    drop(guard);
    lock(&client, "stock/42").await.release().await.expect("it was held");
    assert_eq!(pieces(&server), "10");
    client.close().await;
}

/// A statement that fails is undone alone, and does not free the lock.
#[tokio::test]
async fn a_statement_that_fails_frees_nothing() {
    needs!(MARIADB);
    let server = server().await;
    let (client, other) = (connect(&url(&server)).await, connect(&url(&server)).await);
    let mut guard = lock(&client, "stock/42").await;
    sell(&mut guard).await;
    let error = transaction(&mut guard).execute("INSERT INTO stock VALUES (42, 1)", ()).await;
    assert!(error.expect_err("it is there").to_string().contains("Duplicate"));
    guard.extend(Duration::from_secs(30)).await.expect("it is held");
    let mutex = other.mutex("stock/42").expect("a good name");
    assert!(mutex.try_lock().await.expect("busy is no error").is_none());
    guard.release().await.expect("it was held");
    assert_eq!(pieces(&server), "7");
    client.close().await;
    other.close().await;
}

/// A statement that ends the transaction frees the lock. The holder is told, and what follows is not committed.
#[tokio::test]
async fn an_end_by_the_holder_is_noticed() {
    needs!(MARIADB);
    let server = server().await;
    let client = connect(&url(&server)).await;
    for end in ["COMMIT", "ROLLBACK", "CREATE TABLE IF NOT EXISTS other (id INT)", "SET autocommit = 1"] {
        let mut guard = lock(&client, "stock/42").await;
        transaction(&mut guard).execute(end, ()).await.expect("nobody forbids it");
        let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
        assert_eq!(lost, Loss::SessionEnded, "{end}");
        assert!(guard.release().await.expect_err("the lock was free").is_lost(), "{end}");
    }
    // Another transaction on the connection is not the lock's: the release finds that out.
    for begin in ["BEGIN", "COMMIT AND CHAIN"] {
        let mut guard = lock(&client, "stock/42").await;
        transaction(&mut guard).execute(begin, ()).await.expect("nobody forbids it");
        sell(&mut guard).await;
        assert!(guard.release().await.expect_err("the lock was free").is_lost(), "{begin}");
    }
    assert_eq!(pieces(&server), "10");
    lock(&client, "stock/42").await.release().await.expect("it was held");
    client.close().await;
}

/// The server rolls a transaction back whose wait for another one would never end. The holder is told at once.
#[tokio::test]
async fn a_deadlock_ends_the_lock() {
    needs!(MARIADB);
    let server = server().await;
    run(&server, "INSERT INTO stock VALUES (43, 10)");
    let client = connect(&url(&server)).await;
    let (mut one, mut two) = (lock(&client, "stock/42").await, lock(&client, "stock/43").await);
    let (first, second) = (transaction(&mut one), transaction(&mut two));
    let sell = |id: i32| (id,);
    let update = "UPDATE stock SET pieces = pieces - 3 WHERE id = ?";
    first.execute(update, sell(42)).await.expect("it is free");
    second.execute(update, sell(43)).await.expect("it is free");
    // One of them waits for the other. The second one to wait fails, or makes the first one fail.
    let (waits, fails) = tokio::join!(first.execute(update, sell(43)), second.execute(update, sell(42)));
    assert!(waits.is_ok() != fails.is_ok(), "one is undone");
    let (kept, ended) = if waits.is_ok() { (one, two) } else { (two, one) };
    tokio::time::timeout(SOON, ended.lost()).await.expect("it is told");
    assert!(ended.release().await.expect_err("it was undone").is_lost());
    kept.release().await.expect("it was held");
    assert_eq!(run(&server, "SELECT pieces FROM stock ORDER BY id"), "7\n7");
    client.close().await;
}

/// The holder is told at once when its session ends: the test prints the time. Another client gets the lock, and nothing was written.
#[tokio::test]
async fn a_holder_whose_session_is_ended_is_told() {
    needs!(MARIADB);
    let server = server().await;
    let (client, other) = (connect(&url(&server)).await, connect(&url(&server)).await);
    let mut guard = lock(&client, "stock/42").await;
    sell(&mut guard).await;
    let session = run(&server, "SELECT connection FROM fencepost_row_claim");
    let start = Instant::now();
    run(&server, &format!("KILL {session}"));
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

/// A renewal waits behind a statement of the holder. One that lasts longer than the lease is ended, and nothing is committed.
#[tokio::test]
async fn a_statement_longer_than_the_lease_is_ended() {
    needs!(MARIADB);
    let server = server().await;
    let (client, other) = (connect(&url(&server)).await, connect(&url(&server)).await);
    let mutex = client.mutex("stock/42").expect("a good name");
    let mut guard = mutex.lock().ttl(Duration::from_secs(1)).await.expect("it is free");
    sell(&mut guard).await;
    let held = transaction(&mut guard);
    let long = held.execute("SELECT SLEEP(600)", ());
    let next = async { lock(&other, "stock/42").await };
    // The lock is free only when the statement has been ended.
    let (long, next) = tokio::time::timeout(SOON, async { tokio::join!(long, next) }).await.expect("it ends");
    long.expect_err("it was ended");
    assert!(guard.ensure_held().expect_err("its lease is over").is_lost());
    assert!(guard.release().await.expect_err("its lease is over").is_lost());
    assert_eq!(pieces(&server), "10");
    next.release().await.expect("it was held");
    client.close().await;
    other.close().await;
}

/// One thousand guards and waiters that are dropped at random moments leave no transaction and no note.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drops_at_random_moments_leave_nothing() {
    needs!(MARIADB);
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
        run(&server, "SELECT COUNT(*) FROM fencepost_row_claim") == "0"
    })
    .await;
    for name in 0..5 {
        lock(&client, &format!("lock/{name}")).await.release().await.expect("it was held");
    }
    client.close().await;
}

#[tokio::test]
async fn what_is_missing_is_named() {
    needs!(MARIADB);
    let bare = MariaDb::start().expect("a server starts");
    let error = try_connect(&url(&bare)).await.expect_err("there are no tables");
    assert!(error.is_configuration() && error.to_string().contains("fencepost schema --apply"), "{error}");
    let server = server().await;
    run(&server, "CREATE USER app");
    let app = url(&server).replace("root@", "app@");
    let error = try_connect(&app).await.expect_err("it has no rights");
    assert!(error.is_denied(), "{error}");
    // The comments of the schema name the rights.
    let schema = registry().schema(&app).expect("a good URL");
    let rights: String =
        schema.lines().filter_map(|line| Some(format!("{};", line.strip_prefix("--     ")?))).collect();
    run(&server, &rights);
    let client = connect(&app).await;
    lock(&client, "lock").await.release().await.expect("it was held");
    let error = match client.semaphore("pool", 3) {
        Ok(semaphore) => semaphore.acquire().await.expect_err("there are no permits"),
        Err(error) => error,
    };
    assert!(error.is_unsupported(), "{error}");
    client.close().await;
}

/// A row that somebody deletes is made again. A client refuses a lock for which it has no connection.
#[tokio::test]
async fn rows_and_connections_that_are_missing() {
    needs!(MARIADB);
    let server = server().await;
    let client = connect(&format!("{}&connections=2", url(&server))).await;
    lock(&client, "one").await.release().await.expect("it was held");
    run(&server, "DELETE FROM fencepost_row WHERE name = 'one'");
    let (one, two) = (lock(&client, "one").await, lock(&client, "two").await);
    let error = client.mutex("three").expect("a good name").lock().await.expect_err("there is no connection");
    assert!(error.to_string().contains("raise connections="), "{error}");
    one.release().await.expect("it was held");
    lock(&client, "three").await.release().await.expect("it was held");
    two.release().await.expect("it was held");
    client.close().await;
}

/// An eviction at once ends the holder's session.
#[tokio::test]
async fn an_eviction_at_once_undoes_the_change() {
    needs!(MARIADB);
    let server = server().await;
    let (client, operator) = (connect(&url(&server)).await, connect(&url(&server)).await);
    let mut guard = lock(&client, "stock/42").await;
    sell(&mut guard).await;
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
