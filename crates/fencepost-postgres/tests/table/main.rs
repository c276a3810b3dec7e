//! Tests of the lease table on real servers: statements, renewal, wake-ups, tokens, poolers, schema.

mod cleaning;
mod deleted;
mod ended;
mod fixed;
mod listening;
mod local_queue;
mod pooler;
mod slow;
mod unpolled;

use std::io::Write;
use std::time::{Duration, Instant};

use fencepost_core::{Client, ClientBuilder, Eviction, Loss, Registry, Result};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::sql::{CleaningClient, Postgres};
use fencepost_testkit::wait::eventually;

/// The time limit for events that should happen at once, on a busy machine.
const SOON: Duration = Duration::from_secs(30);

fn registry() -> Registry {
    fencepost_postgres::register(Registry::new())
}

async fn try_connect(url: &str) -> Result<Client> {
    builder().connect(&registry(), url).await
}

/// The options of a client whose requests have as much time as a busy machine needs. Some tests lock rows for longer than the usual limits.
fn builder() -> ClientBuilder {
    Client::builder().attempt_timeout(SOON).release_timeout(SOON).outage(SOON)
}

async fn connect(url: &str) -> Client {
    try_connect(url).await.expect("it answers")
}

/// A server with the tables, and the URL.
async fn start() -> (Postgres, String) {
    let server = Postgres::start().expect("a server starts");
    let url = format!("{}?mode=table", server.url());
    Client::builder().apply_schema(&registry(), &url).await.expect("the tables can be made");
    (server, url)
}

/// A session of `psql`, for a transaction that stays open. Ends when it is dropped.
struct Psql {
    child: std::process::Child,
    statements: std::process::ChildStdin,
}

impl Psql {
    fn start(server: &Postgres) -> Psql {
        let mut child = std::process::Command::new("psql")
            .args(["--no-psqlrc", "--host=127.0.0.1", "--username=fencepost", "--dbname=postgres", "--quiet"])
            .args(["--set=ON_ERROR_STOP=1", "--output=/dev/null"])
            .arg(format!("--port={}", server.address().port()))
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("psql is there");
        let statements = child.stdin.take().expect("it is piped");
        Psql { child, statements }
    }

    /// Sends statements and does not wait for them.
    fn send(&mut self, statements: &str) {
        writeln!(self.statements, "{statements}").expect("psql reads");
    }

    /// Waits until all statements have run.
    fn end(self) {
        let Psql { mut child, statements } = self;
        drop(statements);
        assert!(child.wait().expect("it ends").success(), "a statement failed");
    }
}

/// Counts the statements that wait for a lock of another transaction.
const BLOCKED: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";

/// Returns when so many statements wait for a lock of another transaction.
async fn await_blocked(server: &Postgres, count: i64) {
    eventually(SOON, "statements wait for a row", || async { number(server, BLOCKED) == count }).await;
}

/// Returns when a transaction of `psql` is open and has run its statements.
async fn await_open(server: &Postgres) {
    let open = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'psql' AND state = 'idle in transaction'";
    eventually(SOON, "the transaction has run its statements", || async { number(server, open) == 1 }).await;
}

fn number(server: &Postgres, query: &str) -> i64 {
    server.run(query).expect("the server answers").trim().parse().expect("it is a number")
}

/// Counts the statements on the tables that are no renewals, and all renewals.
fn calls(server: &Postgres) -> (i64, i64) {
    let like = "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE query LIKE '%fencepost_lock%' \
        AND query NOT LIKE '%pg_stat_%' AND query";
    let renewal = "LIKE 'UPDATE \"fencepost_lock_session\"%'";
    (number(server, &format!("{like} NOT {renewal}")), number(server, &format!("{like} {renewal}")))
}

fn reset(server: &Postgres) {
    server.run("SELECT pg_stat_statements_reset()").expect("it can be reset");
}

