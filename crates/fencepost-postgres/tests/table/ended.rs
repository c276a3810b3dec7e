//! Connections that a client replaces although they are open.

use fencepost_testkit::needs;

use crate::{connect, start};

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
