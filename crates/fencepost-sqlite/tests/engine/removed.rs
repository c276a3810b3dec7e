//! Files that somebody removes, truncates or overwrites while a lock is held.

use std::process::Command;
use std::time::Duration;

use crate::processes::{NAME, is_busy, soon, token};
use crate::support::{Database, SOON, connect};
use fencepost_core::{Loss, State};
use fencepost_sqlite::Holding;
use nix::sys::signal::Signal;

/// Runs a shell script in the database's folder. Another process does it: a close in this one drops SQLite's locks.
fn shell(database: &Database, script: &str) {
    let status = Command::new("sh").args(["-ec", script]).current_dir(database.folder()).status().unwrap();
    assert!(status.success(), "{script}");
}

/// The holder's lease is 30 s long: the one who comes next tells it, and no renewal.
#[tokio::test]
async fn a_holder_whose_files_are_removed_is_told_by_the_next_client() {
    for script in [
        "rm locks.db-wal locks.db-shm",
        "rm locks.db-wal",
        "rm locks.db-shm",
        "rm locks.db",
        "rm locks.db locks.db-wal locks.db-shm",
        "cp locks.db new.db; mv new.db locks.db",
        ": > locks.db",
    ] {
        let database = Database::new();
        let holder = database.start("hold until lost");
        let first = token(&holder);
        shell(&database, script);
        let next = soon(&database.locks().await).await;
        assert_eq!(holder.hears("lost"), "Deleted", "{script}");
        assert!(next.token().get() > first, "{script}");
    }
}

#[tokio::test]
async fn a_waiter_whose_files_are_removed_is_not_granted() {
    let database = Database::new();
    let locks = database.locks().await;
    let guard = soon(&locks).await;
    let waiting = tokio::spawn(async move { locks.mutex(NAME).unwrap().lock().wait(SOON).await });
    crate::support::eventually("it waits in the queue", async || database.claims() == 2).await;
    shell(&database, "rm locks.db-wal locks.db-shm");
    // This client is another one in the same process.
    let next = database.locks().await;
    assert_eq!(guard.lost().await, Loss::Deleted);
    let error = waiting.await.unwrap().unwrap_err();
    assert!(
        error.is_configuration() && error.to_string().contains("-wal was removed or replaced"),
        "{error}"
    );
    assert!(guard.release().await.unwrap_err().is_lost());
    soon(&next).await.release().await.unwrap();
}

/// A client that holds nothing keeps nobody waiting.
#[tokio::test]
async fn an_idle_client_whose_files_are_removed_makes_way() {
    let database = Database::new();
    let idle = connect(&format!("{}?pinned=true", database.url())).await;
    soon(&idle).await.release().await.unwrap();
    shell(&database, "rm locks.db-wal locks.db-shm");
    soon(&database.locks().await).await.release().await.unwrap();
    let error = idle.mutex(NAME).unwrap().try_lock().await.unwrap_err();
    assert!(error.is_configuration() && error.to_string().contains("connect again"), "{error}");
}

/// It may have been granted something that its program still uses.
#[tokio::test]
async fn nobody_opens_a_database_beside_a_stopped_client_of_removed_files() {
    let database = Database::new();
    let holder = database.start("hold briefly");
    token(&holder);
    holder.signal(Signal::SIGSTOP);
    shell(&database, "rm locks.db-wal locks.db-shm");
    let registry = fencepost_core::Registry::new().with("sqlite", fencepost_sqlite::open);
    let refused = fencepost_core::Client::builder().connect(&registry, &database.url()).await.unwrap_err();
    assert!(refused.is_unreachable() && refused.to_string().contains("removed or replaced"), "{refused}");
    drop(holder);
    soon(&database.locks().await).await.release().await.unwrap();
}

