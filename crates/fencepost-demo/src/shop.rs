//! The shop of the demos: a stock of pieces and the orders for them, in a SQLite file.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, params};

use crate::stage::Failure;

/// How long a statement waits for that of another process.
const BUSY: Duration = Duration::from_secs(30);

/// A connection to the shop.
pub(crate) struct Shop(Connection);

/// Opens a SQLite file of a demo. It need not survive a power cut.
pub(crate) fn open(file: &Path) -> Result<Connection, Failure> {
    let connection = Connection::open(file)?;
    connection.busy_timeout(BUSY)?;
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;")?;
    Ok(connection)
}

impl Shop {
    /// Makes a shop with a stock in so many segments. Each has the same number of pieces.
    pub(crate) fn make(file: &Path, segments: u32, pieces: u32) -> Result<Shop, Failure> {
        let shop = open(file)?;
        shop.execute_batch(
            "CREATE TABLE stock (segment INTEGER PRIMARY KEY, pieces INTEGER NOT NULL, token INTEGER NOT NULL);
             CREATE TABLE orders (segment INTEGER NOT NULL, buyer INTEGER NOT NULL);",
        )?;
        for segment in 0..segments {
            shop.execute("INSERT INTO stock VALUES (?, ?, 0)", params![segment, pieces / segments])?;
        }
        Ok(Shop(shop))
    }

    pub(crate) fn open(file: &Path) -> Result<Shop, Failure> {
        Ok(Shop(open(file)?))
    }

    /// Reads how many pieces are left.
    pub(crate) fn pieces(&self, segment: u32) -> Result<i64, Failure> {
        let mut read = self.0.prepare_cached("SELECT pieces FROM stock WHERE segment = ?")?;
        Ok(read.query_row([segment], |row| row.get(0))?)
    }

    /// Writes how many pieces are left, and an order. Another buyer that read the same number sells the same piece.
    pub(crate) fn sell(&self, segment: u32, left: i64, buyer: u32) -> Result<(), Failure> {
        let sale = self.0.unchecked_transaction()?;
        sale.prepare_cached("UPDATE stock SET pieces = ? WHERE segment = ?")?
            .execute(params![left, segment])?;
        order(&sale, segment, buyer)?;
        Ok(sale.commit()?)
    }

    /// The same for the holder of a lock. `false`: the stock has seen a greater token, so this holder is late and nothing is written.
    pub(crate) fn sell_with_token(
        &self,
        segment: u32,
        left: i64,
        buyer: u32,
        token: i64,
    ) -> Result<bool, Failure> {
        let sale = self.0.unchecked_transaction()?;
        let update = "UPDATE stock SET pieces = ?1, token = ?3 WHERE segment = ?2 AND token <= ?3";
        if sale.prepare_cached(update)?.execute(params![left, segment, token])? == 0 {
            return Ok(false);
        }
        order(&sale, segment, buyer)?;
        sale.commit()?;
        Ok(true)
    }

    /// Sells a piece with one statement that says what must be true. `false`: none is left.
    pub(crate) fn sell_if_left(&self, segment: u32, buyer: u32) -> Result<bool, Failure> {
        let sale = self.0.unchecked_transaction()?;
        let update = "UPDATE stock SET pieces = pieces - 1 WHERE segment = ? AND pieces >= 1";
        if sale.prepare_cached(update)?.execute([segment])? == 0 {
            return Ok(false);
        }
        order(&sale, segment, buyer)?;
        sale.commit()?;
        Ok(true)
    }

    /// Counts the orders.
    pub(crate) fn sold(&self) -> Result<u64, Failure> {
        let count: i64 =
            self.0.prepare_cached("SELECT count(*) FROM orders")?.query_row([], |row| row.get(0))?;
        Ok(count.unsigned_abs())
    }
}

fn order(sale: &Connection, segment: u32, buyer: u32) -> Result<(), Failure> {
    sale.prepare_cached("INSERT INTO orders VALUES (?, ?)")?.execute(params![segment, buyer])?;
    Ok(())
}
