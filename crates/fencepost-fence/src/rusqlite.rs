//! Reads and writes through rusqlite.

use crate::error::bigint;
use crate::{Dialect, Error, InvalidName, Table};
use rusqlite::types::ToSql;
use rusqlite::{Connection, OptionalExtension, Row};

/// The read and the write of a row, with fixed columns.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use fencepost_fence::{Table, rusqlite::Rows};
///
/// # let database = rusqlite::Connection::open_in_memory()?;
/// # let table = Table::new("stock", "id")?;
/// # database.execute_batch("CREATE TABLE stock (id INTEGER PRIMARY KEY, pieces INTEGER); INSERT INTO stock VALUES (42, 5)")?;
/// # database.execute_batch(&table.add_column(fencepost_fence::Dialect::Sqlite))?;
/// let rows = Rows::new(&Table::new("stock", "id")?, &["pieces"])?;
/// let pieces: i64 = rows.read(&database, &42, 7_u64, |row| row.get(0))?;
/// rows.write(&database, &42, 7_u64, &[&(pieces - 3)])?;
/// assert!(rows.write(&database, &42, 6_u64, &[&5]).unwrap_err().is_refused());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Rows {
    read: String,
    write: String,
    exists: String,
}

impl Rows {
    /// Prepares the texts for these columns.
    ///
    /// # Errors
    /// [`InvalidName`] for a column's name that SQL cannot contain.
    pub fn new(table: &Table, columns: &[&str]) -> Result<Rows, InvalidName> {
        let dialect = Dialect::Sqlite;
        let (read, write) = (table.read(dialect, columns)?, table.write(dialect, columns)?);
        Ok(Rows { read, write, exists: table.exists(dialect) })
    }

    /// Shows the token to the row and reads it, in one statement. `database` may be a transaction.
    ///
    /// # Errors
    /// [`Error::Refused`] if a later holder was here, [`Error::Missing`] if there is no such row. [`Error::Driver`] if SQLite or `read` fails.
    pub fn read<T>(
        &self,
        database: &Connection,
        key: &dyn ToSql,
        token: impl Into<u64>,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Error<rusqlite::Error>> {
        let token = token.into();
        let number = bigint(token)?;
        let mut statement = database.prepare_cached(&self.read)?;
        let row = statement.query_row(&[key, &number][..], read).optional()?;
        row.map_or_else(|| Err(self.no_row(database, key, token)?), Ok)
    }

    /// Writes the row, in one statement. `values` are those of the columns, in their order. `database` may be a transaction.
    ///
    /// # Errors
    /// [`Error::Refused`] if a later holder was here, [`Error::Missing`] if there is no such row: nothing was written. [`Error::Driver`] if SQLite fails.
    pub fn write(
        &self,
        database: &Connection,
        key: &dyn ToSql,
        token: impl Into<u64>,
        values: &[&dyn ToSql],
    ) -> Result<(), Error<rusqlite::Error>> {
        let token = token.into();
        let number = bigint(token)?;
        let parameters = [&[key, &number as &dyn ToSql], values].concat();
        match database.prepare_cached(&self.write)?.execute(&parameters[..])? {
            0 => Err(self.no_row(database, key, token)?),
            _ => Ok(()),
        }
    }
    /// Finds out why a statement has found no row.
    fn no_row(
        &self,
        database: &Connection,
        key: &dyn ToSql,
        token: u64,
    ) -> rusqlite::Result<Error<rusqlite::Error>> {
        let exists = database.prepare_cached(&self.exists)?.exists([key])?;
        Ok(Error::no_row(exists, token))
    }
}
