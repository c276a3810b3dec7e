//! Reads and writes through tokio-postgres.

use crate::error::bigint;
use crate::{Dialect, Error, InvalidName, Table};
use tokio_postgres::types::ToSql;
use tokio_postgres::{GenericClient, Row};

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
