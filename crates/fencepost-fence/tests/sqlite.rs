//! Triggers on SQLite; the statements are in the documentation's example and in `examples/late_write.rs`.

use fencepost_fence::{Dialect, Table, rusqlite::Rows};
use rusqlite::Connection;
use rusqlite::types::Value;

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
    let missing = rows.read(&database, &8, 42_u64, |_| Ok(())).unwrap_err();
    assert!(missing.is_missing() && !missing.is_refused(), "there is no such row: {missing}");
    assert!(rows.write(&database, &8, 42_u64, &[&1]).unwrap_err().is_missing());
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

/// Values that a program may pass instead of a token: nothing, text, bytes, fractions, a negative number, and 2^63 as SQLite reads it.
fn no_tokens() -> Vec<Value> {
    let text = |text: &str| Value::Text(text.to_owned());
    let bytes = Value::Blob(b"42".to_vec());
    vec![
        Value::Null,
        text(""),
        text("abc"),
        text("42abc"),
        bytes,
        Value::Real(42.5),
        Value::Real(9_223_372_036_854_775_808.0),
        Value::Integer(-1),
    ]
}

fn rows(database: &Connection) -> Vec<(i64, Option<i64>, Value)> {
    let mut all = database.prepare("SELECT id, pieces, token FROM stock ORDER BY id").unwrap();
    let rows = all.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

#[test]
fn only_a_number_is_a_token() {
    let (database, table) = (Connection::open_in_memory().unwrap(), Table::new("stock", "id").unwrap());
    database.execute_batch(&format!("{TABLE} {}", table.add_column(Dialect::Sqlite))).unwrap();
    // A column that somebody has added without the constraint.
    let bare = "CREATE TABLE bare (id INTEGER PRIMARY KEY, pieces INTEGER, token INTEGER NOT NULL DEFAULT 0);
        INSERT INTO bare VALUES (7, 100, 0);";
    database.execute_batch(bare).unwrap();
    let before = [(7, Some(100), Value::Integer(0))];
    for token in no_tokens() {
        for table in [&table, &Table::new("bare", "id").unwrap()] {
            let read = table.read(Dialect::Sqlite, &["pieces"]).unwrap();
            let write = table.write(Dialect::Sqlite, &["pieces"]).unwrap();
            let read = database.query_row(&read, (7, &token), |row| row.get::<_, i64>(0));
            assert!(read.is_err(), "{token:?}: {read:?}");
            let [show, write] = [(table.show(Dialect::Sqlite), 2), (write, 3)].map(|(text, count)| {
                let values: [&dyn rusqlite::ToSql; 3] = [&7, &token, &1];
                database.execute(&text, &values[..count])
            });
            assert!(
                matches!((&show, &write), (Ok(0) | Err(_), Ok(0) | Err(_))),
                "{token:?}: {show:?} {write:?}"
            );
        }
        let insert = database.execute("INSERT INTO stock (id, token) VALUES (8, ?1)", [&token]);
        assert!(insert.is_err(), "{token:?}");
        assert_eq!(rows(&database), before, "{token:?}");
    }
    assert_eq!(database.query_row("SELECT token FROM bare", [], |row| row.get(0)), Ok(Value::Integer(0)));
    for statement in table.triggers(Dialect::Sqlite) {
        database.execute(&statement, []).unwrap();
    }
    for token in no_tokens() {
        let set = database.execute(Table::set_token(Dialect::Sqlite), [&token]);
        assert!(set.is_err(), "{token:?}");
        for statement in
            ["UPDATE stock SET pieces = 1", "DELETE FROM stock", "INSERT INTO stock (pieces) VALUES (1)"]
        {
            assert!(database.execute(statement, []).is_err(), "{token:?}: {statement}");
        }
        assert_eq!(rows(&database), before, "{token:?}");
    }
}

#[test]
fn of_two_writers_the_later_holder_stays() {
    let folder = fencepost_testkit::server::TempDir::new("fence").unwrap();
    let path = folder.path().join("stock.db");
    let (database, table) = (Connection::open(&path).unwrap(), Table::new("stock", "id").unwrap());
    database.execute_batch(&format!("{TABLE} {}", table.add_column(Dialect::Sqlite))).unwrap();
    let columns = Rows::new(&table, &["pieces"]).unwrap();
    let write = |token: i64| {
        let database = Connection::open(&path).unwrap();
        database.busy_timeout(std::time::Duration::from_secs(30)).unwrap();
        columns.write(&database, &7, token as u64, &[&token])
    };
    for early in (1..40).step_by(2) {
        std::thread::scope(|scope| {
            scope.spawn(|| write(early));
            scope.spawn(|| write(early + 1).expect("no later holder was here"));
        });
        assert_eq!(rows(&database), [(7, Some(early + 1), Value::Integer(early + 1))]);
    }
}
