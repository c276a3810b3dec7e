//! Fencing tokens.

use fencepost_core::Tokens;
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::sql::MariaDb;

use crate::{connect, try_connect};

/// Tokens grow through crashes of the server, and through the loss of their rows.
#[tokio::test]
async fn tokens_grow_through_crashes_and_the_loss_of_rows() {
    needs!(MARIADB);
    let mut server = MariaDb::start().expect("a server starts");
    let mut last = 0;
    for round in 0..3 {
        let client = connect(&server.url()).await;
        let mutex = client.mutex("lock").expect("a good name");
        for _ in 0..50 {
            let guard = mutex.lock().await.expect("it is free");
            assert!(guard.token().get() > last, "{} after {last}", guard.token());
            last = guard.token().get();
            guard.release().await.expect("it was held");
        }
        if round == 0 {
            server.run("DELETE FROM fencepost_token").expect("deleted");
        }
        let held = mutex.lock().await.expect("it is free");
        assert!(held.token().get() > last);
        last = held.token().get();
        server.kill().expect("it can be killed");
        server.restart().expect("it starts");
        drop(held);
        client.close().await;
    }
}

/// Tokens grow by one where the clock of the server stands still or steps back.
#[tokio::test]
async fn a_token_is_never_below_the_last_one() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    let client = connect(&server.url()).await;
    let mutex = client.mutex("lock").expect("a good name");
    mutex.lock().await.expect("it is free").release().await.expect("it was held");
    let far = 9_000_000_000_000_000_u64;
    server.run(&format!("UPDATE fencepost_token SET token = {far}")).expect("changed");
    for step in 1..=3 {
        let guard = mutex.lock().await.expect("it is free");
        assert_eq!(guard.token().get(), far + step);
        guard.release().await.expect("it was held");
    }
    client.close().await;
}

/// A user who may not make the table has locks without tokens, and the capability says so.
#[tokio::test]
async fn a_user_without_rights_has_no_tokens() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    server.run("CREATE USER app; GRANT SELECT ON fencepost.* TO app").expect("made");
    let url = format!("mysql://app@{}/fencepost", server.address());
    let client = connect(&url).await;
    assert_eq!(client.capabilities().tokens, Tokens::None);
    let guard = client.mutex("lock").expect("a good name").lock().await.expect("it is free");
    guard.release().await.expect("it was held");
    client.close().await;
    // With the statements of the page there are tokens.
    let page = include_str!("../../../../docs/backends/mysql.md");
    let (_, rest) = page.split_once("```sql\n").expect("the page has the statements");
    let (statements, _) = rest.split_once("```").expect("they end");
    server.run(statements).expect("they run");
    let client = connect(&url).await;
    assert_eq!(client.capabilities().tokens, Tokens::Durable);
    let guard = client.mutex("lock").expect("a good name").lock().await.expect("it is free");
    assert!(guard.token().get() > 0);
    // An error after the grant leaves no lock.
    let held = "SELECT COUNT(*) FROM fencepost_token WHERE IS_USED_LOCK(lock_name) IS NOT NULL";
    assert_eq!(server.run(held).expect("the server answers").trim(), "1");
    guard.release().await.expect("it was held");
    server.run("REVOKE INSERT, UPDATE ON fencepost_token FROM app").expect("revoked");
    let mutex = client.mutex("lock").expect("a good name");
    let error = mutex.try_lock().await.expect_err("the table may not be written");
    assert!(error.is_denied() && error.to_string().contains("fencepost_token"), "{error}");
    assert_eq!(server.run(held).expect("the server answers").trim(), "0");
    client.close().await;
}

/// Replicas would repeat `GET_LOCK` of a statement.
#[tokio::test]
async fn there_are_no_tokens_if_replicas_repeat_statements() {
    needs!(MARIADB);
    let server =
        MariaDb::start_options(&["--log-bin=binlog", "--binlog-format=STATEMENT"]).expect("a server starts");
    let client = connect(&server.url()).await;
    assert_eq!(client.capabilities().tokens, Tokens::None);
    client.close().await;
}

/// A server that accepts no writes is refused.
#[tokio::test]
async fn a_replica_is_refused() {
    needs!(MARIADB);
    let server = MariaDb::start_options(&["--read-only"]).expect("a server starts");
    let error = try_connect(&server.url()).await.expect_err("it accepts no writes");
    assert!(error.is_configuration() && error.to_string().contains("primary"), "{error}");
}