/// An uncontended cycle of an exclusive lock is one statement to acquire and one to release, each a transaction of its own. The server
/// plans them for the first cycles only.
#[tokio::test]
async fn an_uncontended_cycle_is_two_statements() {
    needs!(POSTGRES);
    let (server, url) = start().await;
    server.run("CREATE EXTENSION pg_stat_statements").expect("the extension is there");
    server.run("ALTER SYSTEM SET pg_stat_statements.track_planning = on").expect("set");
    server.run("SELECT pg_reload_conf()").expect("reloaded");
    // No renewal falls into the count: the first one comes after a third of the lease.
    let ttl = Duration::from_secs(3600);
    let client = builder().ttl(ttl).connect(&registry(), &url).await.expect("it answers");
    let mutex = client.mutex("lock").expect("a good name");
    mutex.lock().await.expect("it is free").release().await.expect("it was held");
    reset(&server);
    for _ in 0..100 {
        mutex.lock().await.expect("it is free").release().await.expect("it was held");
    }
    assert_eq!(calls(&server).0, 200);
    let plans = "SELECT sum(plans) FROM pg_stat_statements WHERE query LIKE '%fencepost_lock%'";
    let planned = number(&server, plans);
    assert!(planned <= 20, "the server has planned {planned} times");
    assert_eq!(
        number(&server, "SELECT count(*) FROM pg_stat_statements WHERE query ~* '^(begin|commit)'"),
        0
    );
    client.close().await;
    assert_eq!(
        number(&server, "SELECT count(*) FROM fencepost_lock_session"),
        0,
        "a closed client leaves no session"
    );
}

/// One statement renews all locks of a process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_locks_are_renewed_by_one_statement() {
    needs!(POSTGRES);
    let (server, url) = start().await;
    server.run("CREATE EXTENSION pg_stat_statements").expect("the extension is there");
    // The test counts renewals; a commit need not reach the disk for that.
    server.run("ALTER SYSTEM SET fsync = off").expect("set");
    server.run("SELECT pg_reload_conf()").expect("reloaded");
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
    loop {
        renewed().await;
        reset(&server);
        let began = Instant::now();
        renewed().await;
        let until = guards[0].valid_until();
        eventually(SOON, "all are renewed", || async {
            guards.iter().all(|guard| guard.valid_until() >= until)
        })
        .await;
        let calls = calls(&server);
        // The count of a machine that stalls has the next renewal in it.
        if began.elapsed() < ttl / 2 {
            break assert_eq!(calls, (0, 1));
        }
    }
    assert!(guards.iter().all(|guard| guard.ensure_held().is_ok()));
    drop(guards);
    client.close().await;
}

/// A waiter in another process is told of its grant. Nobody is told when nobody waits.
#[tokio::test]
async fn a_release_tells_the_next_waiter_and_only_then() {
    needs!(POSTGRES);
    let (server, url) = start().await;
    server.run("CREATE EXTENSION pg_stat_statements").expect("the extension is there");
    let (one, two) = (connect(&url).await, connect(&url).await);
    let (mine, theirs) = (one.mutex("lock").expect("a good name"), two.mutex("lock").expect("a good name"));
    // The first wait opens the connection for messages.
    let mut guard = mine.lock().await.expect("it is free");
    let mut times = Vec::new();
    for _ in 0..20 {
        let theirs = theirs.clone();
        let waiting = tokio::spawn(async move { theirs.lock().await.map(|guard| (guard, Instant::now())) });
        let waits = "SELECT count(*) FROM fencepost_lock_queue WHERE token = 0";
        eventually(SOON, "it waits", || async { number(&server, waits) == 1 }).await;
        let released = Instant::now();
        guard.release().await.expect("it was held");
        let (next, granted) = tokio::time::timeout(SOON, waiting)
            .await
            .expect("it is told")
            .expect("no panic")
            .expect("granted");
        times.push(granted - released);
        next.release().await.expect("it was held");
        guard = mine.lock().await.expect("it is free");
    }
    times.sort_unstable();
    println!("a release until the next grant: p50 {:?}, most {:?}", times[times.len() / 2], times.last());
    guard.release().await.expect("it was held");
    reset(&server);
    for _ in 0..10 {
        mine.lock().await.expect("it is free").release().await.expect("it was held");
    }
    assert_eq!(number(&server, "SELECT count(*) FROM pg_stat_statements WHERE query LIKE '%pg_notify%'"), 0);
    one.close().await;
    two.close().await;
}

