use fencepost_core::Mode;

use super::*;
use crate::db::queue::{Outcome, Request, attempt, withdraw};
use crate::testing::{NOW, TestDb};

const DAY: u64 = 24 * 3600 * 1_000_000;

/// Makes names that were last granted at `last`.
fn make(test: &TestDb, prefix: &str, count: usize, last: u64) {
    test.sql(&format!(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) \
         INSERT INTO line (resource, seq, token, last) SELECT '{prefix}' || i, 0, 0, {last} FROM n"
    ));
}

fn count(test: &TestDb) -> i64 {
    test.now(|db, _| {
        let sql = "SELECT count(*) FROM line WHERE resource <> '' AND seq = 0";
        Ok(db.query_row(sql, [], |row| row.get(0))?)
    })
}

fn granted(test: &TestDb, after: u64, request: &Request<'_>) -> u64 {
    match test.later(after, |db, liveness| Ok(attempt(db, liveness, request)?.0)) {
        Outcome::Granted { token, .. } => token,
        other => panic!("{other:?}"),
    }
}

#[test]
fn idle_names_are_removed_part_by_part() {
    let test = TestDb::new();
    make(&test, "idle", 2_500, NOW.wall - DAY - 1);
    make(&test, "used", 10, NOW.wall - DAY);
    granted(&test, 0, &test.request(1, Mode::Exclusive));
    let looks: Vec<bool> = (0..3).map(|_| remove(&test.database, NOW.wall - DAY).unwrap()).collect();
    assert_eq!(looks, [true, true, false]);
    assert_eq!(count(&test), 11, "those in use stay");
    // From the start again.
    make(&test, "again", 1, NOW.wall - DAY - 1);
    assert!(!remove(&test.database, NOW.wall - DAY).unwrap());
    assert_eq!(count(&test), 11);
}

/// The row of a name with claims in the queue stays, although nobody has the seat.
#[test]
fn a_name_with_claims_is_not_removed() {
    let test = TestDb::new();
    granted(&test, 0, &test.request(1, Mode::Shared));
    granted(&test, 0, &test.request(2, Mode::Shared));
    test.now(|db, liveness| withdraw(db, liveness, "r", &[1; 16], None));
    assert!(!remove(&test.database, u64::MAX).unwrap());
    test.now(|db, liveness| withdraw(db, liveness, "r", &[2; 16], None));
    assert_eq!(count(&test), 1);
    assert!(!remove(&test.database, u64::MAX).unwrap());
    assert_eq!(count(&test), 0);
}

#[test]
fn tokens_of_a_removed_name_grow_also_after_a_step_of_the_clock() {
    let test = TestDb::new();
    let later = 3600 * 1_000_000_000;
    let first = granted(&test, later, &test.request(1, Mode::Exclusive));
    test.now(|db, liveness| withdraw(db, liveness, "r", &[1; 16], None));
    remove(&test.database, u64::MAX).unwrap();
    assert_eq!(count(&test), 0);
    let next = granted(&test, 0, &test.request(2, Mode::Exclusive));
    assert!(next > first, "{next} after {first}");
}

#[test]
fn a_database_without_idle_names_is_not_written() {
    let test = TestDb::new();
    make(&test, "used", 10, NOW.wall);
    let changes =
        || test.database.once(|db| db.query_row("SELECT total_changes()", [], |row| row.get::<_, i64>(0)));
    let before = changes().unwrap();
    assert!(!remove(&test.database, NOW.wall).unwrap());
    assert_eq!(changes().unwrap(), before);
}
