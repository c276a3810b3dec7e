//! Requests that are dropped before their reply.

use std::time::Duration;

use fencepost_testkit::needs;
use fencepost_testkit::sql::MariaDb;
use fencepost_testkit::wait::eventually;

use crate::{SOON, connect};

/// How many statements a connection of named locks has prepared.
const STATEMENTS: i64 = 5;

/// How many the connection of runs has prepared: the one that reads.
const RUNS: i64 = 1;

/// A request of an operator prepares a statement, and so does the look at the holders at the end of a wait. None of them stays at the
/// server, at whichever moment the request was dropped.
#[tokio::test]
async fn a_dropped_request_leaves_no_prepared_statement() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    let (client, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let guard = client.mutex("lock").expect("a good name").lock().await.expect("it is free");
    let theirs = other.mutex("lock").expect("a good name");
    for number in 0..200 {
        let moment = Duration::from_micros(number * 97 % 3_000);
        let _ = tokio::time::timeout(moment, other.inspect("lock")).await;
        let wait = Duration::from_millis(1 + number % 5);
        let _ = tokio::time::timeout(wait + moment, theirs.lock().wait(wait).into_future()).await;
    }
    let number = |query: &str| {
        let row = server.run(query).expect("the server answers");
        row.trim().rsplit('\t').next().and_then(|number| number.parse::<i64>().ok()).expect("a number")
    };
    eventually(SOON, "only those of the connections are prepared", || async {
        let sessions = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = 'root' AND ID <> CONNECTION_ID()";
        number("SHOW GLOBAL STATUS LIKE 'Prepared_stmt_count'") == STATEMENTS * (number(sessions) - 1) + RUNS
    })
    .await;
    guard.release().await.expect("it was held");
    client.close().await;
    other.close().await;
}
