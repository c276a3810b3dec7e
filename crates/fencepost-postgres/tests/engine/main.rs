//! Tests of the PostgreSQL engine on real servers: statements, tokens, ended connections, TLS.

mod faults;
mod impatient;
mod operators;
mod pooler;
mod rotated;
mod tokens;

use std::time::Duration;

use fencepost_core::{Client, ClientBuilder, Holder, Loss, Registry, Result, Severity};
use fencepost_testkit::needs;
use fencepost_testkit::sql::Postgres;

/// The time limit for events that should happen at once, on a busy machine.
const SOON: Duration = Duration::from_secs(30);

fn registry() -> Registry {
    fencepost_postgres::register(Registry::new())
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

fn locks(server: &Postgres) -> String {
    server.run("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").expect("the server answers")
}

/// An uncontended cycle is one statement to acquire and one to release.
#[tokio::test]
async fn an_uncontended_cycle_is_two_statements() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    server.run("CREATE EXTENSION pg_stat_statements").expect("the extension is there");
    let client = connect(&server.url()).await;
    let mutex = client.mutex("lock").expect("a good name");
    mutex.lock().await.expect("it is free").release().await.expect("it was held");
    server.run("SELECT pg_stat_statements_reset()").expect("it can be reset");
    for _ in 0..100 {
        mutex.lock().await.expect("it is free").release().await.expect("it was held");
    }
    let calls = "SELECT sum(calls) FROM pg_stat_statements WHERE query LIKE '%pg_%advisory_%' AND query NOT LIKE '%pg_stat_%'";
    assert_eq!(server.run(calls).expect("the server answers").trim(), "200");
    client.close().await;
}

/// An error does not release an advisory lock that its statement was granted.
#[tokio::test]
async fn a_statement_that_fails_after_the_grant_leaves_no_lock() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    server
        .run("CREATE ROLE app LOGIN; CREATE SCHEMA fencepost; GRANT USAGE ON SCHEMA fencepost TO app")
        .expect("made");
    server.run("CREATE SEQUENCE fencepost.token").expect("made");
    let client = connect(&format!("postgres://app@{}/postgres", server.address())).await;
    let mutex = client.mutex("lock").expect("a good name");
    let error = mutex.try_lock().await.expect_err("the sequence is not granted");
    assert!(error.is_denied() && error.to_string().contains("fencepost"), "{error}");
    assert_eq!(locks(&server).trim(), "0");
    server.run("GRANT USAGE ON SEQUENCE fencepost.token TO app").expect("granted");
    let guard = mutex.lock().await.expect("it is free");
    assert_eq!(guard.token().get(), 1);
    guard.release().await.expect("it was held");
    client.close().await;
}

/// An entry sends nothing; the holder's client tells the count when it is asked.
#[tokio::test]
async fn an_operator_sees_how_often_a_holder_has_entered() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    let (client, operator) = (connect(&server.url()).await, connect(&server.url()).await);
    let (holder, mutex) = (Holder::new(), client.mutex("lock").expect("a good name"));
    // A holder that stalls does not tell it.
    let await_entered = async |count: u32| {
        fencepost_testkit::wait::eventually(SOON, "it is told", || async {
            let info = operator.inspect("lock").await.expect("it answers");
            info.holders().next().expect("it is held").entered == Some(count)
        })
        .await;
    };
    let plain = mutex.lock().await.expect("it is free");
    let info = operator.inspect("lock").await.expect("it answers");
    assert_eq!(info.holders().next().expect("it is held").entered, None);
    plain.release().await.expect("it was held");
    let outer = mutex.lock().holder(&holder).reentrant().await.expect("it is free");
    await_entered(1).await;
    let inner = mutex.lock().holder(&holder).reentrant().await.expect("its holder has it");
    await_entered(2).await;
    drop(outer);
    await_entered(1).await;
    inner.release().await.expect("it was held");
    client.close().await;
    operator.close().await;
}

