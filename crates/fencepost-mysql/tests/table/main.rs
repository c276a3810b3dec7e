//! Tests of the lease table on real servers: statements, renewal, waits, tokens, users.

mod cleaning;
mod deleted;
mod ends;
mod fixed;
mod schema;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fencepost_core::{Client, ClientBuilder, Registry, Result};
use fencepost_testkit::needs;
use fencepost_testkit::sql::MariaDb;
use fencepost_testkit::wait::eventually;

/// The time limit for events that should happen at once, on a busy machine.
const SOON: Duration = Duration::from_secs(30);

fn registry() -> Registry {
    fencepost_mysql::register(Registry::new())
}

async fn try_connect(url: &str) -> Result<Client> {
    builder().connect(&registry(), url).await
}

/// The options of a client whose requests have as much time as a busy machine needs. Some tests lock rows for longer than the usual limits.
fn builder() -> ClientBuilder {
    Client::builder().attempt_timeout(SOON).release_timeout(SOON)
}

async fn connect(url: &str) -> Client {
    try_connect(url).await.expect("it answers")
}

/// A server with the tables, and the URL.
async fn start() -> (MariaDb, String) {
    let server = MariaDb::start().expect("a server starts");
    let url = format!("{}?mode=table", server.url());
    Client::builder().apply_schema(&registry(), &url).await.expect("the tables can be made");
    (server, url)
}

fn run(server: &MariaDb, statement: &str) -> String {
    server.run(statement).expect("the server answers").trim().to_owned()
}

fn number(server: &MariaDb, query: &str) -> i64 {
    run(server, query).parse().expect("it is a number")
}

/// Sums the server's counters of these names.
fn count(server: &MariaDb, names: &str) -> i64 {
    let counts = run(server, &format!("SHOW GLOBAL STATUS WHERE Variable_name IN ({names})"));
    counts.lines().filter_map(|row| row.split_once('\t')?.1.parse::<i64>().ok()).sum()
}

/// The counters of statements that belong to transactions.
const TRANSACTIONS: &str = "'Com_set_option', 'Com_begin', 'Com_commit', 'Com_rollback'";

/// Returns how many statements clients have sent: prepared ones, and those that belong to transactions.
fn sent(server: &MariaDb) -> (i64, i64) {
    (count(server, "'Com_stmt_execute'"), count(server, TRANSACTIONS))
}

async fn cycle(mutex: &fencepost_core::Mutex) {
    mutex.lock().await.expect("it is free").release().await.expect("it was held");
}

/// Returns when so many claims wait in the table.
async fn await_waiting(server: &MariaDb, count: i64) {
    let waits = "SELECT COUNT(*) FROM fencepost_lock_queue WHERE token = 0";
    eventually(SOON, "they wait", || async { number(server, waits) == count }).await;
}

/// Runs statements by the server's own client, and returns when they sleep. It begins anew if they have slept between two looks, because the
/// machine has stalled.
async fn by_hand_until_it_sleeps(server: &MariaDb, statements: &str, prepare: impl Fn()) -> Child {
    loop {
        prepare();
        let mut child = Command::new("mariadb")
            .args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--user=root"])
            .args(["--database=fencepost", "--execute", statements, "--port"])
            .arg(server.address().port().to_string())
            .stdout(Stdio::null())
            .spawn()
            .expect("the client is there");
        let sleeps = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = 'User sleep'";
        let mut has_ended = false;
        eventually(SOON, "it sleeps", || {
            has_ended = child.try_wait().expect("it can be asked").is_some();
            let sleeps = number(server, sleeps) == 1;
            async move { sleeps || has_ended }
        })
        .await;
        if !has_ended {
            return child;
        }
        assert!(child.wait().expect("it has ended").success(), "a statement failed");
    }
}

/// An uncontended cycle of an exclusive lock is one statement to acquire and one to release, each a transaction of its own.
#[tokio::test]
async fn an_uncontended_cycle_is_two_statements() {
    needs!(MARIADB);
    let (server, url) = start().await;
    // No renewal falls into the count: the first one comes after a third of the lease.
    let ttl = Duration::from_secs(3600);
    let client = builder().ttl(ttl).connect(&registry(), &url).await.expect("it answers");
    let mutex = client.mutex("lock").expect("a good name");
    cycle(&mutex).await;
    let before = sent(&server);
    for _ in 0..100 {
        cycle(&mutex).await;
    }
    let after = sent(&server);
    assert_eq!((after.0 - before.0, after.1 - before.1), (200, 0));
    client.close().await;
    assert_eq!(
        number(&server, "SELECT COUNT(*) FROM fencepost_lock_session"),
        0,
        "a closed client leaves no session"
    );
}

