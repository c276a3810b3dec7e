//! Crashes, restarts, sessions that end, and work that is dropped.

use std::time::Duration;

use fencepost_core::{Client, Loss, Token};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::sql::MariaDb;
use fencepost_testkit::wait::eventually;

use crate::{SOON, connect, number, registry, run, start};

/// Counts the claims in the tables.
fn claims(server: &MariaDb) -> i64 {
    number(
        server,
        "SELECT (SELECT COUNT(*) FROM fencepost_lock WHERE owner IS NOT NULL OR contended <> 0) \
         + (SELECT COUNT(*) FROM fencepost_lock_queue)",
    )
}

/// A server that does not flush commits loses rows in a crash. The tokens of its last moments do not come again.
#[tokio::test]
async fn tokens_grow_through_a_crash_that_loses_commits() {
    needs!(MARIADB);
    let mut server =
        MariaDb::start_options(&["--innodb-flush-log-at-timeout=2700"]).expect("a server starts");
    let url = format!("{}?mode=table", server.url());
    Client::builder().apply_schema(&registry(), &url).await.expect("the tables can be made");
    let unflushed = "SET GLOBAL innodb_flush_log_at_trx_commit = 0";
    run(&server, unflushed);
    let mut last = Token::default();
    for _ in 0..3 {
        let client = connect(&url).await;
        let lock = client.rwlock("lock").expect("a good name");
        for _ in 0..5 {
            let guard = lock.write().await.expect("it is free");
            assert!(guard.token() > last, "{} after {last}", guard.token());
            last = guard.token();
            guard.release().await.expect("it was held");
            // A shared lock is granted in a transaction of several statements.
            let guard = lock.read().await.expect("it is free");
            assert!(guard.token() > last, "{} after {last}", guard.token());
            last = guard.token();
            guard.release().await.expect("it was held");
        }
        server.kill().expect("killed");
        server.restart().expect("it starts again");
        run(&server, unflushed);
        client.close().await;
    }
}

/// A restart of the server ends no lock: its row and its session's are on the disk.
#[tokio::test]
async fn a_lock_outlives_a_crash_of_the_server() {
    needs!(MARIADB);
    let (mut server, url) = start().await;
    let (one, two) = (connect(&url).await, connect(&url).await);
    // The server may need half a minute to start on a busy machine.
    let ttl = Duration::from_secs(600);
    let guard = one.mutex("lock").expect("a good name").lock().ttl(ttl).await.expect("it is free");
    server.kill().expect("killed");
    server.restart().expect("it starts again");
    let theirs = two.mutex("lock").expect("a good name");
    // The first attempts may find a connection that has ended.
    eventually(SOON, "it is busy", || async { matches!(theirs.try_lock().await, Ok(None)) }).await;
    guard.ensure_held().expect("its lease goes on");
    let token = guard.token();
    eventually(SOON, "its client connects again", || async { one.inspect("lock").await.is_ok() }).await;
    guard.release().await.expect("it was held");
    let next = theirs.lock().await.expect("it is free");
    assert!(next.token() > token);
    next.release().await.expect("it was held");
    one.close().await;
    two.close().await;
}

/// A renewal that has not committed yet comes before the removal of a session that seems to have expired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_not_removed_beside_its_renewal() {
    needs!(MARIADB);
    let (server, url) = start().await;
    let (one, two) = (connect(&url).await, connect(&url).await);
    let guard = one.mutex("lock").expect("a good name").lock().await.expect("it is free");
    // Connected before the session expires.
    crate::cycle(&two.mutex("other").expect("a good name")).await;
    let mine = run(&server, "SELECT session FROM fencepost_lock WHERE name = 'lock'");
    let expire = format!(
        "UPDATE fencepost_lock_session SET expires = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND WHERE id = {mine}"
    );
    let renewal = format!(
        "START TRANSACTION; \
         UPDATE fencepost_lock_session SET expires = UTC_TIMESTAMP(6) + INTERVAL 60 SECOND WHERE id = {mine}; \
         SELECT SLEEP(2); COMMIT"
    );
    let mut renewing =
        crate::by_hand_until_it_sleeps(&server, &renewal, || drop(run(&server, &expire))).await;
    let granted = two.mutex("lock").expect("a good name").try_lock().await.expect("it answers");
    assert!(granted.is_none(), "two hold it");
    assert!(renewing.wait().expect("it ends").success());
    guard.ensure_held().expect("it was renewed");
    // Without a renewal the session is removed, and the lock is free.
    run(&server, &expire);
    let next = two.mutex("lock").expect("a good name").lock().await.expect("its holder is dead");
    assert!(next.token() > guard.token());
    drop(guard);
    next.ensure_held().expect("a late release takes nothing from its successor");
    next.release().await.expect("it was held");
    one.close().await;
    two.close().await;
}

