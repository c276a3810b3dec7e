//! Tokens of the sequence: each is durable before its lock is granted, although the server logs a range of them at once.

use std::process::{Command, Stdio};

use fencepost_core::Client;
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::sql::Postgres;
use fencepost_testkit::wait::eventually;

use crate::{SOON, connect, registry};

/// A server with the sequence, and a client that has drawn the first token. So the server has logged more tokens, and the name of the
/// lock is written.
async fn start() -> (Postgres, Client) {
    let server = Postgres::start().expect("a server starts");
    Client::builder().apply_schema(&registry(), &server.url()).await.expect("the superuser may make it");
    let client = connect(&server.url()).await;
    client.mutex("lock").expect("a good name").lock().await.expect("free").release().await.expect("held");
    eventually(SOON, "its name is written", || async {
        server.run("SELECT count(*) FROM fencepost.name").expect("the server answers").trim() == "1"
    })
    .await;
    (server, client)
}

fn set(server: &Postgres, setting: &str) {
    server.run(&format!("ALTER SYSTEM SET {setting}")).expect("set");
    server.run("SELECT pg_reload_conf()").expect("reloaded");
}

/// A session that has drawn tokens in a transaction, which has not committed.
struct Drawing(std::process::Child);

impl Drawing {
    fn start(server: &Postgres, count: u32) -> Drawing {
        let mut child = Command::new("psql");
        child.args(["--no-psqlrc", "--host=127.0.0.1", "--username=fencepost", "--dbname=postgres"]);
        child.arg(format!("--port={}", server.address().port())).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = child.spawn().expect("psql is there");
        let draw = format!("BEGIN; SELECT nextval('fencepost.token') FROM generate_series(1, {count});\n");
        let stdin = child.stdin.as_mut().expect("it is piped");
        std::io::Write::write_all(stdin, draw.as_bytes()).expect("psql reads");
        Drawing(child)
    }
}

impl Drop for Drawing {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A transaction that writes has an id. One draw of 33 logs a range of values, and the others write nothing, because the log is flushed.
#[tokio::test]
async fn most_grants_of_an_idle_server_write_nothing() {
    needs!(POSTGRES);
    let (server, client) = start().await;
    let next = || -> u64 {
        let next = "SELECT pg_snapshot_xmax(pg_current_snapshot())";
        server.run(next).expect("the server answers").trim().parse().expect("it is a number")
    };
    let (mutex, before) = (client.mutex("lock").expect("a good name"), next());
    for _ in 0..320 {
        mutex.lock().await.expect("it is free").release().await.expect("it was held");
    }
    let written = next() - before;
    assert!((5..40).contains(&written), "{written} of 320 grants have written");
    client.close().await;
}

/// The token of a grant may be one that another session has logged, whose record is not on the disk yet.
#[tokio::test]
async fn tokens_grow_through_a_crash_that_loses_a_draw_of_another_session() {
    needs!(POSTGRES);
    let (mut server, client) = start().await;
    // Nothing else writes the log to the disk.
    set(&server, "wal_writer_delay = '10s'");
    let drawing = Drawing::start(&server, 40);
    let drawn = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'psql' AND state = 'idle in transaction'";
    eventually(SOON, "tokens are drawn", || async {
        server.run(drawn).expect("the server answers").trim() == "1"
    })
    .await;
    let guard = client.mutex("lock").expect("a good name").lock().await.expect("it is free");
    let token = guard.token();
    server.kill().expect("killed");
    drop((drawing, guard));
    client.close().await;
    server.restart().expect("it starts again");
    let client = connect(&server.url()).await;
    let next = client.mutex("lock").expect("a good name").lock().await.expect("it is free");
    assert!(next.token() > token, "{} after {token}", next.token());
    next.release().await.expect("it was held");
    client.close().await;
}

/// A standby that takes over repeats no token.
#[tokio::test]
async fn no_lock_is_granted_before_a_standby_has_its_token() {
    needs!(POSTGRES);
    let (server, client) = start().await;
    set(&server, "synchronous_standby_names = 'nobody'");
    let waiting = async |count: &str| {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        server.run(waiting).expect("the server answers").trim() == count
    };
    // Commits wait for the standby a moment after the server has read the setting.
    let (other, connection) =
        tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.expect("it answers");
    tokio::spawn(connection);
    let commits = tokio::spawn(async move {
        loop {
            let text = "SELECT pg_logical_emit_message(true, 'test', '')";
            other.simple_query(text).await.expect("the server answers");
        }
    });
    eventually(SOON, "a commit waits", || waiting("1")).await;
    let mutex = client.mutex("lock").expect("a good name");
    let claim = tokio::spawn(async move { mutex.lock().await });
    eventually(SOON, "the claim waits, too, or is granted", || async {
        claim.is_finished() || waiting("2").await
    })
    .await;
    assert!(!claim.is_finished(), "the lock was granted, and no standby has its token");
    set(&server, "synchronous_standby_names = ''");
    commits.abort();
    let guard = tokio::time::timeout(SOON, claim).await.expect("it waits no more").expect("no panic");
    guard.expect("it is free").release().await.expect("it was held");
    client.close().await;
}
