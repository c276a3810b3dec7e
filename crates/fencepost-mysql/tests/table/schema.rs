//! The tables: their names, their layout, the rights of users, old rows.

use std::time::Duration;

use fencepost_core::{Client, Token};
use fencepost_testkit::needs;
use fencepost_testkit::sql::{CleaningClient, MariaDb};
use fencepost_testkit::wait::eventually;

use crate::{SOON, connect, cycle, number, registry, run, start, try_connect};

#[tokio::test]
async fn tables_are_checked_and_have_any_name() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    let url = format!("{}?mode=table&table=app.Jobs", server.url());
    let error = try_connect(&url).await.expect_err("there are no tables");
    assert!(error.is_configuration() && error.to_string().contains("fencepost schema --apply"), "{error}");
    for _ in 0..2 {
        Client::builder().apply_schema(&registry(), &url).await.expect("the tables can be made");
    }
    // The statements work with the server's own client, too.
    run(&server, &registry().schema(&url).expect("the URL is sound"));
    let client = connect(&url).await;
    let guard = client.mutex("job").expect("a good name").lock().reason("nightly").await.expect("it is free");
    let seen = "SELECT name, token, holds, JSON_UNQUOTE(JSON_EXTRACT(record, '$.reason')), \
        expires > UTC_TIMESTAMP(6) + INTERVAL 10 SECOND, detached FROM app.Jobs_view";
    assert_eq!(run(&server, seen), format!("job\t{}\t1\tnightly\t1\t0", guard.token()));
    guard.release().await.expect("it was held");
    client.close().await;
    // A user without rights learns which.
    run(&server, "CREATE USER app; GRANT SELECT ON app.Jobs TO app; GRANT SELECT ON fencepost.* TO app");
    let denied = format!("mysql://app@{}/fencepost?mode=table&table=app.Jobs", server.address());
    let client = connect(&denied).await;
    let error = client.mutex("job").expect("a good name").try_lock().await.expect_err("it has no rights");
    assert!(error.is_denied() && error.to_string().contains("four lease tables"), "{error}");
    client.close().await;
    let error = Client::builder().apply_schema(&registry(), &denied).await.expect_err("it has no rights");
    assert!(error.is_denied() && error.to_string().contains("CREATE VIEW"), "{error}");
    run(&server, "REVOKE SELECT ON app.Jobs FROM app");
    let error = try_connect(&denied).await.expect_err("it sees no table");
    assert!(error.is_configuration() && error.to_string().contains("no rights on it"), "{error}");
    run(&server, "ALTER TABLE app.Jobs COMMENT = 'fencepost locks, layout 99'");
    let error = try_connect(&url).await.expect_err("it is another layout");
    assert!(error.is_configuration() && error.to_string().contains("layout 99"), "{error}");
    run(&server, "ALTER TABLE app.Jobs COMMENT = 'jobs of the application'");
    let error = try_connect(&url).await.expect_err("it is another table");
    assert!(error.is_configuration() && error.to_string().contains("another program"), "{error}");
}

/// Servers on which a table excludes nobody, or does not work, are refused. A session's settings do not depend on the server's.
#[tokio::test]
async fn servers_are_checked_and_their_settings_do_no_harm() {
    needs!(MARIADB);
    let (server, url) = start().await;
    run(&server, "SET GLOBAL read_only = 1");
    let error = try_connect(&url).await.expect_err("it accepts no writes");
    assert!(error.is_configuration() && error.to_string().contains("name the primary"), "{error}");
    run(&server, "SET GLOBAL read_only = 0");
    run(
        &server,
        "SET GLOBAL time_zone = '+10:00'; SET GLOBAL sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES'; \
         SET GLOBAL autocommit = 0; SET GLOBAL completion_type = CHAIN; SET GLOBAL sql_safe_updates = 1; \
         SET GLOBAL tx_isolation = 'SERIALIZABLE'; SET GLOBAL max_statement_time = 1; \
         SET GLOBAL character_set_server = latin1",
    );
    let client = connect(&url).await;
    for name in ["lock", "Lock", "löck", "lock'", "lock\\", "%", "$1"] {
        let mutex = client.mutex(name).expect("a good name");
        let guard = mutex.try_lock().label("日本 \\' \"").await.expect("it answers").expect("it is free");
        let info = client.inspect(name).await.expect("it answers");
        assert_eq!(info.claims.len(), 1, "{name}: {info:?}");
        assert_eq!(&*info.claims[0].holder.label, "日本 \\' \"");
        assert!(info.claims[0].expires_in.is_some_and(|left| left <= Duration::from_secs(30)), "{info:?}");
        guard.release().await.expect("it was held");
    }
    // A statement that waits for a row is longer than the limit.
    let row = "SET max_statement_time = 0; BEGIN; SELECT name FROM fencepost_lock WHERE name = 'lock' FOR UPDATE; DO SLEEP(2); COMMIT";
    let mut slow = crate::by_hand_until_it_sleeps(&server, row, || {}).await;
    let guard =
        client.mutex("lock").expect("a good name").try_lock().await.expect("no limit").expect("it is free");
    guard.release().await.expect("it was held");
    assert!(slow.wait().expect("it ends").success());
    let ended = "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'MAX_STATEMENT_TIME_EXCEEDED'";
    assert_eq!(run(&server, ended), "0", "the limit has ended statements");
    let permits = client.semaphore("pool", 3).expect("a good name");
    let guard = permits.acquire_many(2).await.expect("free");
    assert!(permits.try_acquire_many(2).await.expect("it answers").is_none());
    guard.release().await.expect("held");
    client.close().await;
}

