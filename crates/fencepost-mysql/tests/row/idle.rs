//! Tokens of names that nobody has used for long.

use fencepost_testkit::needs;
use fencepost_testkit::sql::rows::{OwnLock, RowEngine, SOON, lock};
use fencepost_testkit::wait::eventually;

use crate::driver::Rows;
use crate::server;

/// A token goes 30 days after the last grant. Those of locks that are held or waited for stay, also in a transaction of the caller.
#[tokio::test]
async fn idle_tokens_are_removed_and_tokens_grow() {
    needs!(MARIADB);
    let server = server().await;
    let (client, other) = (server.connect().await, server.connect().await);
    let cycle = async |name: &str| {
        let guard = lock(&client, name).await;
        let token = guard.token();
        guard.release().await.expect("it was held");
        token
    };
    let idle = cycle("idle").await;
    cycle("ahead").await;
    cycle("own").await;
    let (held, waited) = (lock(&client, "held").await, lock(&client, "waited").await);
    let theirs = other.mutex("waited").expect("a good name");
    let waiter = tokio::spawn(async move { theirs.lock().await });
    let waits = "SELECT COUNT(*) FROM fencepost_row_claim WHERE token IS NULL";
    eventually(SOON, "it waits", || async { server.run(waits) == "1" }).await;
    server.run("UPDATE fencepost_row_token SET token = token - 31 * 86400 * 1000000");
    // The server's clock was ahead when it made this token, and was set back since.
    server.run("UPDATE fencepost_row_token SET token = token + 62 * 86400 * 1000000 WHERE name = 'ahead'");
    let ahead: u64 =
        server.run("SELECT token FROM fencepost_row_token WHERE name = 'ahead'").parse().expect("a number");
    let mut connection = Rows::driver(&server.driver_url()).await;
    let mut transaction = Rows::begin(&mut connection).await;
    let (_, own) = Rows::lock_in(&mut transaction, "own", OwnLock::default()).await.expect("it is free");
    let cleaning = server.connect().await;
    let names = "SELECT GROUP_CONCAT(name ORDER BY name SEPARATOR ' ') FROM fencepost_row_token";
    eventually(SOON, "idle tokens are removed", || async { server.run(names) == "ahead held own waited" })
        .await;
    Rows::commit(transaction).await;
    assert!(cycle("own").await > own);
    let before = waited.token();
    waited.release().await.expect("it was held");
    let granted = tokio::time::timeout(SOON, waiter).await.expect("it keeps its place").expect("no panic");
    let granted = granted.expect("it is granted");
    assert!(granted.token() > before, "{} after {before}", granted.token());
    let again = cycle("idle").await;
    assert!(again > idle, "{again} after {idle}");
    assert_eq!(cycle("ahead").await.get(), ahead + 1, "a token is never below the last one");
    for guard in [held, granted] {
        guard.release().await.expect("it was held");
    }
    for client in [client, other, cleaning] {
        client.close().await;
    }
}