/// Clients that run use the sequence as soon as it exists, and tokens grow.
#[tokio::test]
async fn tokens_grow_when_the_sequence_is_made() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    let client = connect(&server.url()).await;
    let mutex = client.mutex("lock").expect("a good name");
    let first = mutex.lock().await.expect("it is free");
    let before = first.token();
    first.release().await.expect("it was held");
    let registry = fencepost_postgres::register(Registry::new());
    let made = async || Client::builder().apply_schema(&registry, &server.url()).await;
    made().await.expect("the superuser may make it");
    let second = mutex.lock().await.expect("it is free");
    assert!(second.token() > before && second.token().get() > 1_000_000_000, "{}", second.token());
    let token = second.token();
    second.release().await.expect("it was held");
    // Once more changes nothing, also as a script.
    made().await.expect("it is there");
    server.script(&registry.schema(&server.url()).expect("a good URL")).expect("it is a script for psql");
    let third = mutex.lock().await.expect("it is free");
    assert!(third.token() > token && third.token().get() < token.get() + 100, "{}", third.token());
    third.release().await.expect("it was held");
    // Another user needs the rights that the page names.
    server.run("CREATE ROLE app LOGIN").expect("made");
    let url = format!("postgres://app@{}/postgres", server.address());
    let error = Client::builder().apply_schema(&registry, &url).await.expect_err("only its owner may");
    assert!(error.is_denied(), "{error}");
    let page = include_str!("../../../../docs/backends/postgres.md");
    let rights = page.split("```sql\n").nth(1).and_then(|rest| rest.split_once("```")).expect("there").0;
    server.run(rights).expect("granted");
    let other = connect(&url).await;
    other.mutex("lock").expect("a good name").lock().await.expect("free").release().await.expect("held");
    other.close().await;
    client.close().await;
}

/// The table of names tells a lock whose holder does not reply. A name is written once.
#[tokio::test]
async fn names_are_kept_and_each_is_written_once() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    let registry = fencepost_postgres::register(Registry::new());
    Client::builder().apply_schema(&registry, &server.url()).await.expect("the superuser may make it");
    let client = connect(&format!("{}?prefix=app", server.url())).await;
    let mutex = client.mutex("orders/7").expect("a good name");
    for _ in 0..10 {
        mutex.lock().await.expect("it is free").release().await.expect("it was held");
    }
    let written = "SELECT n_tup_ins, (SELECT prefix || '/' || name FROM fencepost.name) \
                   FROM pg_stat_user_tables WHERE relname = 'name'";
    fencepost_testkit::wait::eventually(SOON, "it is written", || async {
        server.run(written).expect("the server answers").trim() == "1|app/orders/7"
    })
    .await;
    // A program that is no client of ours holds the key.
    let (foreign, connection) =
        tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.expect("it answers");
    tokio::spawn(connection);
    foreign.batch_execute("SELECT pg_advisory_lock(key) FROM fencepost.name").await.expect("it is free");
    let listing = client.list("orders/", &fencepost_core::Page::default()).await.expect("it answers");
    let [info] = listing.resources.as_slice() else { panic!("{listing:?}") };
    assert_eq!((info.name.as_str(), info.holders().count()), ("orders/7", 1));
    assert!(
        client.list("x", &fencepost_core::Page::default()).await.expect("it answers").resources.is_empty()
    );
    drop(foreign);
    client.close().await;
}

/// The page computes a lock's key in SQL.
#[tokio::test]
async fn the_key_of_the_page_is_that_of_the_lock() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    let page = include_str!("../../../../docs/backends/postgres.md");
    let statement =
        page.split("```sql\n").nth(2).and_then(|rest| rest.split_once("```")).expect("it is there").0;
    let key = server.run(statement).expect("it runs");
    let client = connect(&server.url()).await;
    let guard = client.mutex("nightly").expect("a good name").lock().await.expect("it is free");
    let held = "SELECT (classid::int8 << 32 | objid::int8) FROM pg_locks WHERE locktype = 'advisory'";
    assert_eq!(server.run(held).expect("the server answers"), key);
    let holders =
        page.split("```sql\n").nth(3).and_then(|rest| rest.split_once("```")).expect("it is there").0;
    let found = server.run(&holders.replace("KEY", key.trim())).expect("it runs");
    let mut rows = found.lines();
    assert!(rows.next().is_some_and(|row| row.contains("fencepost_") && row.ends_with('t')), "{found}");
    assert_eq!(rows.next(), None, "one connection holds it: {found}");
    guard.release().await.expect("it was held");
    client.close().await;
}