#[tokio::test]
async fn a_binary_log_of_statements_is_refused() {
    needs!(MARIADB);
    let server = MariaDb::start_options(&["--log-bin=bin", "--binlog-format=STATEMENT"]).expect("it starts");
    let url = format!("{}?mode=table", server.url());
    let error = try_connect(&url).await.expect_err("it lacks READ COMMITTED");
    assert!(error.is_configuration() && error.to_string().contains("ROW or MIXED"), "{error}");
    run(&server, "SET GLOBAL binlog_format = MIXED");
    Client::builder().apply_schema(&registry(), &url).await.expect("the tables can be made");
    let client = connect(&url).await;
    cycle(&client.mutex("lock").expect("a good name")).await;
    client.close().await;
}

/// Nobody asks for their names again, so no claim removes them.
#[tokio::test]
async fn rows_of_the_dead_are_removed_after_a_day() {
    needs!(MARIADB);
    let (server, url) = start().await;
    run(
        &server,
        "INSERT INTO fencepost_lock (name, token, owner, mode, session, ttl, fixed, contended) \
         VALUES ('dead', 5, 'holder', 0, 7, 1000000, 0, 1)",
    );
    run(
        &server,
        "INSERT INTO fencepost_lock_queue (name, token, owner, mode, session, ttl, fixed, count, record) \
         VALUES ('dead', 0, 'waiter', 0, 8, 1000000, 0, 0, '')",
    );
    let client = CleaningClient::open(&registry(), &url).await;
    let left = "SELECT (SELECT COUNT(*) FROM fencepost_lock WHERE owner IS NOT NULL OR contended <> 0) + \
                (SELECT COUNT(*) FROM fencepost_lock_queue)";
    eventually(SOON, "they are removed", || async {
        client.move_on();
        number(&server, left) == 0
    })
    .await;
    assert_eq!(number(&server, "SELECT token FROM fencepost_lock WHERE name = 'dead'"), 5);
    client.close().await;
}

/// A name is removed only if later tokens of it start above its last one, for each reader of the mark.
#[tokio::test]
async fn names_are_removed_by_age_and_their_tokens_grow() {
    needs!(MARIADB);
    let (server, url) = start().await;
    let token_of = async || {
        let client = connect(&url).await;
        let guard = client.mutex("old").expect("a good name").lock().await.expect("it is free");
        let token = guard.token();
        guard.release().await.expect("it was held");
        client.close().await;
        token
    };
    let first = token_of().await;
    // The claim of a session that ended long ago shows when a client has cleaned: it is removed last.
    let forgotten = [
        "INSERT INTO fencepost_lock_session (id, client, host, process, ttl, expires) \
         VALUES (7, 'gone', 'h', 1, 1, UTC_TIMESTAMP(6) - INTERVAL 2 DAY)",
        "INSERT INTO fencepost_lock_queue (name, token, owner, mode, session, ttl, fixed, count, record) \
         VALUES ('gone', 0, 'waiter', 0, 7, 1000000, 0, 0, '')",
    ];
    let clean = async || {
        for statement in forgotten {
            run(&server, statement);
        }
        let client = CleaningClient::open(&registry(), &url).await;
        let left = "SELECT (SELECT COUNT(*) FROM fencepost_lock_session WHERE id = 7) \
            + (SELECT COUNT(*) FROM fencepost_lock_queue)";
        eventually(SOON, "it has cleaned", || async {
            client.move_on();
            number(&server, left) == 0
        })
        .await;
        client.close().await;
    };
    let age = "UPDATE fencepost_lock SET modified = UTC_TIMESTAMP(6) - INTERVAL";
    let (names, mark) = (
        "SELECT COUNT(*) FROM fencepost_lock WHERE name = 'old'",
        "SELECT token FROM fencepost_lock WHERE name = ''",
    );
    run(&server, &format!("{age} 40 DAY WHERE name = 'old'"));
    clean().await;
    assert_eq!(
        (number(&server, names), number(&server, mark)),
        (1, 0),
        "the mark is new, so it stays as it is"
    );
    run(&server, &format!("{age} 2 DAY WHERE name = ''"));
    eventually(SOON, "the mark is raised", || async {
        clean().await;
        Token::new(number(&server, mark).unsigned_abs()) == first
    })
    .await;
    assert_eq!(number(&server, names), 1, "a statement that has read the old mark may still run");
    run(&server, &format!("{age} 2 DAY WHERE name = ''"));
    eventually(SOON, "the name is removed", || async {
        clean().await;
        number(&server, names) == 0
    })
    .await;
    let next = token_of().await;
    assert!(next > first, "{next} after {first}");
}
