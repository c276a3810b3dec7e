//! Rows of locks that nobody has used for long.

use std::time::Duration;

use fencepost_testkit::needs;
use fencepost_testkit::sql::{CleaningClient, MariaDb};
use fencepost_testkit::wait::eventually;

use crate::{SOON, await_waiting, connect, registry};

/// A client cleans for the first time between half of this time and all of it after it was opened: clients that are started together do not
/// clean together.
const FIRST: Duration = Duration::from_secs(600);

/// How often a client pings the server over its idle connection.
const PING: Duration = Duration::from_secs(10);

/// Makes all tokens older by 31 days.
const AGE: &str = "UPDATE fencepost_token SET token = token - 31 * 86400 * 1000000";

fn run(server: &MariaDb, statement: &str) -> String {
    server.run(statement).expect("the server answers").trim().to_owned()
}

/// Returns the names in the table.
fn names(server: &MariaDb) -> String {
    run(server, "SELECT GROUP_CONCAT(DISTINCT name ORDER BY name SEPARATOR ' ') FROM fencepost_token")
}

/// A row goes 30 days after the last grant. The rows of locks that are held or waited for stay.
#[tokio::test]
async fn idle_rows_are_removed_and_tokens_grow() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    let (client, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let cycle = async |name: &str| {
        let guard = client.mutex(name).expect("a good name").lock().await.expect("it is free");
        let token = guard.token();
        guard.release().await.expect("it was held");
        token
    };
    let idle = cycle("idle").await;
    cycle("ahead").await;
    let held = client.mutex("held").expect("a good name").lock().await.expect("it is free");
    let waited = client.mutex("waited").expect("a good name").lock().await.expect("it is free");
    let theirs = other.mutex("waited").expect("a good name");
    let waiter = tokio::spawn(async move { theirs.lock().await });
    await_waiting(&server, 1).await;
    run(&server, AGE);
    // The server's clock was ahead when it made this token, and was set back since.
    run(&server, "UPDATE fencepost_token SET token = token + 62 * 86400 * 1000000 WHERE name = 'ahead'");
    let ahead: u64 =
        run(&server, "SELECT token FROM fencepost_token WHERE name = 'ahead'").parse().expect("a number");
    let cleaning = CleaningClient::open(&registry(), &server.url()).await;
    // Each step is a ping of the idle connection, so it cannot be longer.
    let pass = async |until: Duration| {
        eventually(SOON, "the time is over", || async {
            cleaning.move_on_within(until);
            cleaning.end_pause();
            cleaning.elapsed() + PING >= until
        })
        .await;
    };
    pass(FIRST / 2).await;
    assert_eq!(names(&server), "ahead held idle waited", "it has cleaned when it was opened");
    pass(FIRST).await;
    eventually(SOON, "idle rows are removed", || async {
        cleaning.end_pause();
        names(&server) == "ahead held waited"
    })
    .await;
    let (before, later) = (waited.token(), async { waiter.await.expect("no panic").expect("it is granted") });
    waited.release().await.expect("it was held");
    let granted = tokio::time::timeout(SOON, later).await.expect("it keeps its place");
    assert!(granted.token() > before, "{} after {before}", granted.token());
    let again = cycle("idle").await;
    assert!(again > idle, "{again} after {idle}");
    assert_eq!(cycle("ahead").await.get(), ahead + 1, "a token is never below the last one");
    for guard in [held, granted] {
        guard.release().await.expect("it was held");
    }
    for client in [client, other] {
        client.close().await;
    }
    cleaning.close().await;
}
