//! Reads, writes and row locks through tokio-postgres.

use crate::error::bigint;
use crate::lock_row::Session;
use crate::{Dialect, Error, InvalidName, RowLocks, Table};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{GenericClient, Row, Transaction};

/// The read and the write of a row, with fixed columns.
///
/// ```
/// # async fn example(client: tokio_postgres::Client, token: u64) -> Result<(), Box<dyn std::error::Error>> {
/// use fencepost_fence::{Table, tokio_postgres::Rows};
///
/// let rows = Rows::new(&Table::new("stock", "id")?, &["pieces"])?;
/// let pieces: i64 = rows.read(&client, &42_i64, token).await?.get(0);
/// rows.write(&client, &42_i64, token, &[&(pieces - 3)]).await?;
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
        let dialect = Dialect::Postgres;
        let (read, write) = (table.read(dialect, columns)?, table.write(dialect, columns)?);
        Ok(Rows { read, write, exists: table.exists(dialect) })
    }

    /// Shows the token to the row and reads it, in one statement. `client` may be a transaction.
    ///
    /// # Errors
    /// [`Error::Refused`] if a later holder was here, [`Error::Missing`] if there is no such row. [`Error::Driver`]: the token may have been shown.
    ///
    /// # Cancel safety
    /// A dropped future may have shown the token, which does no harm.
    pub async fn read(
        &self,
        client: &impl GenericClient,
        key: &(dyn ToSql + Sync),
        token: impl Into<u64>,
    ) -> Result<Row, Error<tokio_postgres::Error>> {
        let token = token.into();
        let row = client.query_opt(&self.read, &[key, &bigint(token)?]).await?;
        match row {
            Some(row) => Ok(row),
            None => Err(self.no_row(client, key, token).await?),
        }
    }

    /// Writes the row, in one statement. `values` are those of the columns, in their order. `client` may be a transaction.
    ///
    /// # Errors
    /// [`Error::Refused`] if a later holder was here, [`Error::Missing`] if there is no such row: nothing was written. [`Error::Driver`]: the write may
    /// have taken effect; repeat it with the same token.
    ///
    /// # Cancel safety
    /// A dropped future may have written.
    pub async fn write(
        &self,
        client: &impl GenericClient,
        key: &(dyn ToSql + Sync),
        token: impl Into<u64>,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<(), Error<tokio_postgres::Error>> {
        let token = token.into();
        let number = bigint(token)?;
        let parameters = [&[key, &number as &(dyn ToSql + Sync)], values].concat();
        match client.execute(&self.write, &parameters).await? {
            0 => Err(self.no_row(client, key, token).await?),
            _ => Ok(()),
        }
    }
    /// Finds out why a statement has found no row.
    async fn no_row(
        &self,
        client: &impl GenericClient,
        key: &(dyn ToSql + Sync),
        token: u64,
    ) -> Result<Error<tokio_postgres::Error>, tokio_postgres::Error> {
        let exists = client.query_opt(&self.exists, &[key]).await?.is_some();
        Ok(Error::no_row(exists, token))
    }
}

/// Locks a name in a transaction, and returns a fencing token. The table is [`fencepost_row`](RowLocks::create_table).
///
/// The transaction holds the lock until it ends. [`RowLocks`] says what that guarantees.
///
/// ```
/// # async fn example(mut client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use fencepost_fence::tokio_postgres::lock_row;
///
/// let mut tx = client.transaction().await?;
/// let token = lock_row(&mut tx, "stock/42").await?;
/// tx.execute("UPDATE stock SET pieces = pieces - 3 WHERE id = 42 AND pieces >= 3", &[]).await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::BadName`] for a name that no lock can have: nothing was sent. [`Error::NoTable`] if the table is missing.
/// [`Error::Driver`]: the server refused or the connection failed. Roll the transaction back after both.
///
/// # Cancel safety
/// A dropped future leaves the transaction with the lock or without it. Roll the transaction back, which its drop does.
pub async fn lock_row(
    transaction: &mut Transaction<'_>,
    name: &str,
) -> Result<u64, Error<tokio_postgres::Error>> {
    lock_row_with(transaction, name, &RowLocks::new()).await
}

/// The same as [`lock_row`] with another table, or with a limit for the wait.
///
/// # Errors
/// Those of [`lock_row`]. [`Error::Busy`] if another transaction still had the lock after [`RowLocks::wait`]: this transaction goes on as
/// it was.
///
/// # Cancel safety
/// That of [`lock_row`].
pub async fn lock_row_with(
    transaction: &mut Transaction<'_>,
    name: &str,
    locks: &RowLocks,
) -> Result<u64, Error<tokio_postgres::Error>> {
    locks.lock(&mut Locking(transaction), name).await
}

struct Locking<'a, 't>(&'a mut Transaction<'t>);

impl Session for Locking<'_, '_> {
    type Error = tokio_postgres::Error;

    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    async fn run(&mut self, text: String) -> Result<(), tokio_postgres::Error> {
        self.0.batch_execute(&text).await
    }

    async fn number(
        &mut self,
        text: String,
        name: Option<&str>,
    ) -> Result<Option<i64>, tokio_postgres::Error> {
        // Not prepared: a pooler in transaction mode may give each transaction another connection.
        let name = name.as_ref().map(|name| (name as &(dyn ToSql + Sync), Type::TEXT));
        let rows = self.0.query_typed(&text, name.as_slice()).await?;
        rows.first().map(|row| row.try_get(0)).transpose()
    }

    fn is_late(error: &tokio_postgres::Error) -> bool {
        error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE)
    }

    fn is_without_table(error: &tokio_postgres::Error) -> bool {
        error.code() == Some(&SqlState::UNDEFINED_TABLE)
    }
}
