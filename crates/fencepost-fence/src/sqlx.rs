//! Queries for sqlx 0.9.

use crate::error::bigint;
use crate::{Dialect, Error, InvalidName, Table};
use sqlx_core::database::Database;
use sqlx_core::encode::Encode;
use sqlx_core::query::{Query, query};
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_core::types::Type;

/// A query of sqlx, with the key and the token bound.
pub type Bound<DB> = Query<'static, DB, <DB as Database>::Arguments>;

/// The read and the write of a row, with fixed columns.
///
/// ```
/// # use sqlx_core::{row::Row, transaction::Transaction};
/// # use sqlx_postgres::Postgres;
/// use fencepost_fence::sqlx::{Rows, changed, found};
/// use fencepost_fence::{Dialect, Table};
///
/// # async fn sell(mut tx: Transaction<'static, Postgres>, token: u64) -> Result<(), Box<dyn std::error::Error>> {
/// let rows = Rows::new(&Table::new("stock", "id")?, Dialect::Postgres, &["pieces"])?;
/// let row = rows.read(42_i64, token)?.fetch_optional(&mut *tx).await?;
/// let pieces: i64 = found(row, token)?.get(0);
/// let done = rows.write(42_i64, token, |query| query.bind(pieces - 3))?.execute(&mut *tx).await?;
/// changed(done.rows_affected(), token)?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// MySQL has no statement that shows the token and reads: run [`show`](Rows::show) after [`read`](Rows::read), in one transaction.
/// sqlx asks MySQL for found rows, so a repeated write counts as a change.
#[derive(Clone, Debug)]
pub struct Rows {
    dialect: Dialect,
    read: String,
    show: String,
    write: String,
}

impl Rows {
    /// Prepares the texts for these columns.
    ///
    /// # Errors
    /// [`InvalidName`] for a column's name that SQL cannot contain.
    pub fn new(table: &Table, dialect: Dialect, columns: &[&str]) -> Result<Rows, InvalidName> {
        let (read, write) = (table.read(dialect, columns)?, table.write(dialect, columns)?);
        Ok(Rows { dialect, read, show: table.show(dialect), write })
    }

    /// Returns the query that shows the token and reads the columns. Pass its row to [`found`].
    ///
    /// # Errors
    /// [`Error::TooGreat`] for a token that no lock gives.
    pub fn read<DB: Database, K>(
        &self,
        key: K,
        token: impl Into<u64>,
    ) -> Result<Bound<DB>, Error<sqlx_core::Error>>
    where
        K: for<'t> Encode<'t, DB> + Type<DB>,
        i64: for<'t> Encode<'t, DB> + Type<DB>,
    {
        let token = bigint(token.into())?;
        Ok(query(AssertSqlSafe(self.read.clone())).bind(key).bind(token))
    }

    /// Returns the query that shows the token and changes nothing else. Pass the number of changed rows to [`changed`].
    ///
    /// # Errors
    /// As [`read`](Rows::read).
    pub fn show<DB: Database, K>(
        &self,
        key: K,
        token: impl Into<u64>,
    ) -> Result<Bound<DB>, Error<sqlx_core::Error>>
    where
        K: for<'t> Encode<'t, DB> + Type<DB>,
        i64: for<'t> Encode<'t, DB> + Type<DB>,
    {
        let token = bigint(token.into())?;
        Ok(self.bound(&self.show, key, token, |query| query))
    }

    /// Returns the query that writes the columns. `values` binds their values, in their order. Pass the number of changed rows to
    /// [`changed`].
    ///
    /// # Errors
    /// As [`read`](Rows::read).
    pub fn write<DB: Database, K>(
        &self,
        key: K,
        token: impl Into<u64>,
        values: impl FnOnce(Bound<DB>) -> Bound<DB>,
    ) -> Result<Bound<DB>, Error<sqlx_core::Error>>
    where
        K: for<'t> Encode<'t, DB> + Type<DB>,
        i64: for<'t> Encode<'t, DB> + Type<DB>,
    {
        let token = bigint(token.into())?;
        Ok(self.bound(&self.write, key, token, values))
    }

    fn bound<DB: Database, K>(
        &self,
        text: &str,
        key: K,
        token: i64,
        values: impl FnOnce(Bound<DB>) -> Bound<DB>,
    ) -> Bound<DB>
    where
        K: for<'t> Encode<'t, DB> + Type<DB>,
        i64: for<'t> Encode<'t, DB> + Type<DB>,
    {
        let query = query(AssertSqlSafe(text.to_owned()));
        match self.dialect {
            // Its parameters have no numbers, and the values come first in the statement.
            Dialect::MySql => values(query).bind(token).bind(key).bind(token),
            Dialect::Postgres | Dialect::Sqlite => values(query.bind(key).bind(token)),
        }
    }
}

/// Returns the row that was read.
///
/// # Errors
/// [`Error::Refused`] if there is none: a later holder was here, or there is no such row.
pub fn found<R>(row: Option<R>, token: impl Into<u64>) -> Result<R, Error<sqlx_core::Error>> {
    row.ok_or(Error::Refused { token: token.into() })
}

/// Checks that a row was changed.
///
/// # Errors
/// [`Error::Refused`] if none was: a later holder was here, or there is no such row.
pub fn changed(rows: u64, token: impl Into<u64>) -> Result<(), Error<sqlx_core::Error>> {
    if rows == 0 { Err(Error::Refused { token: token.into() }) } else { Ok(()) }
}
