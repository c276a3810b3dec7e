//! The lease table behind pgbouncer.

use std::time::Duration;

use fencepost_core::{Client, Effect, Severity};
use fencepost_testkit::needs;
use fencepost_testkit::sql::PgBouncer;
use fencepost_testkit::wait::eventually;

use crate::{Psql, SOON, await_open, builder, connect, number, registry, start};

/// A pooler in transaction mode gives each statement another backend, and delivers no messages.
#[tokio::test]
async fn a_pooler_in_any_mode_works() {
    needs!(POSTGRES, PGBOUNCER);
    let (server, url) = start().await;
    for mode in ["transaction", "session"] {
        let pooler = PgBouncer::start(&server, mode).expect("a pooler starts");
        let pooled = format!("{}?mode=table", pooler.url());
        Client::builder().apply_schema(&registry(), &pooled).await.expect("the tables are there");
        let (one, two, direct) = (connect(&pooled).await, connect(&pooled).await, connect(&url).await);
        let mut guard = one.mutex("lock").expect("a good name").lock().await.expect("it is free");
        for client in [&two, &direct, &one] {
            let mutex = client.mutex("lock").expect("a good name");
            assert!(mutex.try_lock().await.expect("busy is no error").is_none());
            let waiting = tokio::spawn(async move { mutex.lock().await });
            let waits = "SELECT count(*) FROM fencepost_lock_queue WHERE token = 0";
            eventually(SOON, "it waits", || async { number(&server, waits) == 1 }).await;
            let token = guard.token();
            guard.release().await.expect("it was held");
            guard = tokio::time::timeout(SOON, waiting)
                .await
                .expect("granted")
                .expect("no panic")
                .expect("granted");
            assert!(guard.token() > token);
        }
        guard.release().await.expect("it was held");
        let report = one.examine().await.expect("it answers");
        let messages =
            report.findings.iter().find(|finding| finding.subject == "messages").expect("it is examined");
        assert_eq!(messages.severity == Severity::Ok, mode == "session", "{mode}: {messages}");
        let permits = two.semaphore("pool", 3).expect("a good name");
        permits.acquire_many(3).await.expect("free").release().await.expect("held");
        for client in [one, two, direct] {
            client.close().await;
        }
    }
}

/// Through a pooler in transaction mode, a statement whose plan another backend keeps runs without it. The client stops naming plans then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_that_the_backend_does_not_have_costs_no_lock() {
    needs!(POSTGRES, PGBOUNCER);
    let (server, url) = start().await;
    let pooler = PgBouncer::start(&server, "transaction").expect("a pooler starts");
    let pooled = format!("{}?mode=table", pooler.url());
    let failed = "SELECT xact_rollback FROM pg_stat_database WHERE datname = 'postgres'";
    let before = number(&server, failed);
    let clients = [connect(&pooled).await, connect(&pooled).await, connect(&url).await];
    let mut tasks = Vec::new();
    for (number, client) in clients.iter().enumerate() {
        for task in 0..4 {
            let mutex = client.mutex(&format!("lock/{number}/{task}")).expect("a good name");
            tasks.push(tokio::spawn(async move {
                let mut last = fencepost_core::Token::default();
                for _ in 0..100 {
                    let guard = mutex.lock().await.expect("it is free");
                    assert!(guard.token() > last, "{} after {last}", guard.token());
                    last = guard.token();
                    guard.release().await.expect("it was held");
                }
            }));
        }
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    for client in clients {
        client.close().await;
    }
    // The server counts a transaction a moment after its end.
    eventually(SOON, "the pooler's backends are idle", || async {
        number(&server, "SELECT count(*) FROM pg_stat_activity WHERE state = 'active'") == 1
    })
    .await;
    let failed = number(&server, failed) - before;
    assert!(failed <= 40, "{failed} of 2,400 statements have failed at the server");
}

/// A pooler that reaches its time limit ends the connection with an error, and the server runs the statement all the same. What it makes
/// must not stay, although the session of the claim is renewed for another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_a_pooler_has_given_up_leaves_no_lock() {
    needs!(POSTGRES, PGBOUNCER);
    let (server, url) = start().await;
    let pooler = PgBouncer::start_with(&server, "transaction", "query_timeout = 1").expect("a pooler starts");
    // The row of the lock exists.
    let direct = connect(&url).await;
    let other = direct.mutex("lock").expect("a good name");
    other.lock().await.expect("it is free").release().await.expect("it was held");
    // The pooler's limit is shorter than a busy machine stalls.
    let pooled = format!("{}?mode=table&prepare=false", pooler.url());
    let pooled = builder().connect_wait(SOON).connect(&registry(), &pooled).await.expect("it answers");
    let ttl = Duration::from_secs(15);
    let keep = pooled.mutex("keep").expect("a good name").lock().ttl(ttl).await.expect("it is free");
    let mut locks = Psql::start(&server);
    locks.send("BEGIN; SELECT name FROM fencepost_lock WHERE name = 'lock' FOR UPDATE;");
    await_open(&server).await;
    let mutex = pooled.mutex("lock").expect("a good name");
    let error = mutex.try_lock().ttl(ttl).await.expect_err("the pooler ends the connection");
    let late = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' ORDER BY query_start LIMIT 1";
    let runs = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {}", number(&server, late));
    locks.send("COMMIT;");
    locks.end();
    eventually(SOON, "the late statement has run", || async { number(&server, &runs) == 0 }).await;
    let owned = "SELECT count(*) FROM fencepost_lock WHERE name = 'lock' AND owner IS NOT NULL";
    eventually(SOON, "the late grant is removed", || async { number(&server, owned) == 0 }).await;
    assert!(error.is_unreachable() && error.to_string().contains("pooler"), "{error}");
    assert_eq!(error.effect(), Effect::Unknown);
    keep.ensure_held().expect("its session is renewed");
    keep.release().await.expect("it was held");
    pooled.close().await;
    direct.close().await;
}