/// The holder is told when its backend ends, and another client gets the lock.
#[tokio::test]
async fn a_holder_whose_backend_is_ended_is_told() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    let (client, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let guard = client.mutex("lock").expect("a good name").lock().await.expect("it is free");
    server
        .run("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
        .expect("the backend can be ended");
    let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
    assert_eq!(lost, Loss::SessionEnded);
    let next = other.mutex("lock").expect("a good name").lock().await.expect("it is free");
    assert!(next.token() > guard.token());
    next.release().await.expect("it was held");
    // The client connects again.
    let again = client.mutex("lock").expect("a good name").lock().await.expect("it is free");
    again.release().await.expect("it was held");
    client.close().await;
    other.close().await;
}

/// Waiters for other names do not need a connection that a held lock has.
#[tokio::test]
async fn more_waiters_than_connections_are_all_granted() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
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
        tokio::time::timeout(SOON, task)
            .await
            .expect("it is granted")
            .expect("no panic")
            .expect("it was held");
    }
    let connections =
        "SELECT count(*) <= 6 + 1 FROM pg_stat_activity WHERE application_name LIKE 'fencepost_%'";
    assert_eq!(server.run(connections).expect("the server answers").trim(), "t");
    client.close().await;
    holder.close().await;
    assert_eq!(locks(&server).trim(), "0");
}

/// A program that receives the log and confirms that it is on its disk.
struct Standby(
    std::process::Child,
    #[expect(dead_code, reason = "it is removed when it is dropped")] fencepost_testkit::server::TempDir,
);

impl Standby {
    fn start(server: &Postgres) -> Standby {
        let dir = fencepost_testkit::server::TempDir::new("standby").expect("a folder can be made");
        let mut child = std::process::Command::new("pg_receivewal");
        child.args(["--no-loop", "--synchronous", "--host=127.0.0.1", "--username=fencepost", "--directory"]);
        child.arg(dir.path()).arg(format!("--port={}", server.address().port()));
        Standby(child.spawn().expect("it is there"), dir)
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The examination reports where tokens come from, and settings that weaken them.
#[tokio::test]
async fn an_examination_finds_weak_settings() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    server.run("CREATE ROLE app LOGIN").expect("made");
    let client = connect(&format!("postgres://app@{}/postgres", server.address())).await;
    let found = async |subject: &str| {
        let report = client.examine().await.expect("it answers");
        let finding = report.findings.into_iter().find(|finding| finding.subject == subject);
        finding.expect("it is examined")
    };
    assert!(found("tokens").await.says.contains("transaction ids"));
    server.run("CREATE SCHEMA fencepost; CREATE SEQUENCE fencepost.token").expect("made");
    let denied = found("tokens").await;
    assert_eq!(denied.severity, Severity::Problem, "{denied}");
    server
        .run("GRANT USAGE ON SCHEMA fencepost TO app; GRANT USAGE ON SEQUENCE fencepost.token TO app")
        .expect("granted");
    assert_eq!(found("tokens").await.severity, Severity::Ok);
    assert_eq!(found("durability").await.severity, Severity::Ok);
    server.run("ALTER SYSTEM SET fsync = off").expect("set");
    server.run("SELECT pg_reload_conf()").expect("reloaded");
    fencepost_testkit::wait::eventually(SOON, "the setting is read", || async {
        found("durability").await.severity == Severity::Problem
    })
    .await;
    client.close().await;
}

/// A setting of the user can be that no commit waits for the standby which the server names.
#[tokio::test]
async fn an_examination_finds_that_no_commit_waits_for_the_standby() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    let url = format!("postgres://app@{}/postgres", server.address());
    server.run("CREATE ROLE app LOGIN").expect("made");
    let standby = Standby::start(&server);
    server.run("ALTER SYSTEM SET synchronous_standby_names = '*'").expect("set");
    server.run("SELECT pg_reload_conf()").expect("reloaded");
    let found = async |url: &str| {
        let client = connect(url).await;
        let report = client.examine().await.expect("it answers");
        client.close().await;
        let finding = report.findings.into_iter().find(|finding| finding.subject == "replication");
        finding.expect("it is examined")
    };
    fencepost_testkit::wait::eventually(SOON, "the standby is known", || async {
        found(&url).await.severity == Severity::Ok
    })
    .await;
    server.run("ALTER ROLE app SET synchronous_commit = local").expect("set");
    let weak = found(&url).await;
    assert!(weak.severity == Severity::Warning && weak.to_string().contains("synchronous_commit"), "{weak}");
    server.run("ALTER ROLE app SET synchronous_commit = off").expect("set");
    let raised = found(&url).await;
    assert_eq!(raised.severity, Severity::Ok, "the engine turns it on: {raised}");
    drop(standby);
}