/// Two statements renew all locks of a process: the first one reads which of them are still its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_locks_are_renewed_by_two_statements() {
    needs!(MARIADB);
    let (server, url) = start().await;
    // The test counts renewals; a commit need not reach the disk for that.
    run(&server, "SET GLOBAL innodb_flush_log_at_trx_commit = 0");
    let ttl = Duration::from_secs(12);
    let client = Client::builder().ttl(ttl).connect(&registry(), &url).await.expect("it answers");
    let mut tasks = Vec::new();
    for part in 0..50 {
        let client = client.clone();
        tasks.push(tokio::spawn(async move {
            let mut guards = Vec::new();
            for number in 0..40 {
                let mutex = client.mutex(&format!("lock/{part}/{number}")).expect("a good name");
                guards.push(mutex.lock().await.expect("it is free"));
            }
            guards
        }));
    }
    let mut guards = Vec::new();
    for task in tasks {
        guards.extend(task.await.expect("no panic"));
    }
    let renewed = async || {
        let before = guards[0].valid_until();
        eventually(SOON, "it is renewed", || async { guards[0].valid_until() > before }).await;
    };
    // The names are in the text of the renewal, so it is not prepared.
    let sent = || {
        let others = count(&server, &format!("'Com_insert', 'Com_delete', {TRANSACTIONS}"));
        [count(&server, "'Com_select'"), count(&server, "'Com_update'"), others]
    };
    loop {
        renewed().await;
        let (before, began) = (sent(), Instant::now());
        renewed().await;
        let until = guards[0].valid_until();
        eventually(SOON, "all are renewed", || async {
            guards.iter().all(|guard| guard.valid_until() >= until)
        })
        .await;
        let after = sent();
        // The count of a machine that stalls has the next renewal in it.
        if began.elapsed() < ttl / 2 {
            break assert_eq!(std::array::from_fn(|kind| after[kind] - before[kind]), [1, 1, 0]);
        }
    }
    assert!(guards.iter().all(|guard| guard.ensure_held().is_ok()));
    drop(guards);
    client.close().await;
}

/// A waiter of the same client is told of its grant at once. A waiter of another process polls, and gets it all the same.
#[tokio::test]
async fn a_release_grants_the_next_waiter() {
    needs!(MARIADB);
    let (server, url) = start().await;
    let (one, two) = (connect(&url).await, connect(&url).await);
    for waits in [&one, &two] {
        let mut times = Vec::new();
        for _ in 0..20 {
            let guard = one.mutex("lock").expect("a good name").lock().await.expect("it is free");
            let theirs = waits.mutex("lock").expect("a good name");
            let waiting =
                tokio::spawn(async move { theirs.lock().await.map(|guard| (guard, Instant::now())) });
            await_waiting(&server, 1).await;
            let released = Instant::now();
            guard.release().await.expect("it was held");
            let (next, granted) = tokio::time::timeout(SOON, waiting)
                .await
                .expect("it is granted")
                .expect("no panic")
                .expect("granted");
            times.push(granted.saturating_duration_since(released));
            next.release().await.expect("it was held");
        }
        times.sort_unstable();
        println!("a release until the next grant: p50 {:?}, most {:?}", times[times.len() / 2], times.last());
    }
    one.close().await;
    two.close().await;
}

/// A waiter that polls reads one statement, and locks no row.
#[tokio::test]
async fn a_poll_is_one_statement() {
    needs!(MARIADB);
    let (server, url) = start().await;
    let (one, two) = (connect(&url).await, connect(&url).await);
    let guard = one.mutex("lock").expect("a good name").lock().await.expect("it is free");
    let theirs = two.mutex("lock").expect("a good name");
    let waiting = tokio::spawn(async move { theirs.lock().await });
    await_waiting(&server, 1).await;
    // Its row is visible before the last statement of its transaction, and it polls after that.
    let begin = sent(&server).0;
    eventually(SOON, "it polls", || async { sent(&server).0 > begin }).await;
    let before = sent(&server);
    eventually(SOON, "it has polled", || async { sent(&server).0 >= before.0 + 5 }).await;
    assert_eq!(sent(&server).1, before.1, "a poll needs no transaction");
    guard.release().await.expect("it was held");
    waiting.await.expect("no panic").expect("granted").release().await.expect("it was held");
    one.close().await;
    two.close().await;
}
