//! Names that nobody has used for long.

use std::time::Duration;

use fencepost_core::Registry;
use fencepost_testkit::sql::CleaningClient;

use crate::support::{Database, eventually};

/// A client looks for the first time between half of this time and all of it after its first claim.
const FIRST: Duration = Duration::from_secs(600);

/// Clients that are started together do not read all names together.
#[tokio::test]
async fn idle_names_are_removed_some_minutes_after_a_client_was_opened() {
    let database = Database::new();
    let first = database.locks().await;
    first.mutex("idle").unwrap().lock().await.unwrap().release().await.unwrap();
    first.close().await;
    database.maintain("UPDATE line SET last = 1");
    let names = || {
        let db = rusqlite::Connection::open(database.path()).unwrap();
        let sql = "SELECT group_concat(resource, ' ') FROM line WHERE resource <> ''";
        db.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap()
    };
    let registry = Registry::new().with("sqlite", fencepost_sqlite::open);
    let cleaning = CleaningClient::open(&registry, &database.url()).await;
    cleaning.client().mutex("other").unwrap().lock().await.unwrap().release().await.unwrap();
    assert_eq!(names(), "idle other");
    eventually("the name is removed", async || {
        cleaning.move_on_within(FIRST);
        names() == "other"
    })
    .await;
    assert!(cleaning.elapsed() >= FIRST / 2, "it has looked {:?} after it was opened", cleaning.elapsed());
    cleaning.close().await;
}
