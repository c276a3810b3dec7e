//! Until when a holder trusts its grant, beside what others read of it: never longer, and less the margin.

use std::time::Duration;

use crate::support::{Database, SOON, connect, eventually};
use fencepost_core::{Guard, Moment, margin};

const NAME: &str = "stock/42";
const TTL: Duration = Duration::from_secs(30);

/// Returns the time of the last renewal, as others read it in the one side file.
fn renewed_at(database: &Database) -> u64 {
    let sides = database.sides();
    let name = sides.iter().find(|name| name.len() == 32).expect("a side file");
    let bytes = std::fs::read(database.folder().join("locks.db-fencepost").join(name)).unwrap();
    u64::from_le_bytes(bytes[24..32].try_into().unwrap())
}

/// Returns the fixed end, as others read it in the one row of a holder.
fn until(database: &Database) -> u64 {
    let db = rusqlite::Connection::open(database.path()).unwrap();
    db.query_row("SELECT until FROM line WHERE token > 0", [], |row| row.get::<_, i64>(0))
        .unwrap()
        .cast_unsigned()
}

/// Asserts that the grant ends a margin before the `end` that others see.
fn ends_before(guard: &Guard, end: Moment, ttl: Duration, what: &str) {
    let early = Duration::from_nanos(end.as_nanos() - guard.valid_until().as_nanos());
    assert_eq!(early, margin(ttl), "{what}");
}

#[tokio::test]
async fn a_renewed_lease_counts_from_the_time_in_the_side_file() {
    let database = Database::new();
    let locks = database.locks().await;
    let lock = locks.mutex(NAME).unwrap();
    let ends = |guard: &Guard, ttl: Duration, what: &str| {
        ends_before(guard, Moment::from_nanos(renewed_at(&database)) + ttl, ttl, what);
    };
    let guard = lock.lock().ttl(TTL).await.unwrap();
    ends(&guard, TTL, "a first grant, by a transaction");
    guard.release().await.unwrap();
    let mut guard = lock.lock().ttl(TTL).await.unwrap();
    ends(&guard, TTL, "a second grant, by one statement");
    guard.extend(TTL).await.unwrap();
    ends(&guard, TTL, "a renewal");
    guard.extend(2 * TTL).await.unwrap();
    ends(&guard, 2 * TTL, "a longer lease");
    guard.release().await.unwrap();
    let ttl = Duration::from_secs(3);
    let guard = loop {
        let guard = lock.lock().ttl(ttl).await.unwrap();
        let before = guard.valid_until();
        let is_renewed = || guard.valid_until() > before || guard.ensure_held().is_err();
        eventually("it is renewed", async || is_renewed()).await;
        // On a machine that stalls the lease may end before.
        if guard.ensure_held().is_ok() {
            break guard;
        }
    };
    ends(&guard, ttl, "a renewal by itself");
}

/// The row is written when the database is free, long after the renewal began.
#[tokio::test]
async fn a_longer_lease_counts_from_its_last_try() {
    let database = Database::new();
    let locks = database.locks().await;
    let mut guard = locks.mutex(NAME).unwrap().lock().ttl(TTL).await.unwrap();
    let writer = rusqlite::Connection::open(database.path()).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let before = renewed_at(&database);
    let extending = tokio::spawn(async move {
        guard.extend(2 * TTL).await.unwrap();
        guard
    });
    eventually("the renewal has begun", async || renewed_at(&database) > before).await;
    writer.execute_batch("COMMIT").unwrap();
    let guard = tokio::time::timeout(SOON, extending).await.unwrap().unwrap();
    ends_before(&guard, Moment::from_nanos(renewed_at(&database)) + 2 * TTL, 2 * TTL, "a longer lease");
}

#[tokio::test]
async fn a_fixed_lease_counts_from_the_end_in_its_row() {
    let database = Database::new();
    let locks = database.locks().await;
    let ends = |guard: &Guard, ttl: Duration, what: &str| {
        ends_before(guard, Moment::from_nanos(until(&database)), ttl, what);
    };
    for what in ["a first grant, by a transaction", "a second grant, by one statement"] {
        let mut guard = locks.mutex(NAME).unwrap().try_lock().ttl(TTL).no_renewal().await.unwrap().unwrap();
        ends(&guard, TTL, what);
        guard.extend(2 * TTL).await.unwrap();
        ends(&guard, 2 * TTL, "an extended one");
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_lease_that_is_taken_up_counts_from_the_end_in_its_row() {
    let database = Database::new();
    let locks = database.locks().await;
    let lease = locks.mutex(NAME).unwrap().lock().ttl(TTL).await.unwrap().detach().await.unwrap();
    let taker = connect(&database.url()).await;
    let mut guard = taker.attach(&lease).await.unwrap();
    ends_before(&guard, Moment::from_nanos(until(&database)), TTL, "taken up");
    guard.extend(TTL).await.unwrap();
    ends_before(&guard, Moment::from_nanos(until(&database)), TTL, "renewed");
    guard.extend(2 * TTL).await.unwrap();
    ends_before(&guard, Moment::from_nanos(until(&database)), 2 * TTL, "made longer");
}