/// A holder that has never waited for a lock is told of its eviction by a message, long before its next renewal.
#[tokio::test]
async fn a_holder_learns_of_its_eviction_at_once() {
    needs!(POSTGRES);
    let (server, url) = start().await;
    let ttl = Duration::from_secs(3_600);
    let client = Client::builder().ttl(ttl).connect(&registry(), &url).await.expect("it answers");
    let guard = client.mutex("lock").expect("a good name").lock().await.expect("it is free");
    let listens = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN %'";
    eventually(SOON, "the holder listens", || async { number(&server, listens) == 1 }).await;
    let operator = connect(&url).await;
    // The proof that messages arrive may still be on its way, so the first message may be lost.
    eventually(SOON, "the holder is told", || async {
        let how = Eviction::new(false).because("maintenance");
        let evicted = operator.evict("lock", guard.token(), &how).await;
        evicted.expect("it holds the lock");
        tokio::time::timeout(Duration::from_secs(1), guard.lost())
            .await
            .is_ok_and(|loss| loss == Loss::Evicted)
    })
    .await;
    client.close().await;
    operator.close().await;
}

/// Another program has detached one of the two locks from the session, where an eviction of the other lock does not find its row.
#[tokio::test]
async fn an_eviction_ends_no_lock_that_another_program_has_detached() {
    needs!(POSTGRES);
    let (_server, url) = start().await;
    let (client, operator) = (connect(&url).await, connect(&url).await);
    let [given, other] = ["given", "other"].map(|name| client.mutex(name).expect("a good name"));
    let given = given.lock().await.expect("it is free");
    let other = other.lock().await.expect("it is free");
    let lease = given.to_lease().expect("it can be detached");
    operator.attach(&lease).await.expect("it is held").detach().await.expect("it is held");
    operator.evict("other", other.token(), &Eviction::new(false)).await.expect("it is held");
    let lost = tokio::time::timeout(SOON, other.lost()).await.expect("it is told");
    assert_eq!(lost, Loss::Evicted);
    given.ensure_held().expect("it was not evicted");
    given.release().await.expect("it was held");
    client.close().await;
    operator.close().await;
}

/// A server that does not flush commits would repeat the tokens of its last moments after a crash.
#[tokio::test]
async fn tokens_grow_through_a_crash_without_synchronous_commit() {
    needs!(POSTGRES);
    let (mut server, url) = start().await;
    server.run("ALTER SYSTEM SET synchronous_commit = off").expect("set");
    server.run("ALTER SYSTEM SET wal_writer_delay = '10s'").expect("set");
    server.run("SELECT pg_reload_conf()").expect("reloaded");
    let mut last = fencepost_core::Token::default();
    for _ in 0..3 {
        let client = connect(&url).await;
        let mutex = client.rwlock("lock").expect("a good name");
        for _ in 0..5 {
            let guard = mutex.write().await.expect("it is free");
            assert!(guard.token() > last, "{} after {last}", guard.token());
            last = guard.token();
            guard.release().await.expect("it was held");
            // A shared lock is granted in a transaction of several statements.
            let guard = mutex.read().await.expect("it is free");
            assert!(guard.token() > last, "{} after {last}", guard.token());
            last = guard.token();
            guard.release().await.expect("it was held");
        }
        server.kill().expect("killed");
        server.restart().expect("it starts again");
        client.close().await;
    }
}

