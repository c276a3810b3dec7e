//! Callers that give up while their request is on its way: they do not open a connection for each request.

use std::time::Duration;

use fencepost_testkit::needs;
use fencepost_testkit::sql::MariaDb;
use fencepost_testkit::sql::impatient_callers;

use crate::registry;

/// The most connections that 2,000 requests that give up may open. The client has up to 16 at a time. One is closed only if a wait is
/// granted while it is interrupted.
const MAX_OPENED: usize = 32;

async fn opened(mode: &str) -> usize {
    let server = MariaDb::start().expect("a server starts");
    let url = |address| format!("mysql://root@{address}/fencepost?mode={mode}");
    if mode != "named" {
        let made = fencepost_core::Client::builder().apply_schema(&registry(), &url(server.address())).await;
        made.expect("the tables can be made");
    }
    // A connection on which claims wait is closed after a third of `WAIT_IDLE`. Those of tables stay.
    let unused = if mode == "named" { Duration::from_millis(666) } else { Duration::MAX };
    let opened = impatient_callers(&registry(), server.address(), url, unused).await;
    println!(
        "2,000 requests that give up open connections with mode={mode}: for a name {}, for 8 names {}",
        opened[0], opened[1]
    );
    opened[0].max(opened[1])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impatient_callers_of_named_locks() {
    needs!(MARIADB);
    assert!(opened("named").await <= MAX_OPENED);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impatient_callers_of_the_lease_table() {
    needs!(MARIADB);
    assert!(opened("table").await <= MAX_OPENED);
}