/// A holder whose session was removed is told with its next renewal.
#[tokio::test]
async fn a_renewal_that_finds_no_session_ends_its_locks() {
    needs!(MARIADB);
    let (server, url) = start().await;
    let client =
        Client::builder().ttl(Duration::from_secs(9)).connect(&registry(), &url).await.expect("it answers");
    let guard = client.mutex("lock").expect("a good name").lock().await.expect("it is free");
    run(&server, "DELETE FROM fencepost_lock_session");
    let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
    assert_eq!(lost, Loss::Expired);
    // The client makes another session.
    let next = client.mutex("lock").expect("a good name").lock().await.expect("nobody holds it");
    assert!(next.token() > guard.token());
    next.release().await.expect("it was held");
    client.close().await;
}

/// A client goes to the new primary, although its connections to the old one stay open.
#[tokio::test]
async fn a_client_leaves_a_server_that_was_demoted() {
    needs!(MARIADB);
    let servers = [start().await, start().await];
    for (server, _) in &servers {
        run(server, "CREATE USER app; GRANT ALL ON fencepost.* TO app");
    }
    let [one, two] = servers.each_ref().map(|(server, _)| server.address());
    // The second one is asked if the first one is silent for a quarter of this time.
    let url = format!("mysql://app@{one},{two}/fencepost?mode=table&connect_timeout=20s");
    let client = connect(&url).await;
    // Each has a connection of its own.
    let names: Vec<String> = (0..4).map(|number| format!("lock/{number}")).collect();
    futures_util::future::join_all(names.iter().map(async |name| {
        crate::cycle(&client.mutex(name).expect("a good name")).await;
    }))
    .await;
    let connections = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = 'app'";
    assert!(number(&servers[0].0, connections) > 1, "the test needs more than one connection");
    run(&servers[0].0, "SET GLOBAL read_only = 1");
    let mutex = client.mutex("lock").expect("a good name");
    let lock = mutex.lock().ttl(Duration::from_secs(3));
    let guard = tokio::time::timeout(SOON, lock).await.expect("it is granted").expect("it is free");
    assert_eq!(claims(&servers[1].0), 1, "the new primary has granted it");
    // The connection for renewals finds it with the first one.
    eventually(SOON, "all connections are there", || async { number(&servers[0].0, connections) == 0 }).await;
    drop(guard);
    client.close().await;
}

/// Work that is dropped at any moment leaves no claim.
#[tokio::test(flavor = "multi_thread")]
async fn random_drops_leave_nothing() {
    needs!(MARIADB);
    let (server, url) = start().await;
    let client = connect(&url).await;
    let mut random: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut tasks = Vec::new();
    for _ in 0..1_000 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let lock = client.rwlock(&format!("lock/{}", random % 7)).expect("a good name");
        let limit = Duration::from_micros(random >> 32 & 0x3fff);
        tasks.push(tokio::spawn(async move {
            let work = async {
                let guard =
                    if random >> 60 < 8 { lock.read().await } else { lock.write().await }.expect("granted");
                guard.release().await.expect("it was held");
            };
            // Dropped in the middle.
            let _ = tokio::time::timeout(limit, work).await;
        }));
        if tasks.len() == 32 {
            for task in tasks.drain(..) {
                task.await.expect("no panic");
            }
        }
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    eventually(SOON, "nothing is left", || async { claims(&server) == 0 }).await;
    client.close().await;
}