/// Its program runs as long as nobody says that it is over, although the wrapper knows of the loss.
#[tokio::test]
async fn a_pinned_grant_of_removed_files_keeps_others_out_until_it_is_over() {
    let database = Database::new();
    let locks = connect(&format!("{}?pinned=true", database.url())).await;
    let mut guard = soon(&locks).await;
    let holding: &mut Holding = guard.native().unwrap().downcast_mut().unwrap();
    let side_file = holding.side_file();
    shell(&database, "rm locks.db-wal locks.db-shm");
    let url = database.url();
    let mut next = tokio::spawn(async move { soon(&connect(&url).await).await });
    assert_eq!(guard.lost().await, Loss::Deleted);
    assert!(tokio::time::timeout(Duration::from_millis(500), &mut next).await.is_err(), "the program runs");
    fencepost_sqlite::mark_over(&side_file).unwrap();
    next.await.unwrap().release().await.unwrap();
}

/// SQLite's log does not show it: the old connection answers from its cache.
#[tokio::test]
async fn a_database_that_is_overwritten_in_place_ends_its_grants() {
    for script in
        ["cp empty.db locks.db", ": > locks.db", "printf nonsense > locks.db", "cp theirs.db locks.db"]
    {
        let database = Database::new();
        soon(&database.locks().await).await.release().await.unwrap();
        shell(&database, "cp locks.db empty.db");
        let theirs = rusqlite::Connection::open(database.folder().join("theirs.db")).unwrap();
        theirs.execute_batch("PRAGMA page_size = 1024; CREATE TABLE theirs (x)").unwrap();
        drop(theirs);
        let locks = database.locks().await;
        let mut guard = locks.mutex(NAME).unwrap().lock().ttl(SOON).await.unwrap();
        database.maintain("PRAGMA wal_checkpoint(TRUNCATE)");
        shell(&database, script);
        // An extension is a renewal that comes now.
        let error = guard.extend(SOON).await.expect_err(script);
        assert_eq!(error.loss(), Some(Loss::Deleted), "{script}: {error}");
    }
}

#[tokio::test]
async fn upkeep_and_the_comings_and_goings_of_others_are_no_removal() {
    let database = Database::new();
    let (locks, other) = (database.locks().await, database.locks().await);
    let mut guard = locks.mutex(NAME).unwrap().lock().ttl(SOON).await.unwrap();
    for sql in [
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "VACUUM",
        "PRAGMA wal_checkpoint(RESTART)",
        "ANALYZE",
        "SELECT count(*) FROM line",
    ] {
        // Its connection is closed at the end.
        database.maintain(sql);
        soon_elsewhere(&database).await;
        // An extension is a renewal that comes now.
        guard.extend(SOON).await.unwrap();
        assert_eq!(guard.state(), State::Held, "{sql}");
        assert!(is_busy(&other).await, "{sql}");
    }
    other.close().await;
    guard.extend(SOON).await.unwrap();
    guard.release().await.unwrap();
}

/// Another process opens the database, takes a lock and closes it all.
async fn soon_elsewhere(database: &Database) {
    let mut process = database.start("come and go");
    process.hears("gone");
    process.ends();
}

/// What it read or wrote there would not be what others see.
#[tokio::test]
async fn an_operator_is_refused_once_the_files_are_removed() {
    let database = Database::new();
    let operator = database.locks().await;
    let holder = soon(&operator).await;
    let token = holder.token();
    holder.release().await.unwrap();
    shell(&database, "rm locks.db locks.db-wal locks.db-shm");
    let refused = |error: fencepost_core::Error| {
        assert!(error.to_string().contains("removed or replaced"), "{error}");
    };
    refused(operator.list("", &fencepost_core::Page::default()).await.unwrap_err());
    refused(operator.inspect(NAME).await.unwrap_err());
    refused(operator.evict(NAME, token, &fencepost_core::Eviction::default()).await.unwrap_err());
    refused(operator.semaphore(NAME, 2).unwrap().set_permits(1).await.unwrap_err());
}
