//! Clients that are killed, and a clock that jumps.

use std::time::Duration;

use fencepost_testkit::conformance::{Elsewhere, Holder};
use fencepost_testkit::needs;
use fencepost_testkit::sql::{MariaDb, hold_through_jumps};
use fencepost_testkit::wait::eventually;

use crate::{SOON, await_waiting, connect, locks, registry};

/// A client that is killed while its statement waits leaves no claim in the queue, and holds up nobody behind it.
#[tokio::test]
async fn a_client_killed_in_its_wait_leaves_nothing() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    let (holder, behind) = (connect(&server.url()).await, connect(&server.url()).await);
    let ttl = Duration::from_secs(30);
    let guard = holder.mutex("lock").expect("a good name").lock().await.expect("it is free");
    // It holds one lock, and waits for another in its next life.
    let mut held = Holder::start(&server.url(), "own", ttl);
    let mut waits = Holder::waiting(&server.url(), "lock", ttl, 1);
    await_waiting(&server, 1).await;
    let next = behind.mutex("lock").expect("a good name");
    let next = tokio::spawn(async move { next.lock().await });
    await_waiting(&server, 2).await;
    waits.kill();
    held.kill();
    // The server looks after its clients once a second.
    await_waiting(&server, 1).await;
    eventually(SOON, "one lock is held", || async { locks(&server) == "1" }).await;
    let token = guard.token();
    guard.release().await.expect("it was held");
    let next = tokio::time::timeout(SOON, next).await.expect("it is granted").expect("no panic");
    let next = next.expect("it is granted");
    assert!(next.token() > token);
    next.release().await.expect("it was held");
    assert_eq!(locks(&server), "0");
    holder.close().await;
    behind.close().await;
}

/// The server's wall clock decides no lease. Tokens grow when it steps back.
#[tokio::test]
async fn a_clock_that_jumps_ends_no_lease() {
    needs!(MARIADB);
    let mut server = MariaDb::start_clock().expect("a server starts");
    let (client, other) = (connect(&server.url()).await, connect(&server.url()).await);
    assert_eq!(hold_through_jumps(&client, &other, &mut server, 3).await, 0, "locks were lost");
    client.close().await;
    other.close().await;
}

#[tokio::test]
async fn a_stopped_process_holds_up_nobody_for_its_lease() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    fencepost_testkit::sql::a_stopped_process_holds_up_nobody_for_its_lease(&registry(), &server.url()).await;
}
