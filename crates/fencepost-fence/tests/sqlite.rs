//! Triggers on SQLite; the statements are in the documentation's example and in `examples/late_write.rs`.

use fencepost_fence::{Dialect, Table, rusqlite::Rows};
use rusqlite::Connection;

const TABLE: &str =
    "CREATE TABLE stock (id INTEGER PRIMARY KEY, pieces INTEGER); INSERT INTO stock VALUES (7, 100);";

#[test]
fn a_late_write_is_refused() {
    let (database, rows) = (Connection::open_in_memory().unwrap(), Table::new("stock", "id").unwrap());
    database.execute_batch(&format!("{TABLE} {}", rows.add_column(Dialect::Sqlite))).unwrap();
    let rows = Rows::new(&rows, &["pieces"]).unwrap();
    rows.write(&database, &7, 41_u64, &[&99]).unwrap();
    rows.write(&database, &7, 41_u64, &[&99]).expect("a repeated write is one write");
    assert_eq!(rows.read(&database, &7, 42_u64, |row| row.get::<_, i64>(0)).unwrap(), 99);
    assert!(rows.write(&database, &7, 41_u64, &[&1]).unwrap_err().is_refused());
    assert!(rows.read(&database, &8, 42_u64, |_| Ok(())).unwrap_err().is_refused(), "there is no such row");
}

#[test]
fn triggers_refuse_whatever_statement_writes() {
    let (database, table) = (Connection::open_in_memory().unwrap(), Table::new("stock", "id").unwrap());
    database.execute_batch(&format!("{TABLE} {}", table.add_column(Dialect::Sqlite))).unwrap();
    for statement in table.triggers(Dialect::Sqlite) {
        database.execute(&statement, []).unwrap();
    }
    let run = |token: Option<u64>, statement: &str| {
        if let Some(token) = token {
            database.execute(Table::set_token(Dialect::Sqlite), [token as i64]).unwrap();
        }
        database.execute(statement, []).map_err(|error| error.to_string())
    };
    assert!(run(None, "UPDATE stock SET pieces = 1").unwrap_err().contains("without a fencing token"));
    run(Some(41), "UPDATE stock SET pieces = 99 WHERE id = 7").unwrap();
    run(Some(42), "UPDATE stock SET pieces = 98 WHERE id = 7").unwrap();
    for late in ["UPDATE stock SET pieces = 1", "DELETE FROM stock"] {
        assert!(run(Some(41), late).unwrap_err().contains("the fencing token is refused"));
    }
    run(Some(43), "INSERT INTO stock (id, pieces) VALUES (8, 5)").unwrap();
    let mut all = database.prepare("SELECT id, pieces, token FROM stock ORDER BY id").unwrap();
    let rows = all.query_map([], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?])).unwrap();
    assert_eq!(rows.map(Result::unwrap).collect::<Vec<[i64; 3]>>(), [[7, 98, 42], [8, 5, 43]]);
}

/// SQLite deletes the row that is replaced without a trigger.
#[test]
fn triggers_refuse_a_late_replacement() {
    let (database, table) = (Connection::open_in_memory().unwrap(), Table::new("stock", "id").unwrap());
    database.execute_batch(&format!("{TABLE} {}", table.add_column(Dialect::Sqlite))).unwrap();
    for statement in table.triggers(Dialect::Sqlite) {
        database.execute(&statement, []).unwrap();
    }
    let run = |token: i64, statement: &str| {
        database.execute(Table::set_token(Dialect::Sqlite), [token]).unwrap();
        database.execute(statement, []).map_err(|error| error.to_string())
    };
    run(41, "INSERT INTO stock (id, pieces) VALUES (8, 5)").unwrap();
    run(43, "UPDATE stock SET pieces = 98 WHERE id = 7").unwrap();
    for late in [
        "REPLACE INTO stock (id, pieces) VALUES (7, 1)",
        "INSERT OR REPLACE INTO stock (id, pieces) VALUES (7, 1)",
        "INSERT INTO stock (id, pieces) VALUES (7, 1) ON CONFLICT (id) DO UPDATE SET pieces = 1",
        "UPDATE OR REPLACE stock SET id = 7 WHERE id = 8",
    ] {
        assert!(run(42, late).is_err_and(|error| error.contains("the fencing token is refused")), "{late}");
    }
    run(44, "REPLACE INTO stock (id, pieces) VALUES (7, 97)").unwrap();
    run(44, "INSERT INTO stock (pieces) VALUES (3)").expect("the key is made by SQLite");
    let mut all = database.prepare("SELECT id, pieces, token FROM stock ORDER BY id").unwrap();
    let rows = all.query_map([], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?])).unwrap();
    let rows = rows.map(Result::unwrap).collect::<Vec<[i64; 3]>>();
    assert_eq!(rows, [[7, 97, 44], [8, 5, 41], [9, 3, 44]]);
}
