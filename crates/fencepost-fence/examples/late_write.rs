//! A holder is paused for longer than its lease. Its write comes after that of its successor, and the table refuses it.

use fencepost::testing;
use fencepost_fence::{Dialect, Table, rusqlite::Rows};
use rusqlite::Connection;
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let database = Connection::open_in_memory()?;
    let table = Table::new("stock", "id")?;
    database.execute_batch("CREATE TABLE stock (id INTEGER PRIMARY KEY, pieces INTEGER NOT NULL)")?;
    database.execute(&table.add_column(Dialect::Sqlite), [])?;
    database.execute("INSERT INTO stock (id, pieces) VALUES (42, 100)", [])?;
    let rows = Rows::new(&table, &["pieces"])?;

    // A lock whose clock the example moves: `no_renewal` stands for a process that is paused.
    let (locks, clock, _engine) = testing::locks();
    let lock = locks.mutex("stock/42")?;
    let first = lock.lock().ttl(Duration::from_secs(10)).no_renewal().await?;
    let seen: i64 = rows.read(&database, &42, first.token(), |row| row.get(0))?;

    clock.advance(Duration::from_secs(11)).await;
    let second = lock.lock().await?;
    let pieces: i64 = rows.read(&database, &42, second.token(), |row| row.get(0))?;
    rows.write(&database, &42, second.token(), &[&(pieces - 1)])?;

    // The first holder wakes, and does not look at its lock again.
    let late = rows.write(&database, &42, first.token(), &[&(seen - 3)]);
    println!("{}", late.as_ref().unwrap_err());
    assert!(late.unwrap_err().is_refused());
    let pieces: i64 = database.query_row("SELECT pieces FROM stock", [], |row| row.get(0))?;
    assert_eq!(pieces, 99);
    second.release().await?;
    Ok(())
}

#[test]
fn the_late_write_is_refused() {
    main().unwrap();
}
