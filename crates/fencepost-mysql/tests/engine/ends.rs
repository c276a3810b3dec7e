//! Connections that end, and waits that are given up.

use std::collections::HashSet;
use std::time::Duration;

use fencepost_core::Loss;
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::sql::{MariaDb, ProxiedMariaDb};
use fencepost_testkit::wait::eventually;

use crate::{SOON, await_waiting, connect, locks};

/// The holder is told when its session is killed, and another client gets the lock.
#[tokio::test]
async fn a_holder_whose_session_is_killed_is_told() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    let (client, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let guard = client.mutex("lock").expect("a good name").lock().await.expect("it is free");
    let session = server.run("SELECT IS_USED_LOCK('fencepost:lock')").expect("the server answers");
    server.run(&format!("KILL {session}")).expect("the session can be killed");
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

/// The server ends a session that is silent, and the holder knew of its loss before.
#[tokio::test]
async fn a_silent_holder_is_lost_before_the_server_frees_its_lock() {
    needs!(MARIADB);
    let mut server = ProxiedMariaDb::start(&()).expect("a server starts");
    let (client, other) = (connect(&server.url()).await, connect(&server.direct_url()).await);
    let ttl = Duration::from_secs(2);
    let guard = client.mutex("lock").expect("a good name").lock().ttl(ttl).await.expect("it is free");
    let mutex = other.mutex("lock").expect("a good name");
    let next = async {
        let next = mutex.lock().await.expect("it is granted");
        assert!(guard.ensure_held().is_err(), "the lock was free before its holder knew");
        next
    };
    server.silence().expect("the network can be silent");
    let both = async { tokio::join!(guard.lost(), next) };
    let (lost, next) =
        tokio::time::timeout(SOON, both).await.expect("it is told, and the next one is granted");
    assert_eq!(lost, Loss::Expired);
    assert!(next.token() > guard.token());
    next.release().await.expect("it was held");
    server.mend().expect("it can be mended");
    drop(guard);
    client.close().await;
    other.close().await;
}

/// A wait that is given up leaves no claim in the server's queue, and its connection is used again.
#[tokio::test]
async fn a_wait_that_is_given_up_leaves_nothing() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    let (holder, client) = (connect(&server.url()).await, connect(&server.url()).await);
    let guard = holder.mutex("lock").expect("a good name").lock().await.expect("it is free");
    let mut used = HashSet::new();
    for _ in 0..20 {
        let mutex = client.mutex("lock").expect("a good name");
        let waiting = tokio::spawn(async move { mutex.lock().await.map(drop) });
        await_waiting(&server, 1).await;
        let connection = "SELECT ID FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'";
        used.insert(server.run(connection).expect("the server answers"));
        waiting.abort();
        await_waiting(&server, 0).await;
    }
    // On a busy machine an interruption can be sent twice, and the second one ends the connection.
    assert!(used.len() < 5, "20 waits have used the connections {used:?}");
    // One that asked the server before may still be ending.
    let connections = "SELECT COUNT(*) <= 1 + 2 + 1 FROM information_schema.PROCESSLIST WHERE USER = 'root'";
    eventually(SOON, "no other connection is open", || async {
        server.run(connections).expect("the server answers").trim() == "1"
    })
    .await;
    guard.release().await.expect("it was held");
    let mutex = client.mutex("lock").expect("a good name");
    let next = mutex.try_lock().await.expect("it answers").expect("nobody else waits");
    next.release().await.expect("it was held");
    holder.close().await;
    client.close().await;
    assert_eq!(locks(&server), "0");
}

/// Work that is dropped at any moment leaves no lock.
#[tokio::test(flavor = "multi_thread")]
async fn random_drops_leave_no_lock() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    let client = connect(&server.url()).await;
    let mut random: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut tasks = Vec::new();
    for _ in 0..1_000 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let mutex = client.mutex(&format!("lock/{}", random % 7)).expect("a good name");
        let limit = Duration::from_micros(random >> 32 & 0x1fff);
        tasks.push(tokio::spawn(async move {
            let work = async {
                let guard = mutex.lock().await.expect("it is granted");
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
    eventually(SOON, "nothing is held", || async { locks(&server) == "0" }).await;
    await_waiting(&server, 0).await;
    client.close().await;
}