#[tokio::test]
async fn tables_are_checked_and_have_any_name() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    let url = format!("{}?mode=table&table=app.Jobs", server.url());
    let error = try_connect(&url).await.expect_err("there are no tables");
    assert!(error.is_configuration() && error.to_string().contains("fencepost schema --apply"), "{error}");
    for _ in 0..2 {
        Client::builder().apply_schema(&registry(), &url).await.expect("the tables can be made");
    }
    let client = connect(&url).await;
    let guard = client.mutex("job").expect("a good name").lock().reason("nightly").await.expect("it is free");
    let seen = "SELECT name, token, holds, record::json ->> 'reason', \
        expires > clock_timestamp() + interval '10s', detached FROM app.\"Jobs_view\"";
    assert_eq!(
        server.run(seen).expect("the view is there").trim(),
        format!("job|{}|t|nightly|t|f", guard.token())
    );
    guard.release().await.expect("it was held");
    client.close().await;
    // A user without rights learns which.
    server.run("CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA app TO app").expect("made");
    let denied = format!("postgres://app@{}/postgres?mode=table&table=app.Jobs", server.address());
    let client = connect(&denied).await;
    let error = client.mutex("job").expect("a good name").try_lock().await.expect_err("it has no rights");
    assert!(error.is_denied() && error.to_string().contains("four lease tables"), "{error}");
    client.close().await;
    server.run("COMMENT ON TABLE app.\"Jobs\" IS 'fencepost locks, layout 99'").expect("set");
    let error = try_connect(&url).await.expect_err("it is another layout");
    assert!(error.is_configuration() && error.to_string().contains("layout 99"), "{error}");
    server.run("COMMENT ON TABLE app.\"Jobs\" IS 'jobs of the application'").expect("set");
    let error = try_connect(&url).await.expect_err("it is another table");
    assert!(error.is_configuration() && error.to_string().contains("another program"), "{error}");
}

/// A name is removed only if later tokens of it start above its last one, for each reader of the mark.
#[tokio::test]
async fn names_are_removed_by_age_and_their_tokens_grow() {
    needs!(POSTGRES);
    let (server, url) = start().await;
    let run = |statement: &str| server.run(statement).expect("the server answers");
    let cycles = async |count: u32| {
        let client = connect(&url).await;
        let mutex = client.mutex("old").expect("a good name");
        let mut last = fencepost_core::Token::default();
        for _ in 0..count {
            let guard = mutex.lock().await.expect("it is free");
            last = guard.token();
            guard.release().await.expect("it was held");
        }
        client.close().await;
        last
    };
    let first = cycles(5).await;
    // The claim of a session that ended long ago shows when a client has cleaned: it is removed last.
    let forgotten = "INSERT INTO fencepost_lock_session (id, client, host, process, ttl, expires) \
        VALUES (7, 'gone', 'h', 1, 1, clock_timestamp() - interval '2 days'); \
        INSERT INTO fencepost_lock_queue (name, token, owner, mode, session, ttl, fixed, count, record) \
        VALUES ('gone', 0, 'waiter', 0, 7, 1000000, 0, 0, '')";
    let clean = async || {
        run(forgotten);
        let client = CleaningClient::open(&registry(), &url).await;
        let left = "SELECT (SELECT count(*) FROM fencepost_lock_session WHERE id = 7) \
            + (SELECT count(*) FROM fencepost_lock_queue)";
        eventually(SOON, "it has cleaned", || async {
            client.move_on();
            number(&server, left) == 0
        })
        .await;
        client.close().await;
    };
    let age = "UPDATE fencepost_lock SET modified = clock_timestamp() - interval";
    let (names, mark) = (
        "SELECT count(*) FROM fencepost_lock WHERE name = 'old'",
        "SELECT token FROM fencepost_lock WHERE name = ''",
    );
    run(&format!("{age} '40 days' WHERE name = 'old'"));
    clean().await;
    assert_eq!(
        (number(&server, names), number(&server, mark)),
        (1, 0),
        "the mark is new, so it stays as it is"
    );
    run(&format!("{age} '2 days' WHERE name = ''"));
    clean().await;
    eventually(SOON, "the mark is raised", || async { number(&server, mark) == first.get().cast_signed() })
        .await;
    assert_eq!(number(&server, names), 1, "a statement that has read the old mark may still run");
    run(&format!("{age} '2 days' WHERE name = ''"));
    clean().await;
    eventually(SOON, "the name is removed", || async { number(&server, names) == 0 }).await;
    let next = cycles(1).await;
    assert!(next > first, "{next} after {first}");
}