/// Claims that hold the connections for waiting must not keep others from a lock that is free.
#[tokio::test]
async fn a_claim_without_a_connection_gets_a_lock_that_is_free() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
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
    let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    fencepost_testkit::wait::eventually(SOON, "it stands in the queue", || async {
        server.run(waits).expect("the server answers").trim() == "1"
    })
    .await;
    held.remove(0).release().await.expect("it was held");
    let one =
        tokio::time::timeout(SOON, one).await.expect("it is granted").expect("no panic").expect("granted");
    // The only connection for waiting holds this lock.
    let two = wait("two");
    held.remove(0).release().await.expect("it was held");
    let two =
        tokio::time::timeout(SOON, two).await.expect("it is granted").expect("no panic").expect("granted");
    // The client takes back its mark that it waits for a message. It does so in the background.
    fencepost_testkit::wait::eventually(SOON, "two locks are held", || async {
        locks(&server).trim() == "2"
    })
    .await;
    for guard in [one, two] {
        guard.release().await.expect("it was held");
    }
    client.close().await;
    holder.close().await;
    assert_eq!(locks(&server).trim(), "0");
}

/// A client with few connections holds on one whose idle timeout is shorter than this lease, and no renewal would raise it.
#[tokio::test]
async fn a_fixed_lease_has_its_whole_length_on_any_connection() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    let client = connect(&format!("{}?connections=2", server.url())).await;
    let mutex = client.mutex("lock").expect("a good name");
    let ttl = Duration::from_secs(300);
    let guard = mutex.lock().ttl(ttl).no_renewal().await.expect("it is free");
    assert!(guard.remaining() > ttl * 3 / 4, "{:?} of {ttl:?} are left", guard.remaining());
    guard.release().await.expect("it was held");
    client.close().await;
}

#[tokio::test]
async fn over_tls() {
    needs!(POSTGRES, OPENSSL);
    let plain = Postgres::start().expect("a server starts");
    let error =
        try_connect(&format!("{}?sslmode=verify-full", plain.url())).await.expect_err("it has no TLS");
    assert!(error.is_configuration() && error.to_string().contains("does not offer TLS"), "{error}");
    let server = Postgres::start_tls().expect("a server starts");
    let ca = server.certificate();
    let url = format!("{}?sslmode=verify-full&ca={}", server.url(), ca.display());
    let client = connect(&url).await;
    let guard = client.mutex("lock").expect("a good name").lock().await.expect("it is free");
    // A wait is cancelled over TLS as well.
    let other = connect(&url).await;
    let waiting = other.mutex("lock").expect("a good name");
    let error = waiting.lock().wait(Duration::from_millis(300)).await.expect_err("it is held");
    assert!(error.is_timeout(), "{error}");
    let tls = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name LIKE 'fencepost_%'";
    assert_eq!(server.run(tls).expect("the server answers").trim(), "t");
    guard.release().await.expect("it was held");
    client.close().await;
    other.close().await;
    let error =
        try_connect(&format!("{}?sslmode=verify-full", server.url())).await.expect_err("nobody knows it");
    assert!(error.to_string().contains("certificate") || error.to_string().contains("ca="), "{error}");
}
