//! The connection on which messages arrive.

use std::cell::Cell;
use std::time::Instant;

use fencepost_testkit::needs;
use fencepost_testkit::wait::eventually;

use crate::{SOON, calls, connect, number, start};

/// How many polls the test awaits.
const POLLS: i64 = 10;

/// How long a client at least polls before it tries again, in seconds.
const RETRY: i64 = 3;

/// A client that cannot find out whether messages arrive polls. It does not open a connection with each poll to find out.
#[tokio::test]
async fn a_client_that_cannot_listen_does_not_try_with_each_poll() {
    needs!(POSTGRES);
    let (server, url) = start().await;
    let user = "CREATE EXTENSION pg_stat_statements; CREATE ROLE app LOGIN; \
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO app; \
        REVOKE EXECUTE ON FUNCTION pg_notify FROM PUBLIC";
    server.run(user).expect("made");
    // This user may not send the message by which a client proves that messages arrive.
    let (one, two) = (connect(&url).await, connect(&url.replace("fencepost@", "app@")).await);
    let guard = one.mutex("lock").expect("a good name").lock().await.expect("it is free");
    let theirs = two.mutex("lock").expect("a good name");
    let waiting = tokio::spawn(async move { theirs.lock().await });
    let waits = "SELECT count(*) FROM fencepost_lock_queue WHERE token = 0";
    eventually(SOON, "it waits", || async { number(&server, waits) == 1 }).await;
    let begin = Instant::now();
    // The test's own connections are among them.
    let sessions = "SELECT sessions FROM pg_stat_database WHERE datname = 'postgres'";
    let (before, polled, own) = (number(&server, sessions), calls(&server).0, Cell::new(4));
    eventually(SOON, "it polls", || async {
        own.set(own.get() + 2);
        calls(&server).0 >= polled + POLLS
    })
    .await;
    let tries = begin.elapsed().as_secs().cast_signed() / RETRY + 2;
    let opened = number(&server, sessions) - before - own.get();
    // The one that listens, and the one on which the message could not be sent.
    assert!(opened <= 2 * tries, "{POLLS} polls have opened {opened} connections in {:?}", begin.elapsed());
    guard.release().await.expect("it was held");
    waiting.await.expect("no panic").expect("granted").release().await.expect("it was held");
    one.close().await;
    two.close().await;
}