/// Nobody asks for their names again, so no claim removes them.
#[tokio::test]
async fn rows_of_the_dead_are_removed_after_a_day() {
    needs!(POSTGRES);
    let (server, url) = start().await;
    server
        .run(
            "INSERT INTO fencepost_lock (name, token, owner, mode, session, ttl, fixed, contended) \
             VALUES ('dead', 5, 'holder', 0, 7, 1000000, 0, 1); \
             INSERT INTO fencepost_lock_queue (name, token, owner, mode, session, ttl, fixed, count, record) \
             VALUES ('dead', 0, 'waiter', 0, 8, 1000000, 0, 0, '')",
        )
        .expect("the server answers");
    let mut other = Psql::start(&server);
    other.send("BEGIN; SELECT name FROM fencepost_lock WHERE name = 'dead' FOR UPDATE;");
    await_open(&server).await;
    let client = CleaningClient::open(&registry(), &url).await;
    let blocked = || {
        let blocked = "SELECT max(xact_start) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        server.run(blocked).expect("the server answers").trim().to_owned()
    };
    eventually(SOON, "it waits for the row", || async {
        client.move_on();
        !blocked().is_empty()
    })
    .await;
    // It waits for 3 s at most, and a conflict does not end the cleaning.
    let first = blocked();
    eventually(SOON, "it waits once more", || async {
        client.end_pause();
        ![first.as_str(), ""].contains(&blocked().as_str())
    })
    .await;
    other.send("COMMIT;");
    let left = "SELECT (SELECT count(*) FROM fencepost_lock WHERE owner IS NOT NULL OR contended <> 0) + \
                (SELECT count(*) FROM fencepost_lock_queue)";
    eventually(SOON, "they are removed", || async { number(&server, left) == 0 }).await;
    assert_eq!(number(&server, "SELECT token FROM fencepost_lock WHERE name = 'dead'"), 5);
    client.close().await;
}

/// A renewal that has not committed yet comes before the removal of a session that seems to have expired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_not_removed_beside_its_renewal() {
    needs!(POSTGRES);
    let (server, url) = start().await;
    let count = |query: &str| server.run(query).expect("the server answers").trim().to_owned();
    let (one, two) = (connect(&url).await, connect(&url).await);
    let guard = one.mutex("lock").expect("a good name").lock().await.expect("it is free");
    // Connected before the session expires.
    two.mutex("other")
        .expect("a good name")
        .lock()
        .await
        .expect("it is free")
        .release()
        .await
        .expect("it was held");
    let mine = "id = (SELECT session FROM fencepost_lock WHERE name = 'lock')";
    let expire =
        format!("UPDATE fencepost_lock_session SET expires = clock_timestamp() - interval '1s' WHERE {mine}");
    server.run(&expire).expect("it expires");
    let mut renewing = Psql::start(&server);
    renewing.send(&format!(
        "BEGIN; UPDATE fencepost_lock_session SET expires = clock_timestamp() + interval '60s' WHERE {mine};"
    ));
    await_open(&server).await;
    let lock = two.mutex("lock").expect("a good name");
    let trying = tokio::spawn(async move { lock.try_lock().await.map(|guard| guard.is_some()) });
    // For the renewal.
    await_blocked(&server, 1).await;
    renewing.send("COMMIT;");
    let granted = trying.await.expect("it does not panic").expect("it answers");
    assert!(!granted, "two hold it");
    renewing.end();
    guard.ensure_held().expect("it was renewed");
    // Without a renewal the session is removed, and the lock is free.
    server.run(&expire).expect("it expires");
    let next = two.mutex("lock").expect("a good name").lock().await.expect("its holder is dead");
    assert!(next.token() > guard.token());
    assert_eq!(count("SELECT count(*) FROM fencepost_lock WHERE name = 'lock' AND owner IS NOT NULL"), "1");
    drop(guard);
    next.ensure_held().expect("a late release takes nothing from its successor");
    next.release().await.expect("it was held");
    one.close().await;
    two.close().await;
}
