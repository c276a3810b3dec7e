//! Reads, writes and row locks through sqlx 0.9.

use crate::error::bigint;
use crate::lock_row::Session;
use crate::{Dialect, Error, InvalidName, RowLocks, Table};
use sqlx_core::arguments::IntoArguments;
use sqlx_core::column::ColumnIndex;
use sqlx_core::connection::Connection;
use sqlx_core::database::Database;
use sqlx_core::decode::Decode;
use sqlx_core::encode::Encode;
use sqlx_core::executor::Executor;
use sqlx_core::query::{Query, query};
use sqlx_core::raw_sql::raw_sql;
use sqlx_core::row::Row;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_core::transaction::Transaction;
use sqlx_core::types::Type;

/// A query of sqlx, with the key and the token bound.
pub type Bound<DB> = Query<'static, DB, <DB as Database>::Arguments>;

/// A row of the database of a connection.
type RowOf<C> = <<C as Connection>::Database as Database>::Row;

/// The read and the write of a row, with fixed columns.
///
/// ```
/// # use sqlx_core::{row::Row, transaction::Transaction};
/// # use sqlx_postgres::Postgres;
/// use fencepost_fence::sqlx::Rows;
/// use fencepost_fence::{Dialect, Table};
///
/// # async fn sell(mut tx: Transaction<'static, Postgres>, token: u64) -> Result<(), Box<dyn std::error::Error>> {
/// let rows = Rows::new(&Table::new("stock", "id")?, Dialect::Postgres, &["pieces"])?;
/// let pieces: i64 = rows.read(&mut *tx, &42_i64, token).await?.get(0);
/// rows.write(&mut *tx, &42_i64, token, |query| query.bind(pieces - 3)).await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// Each call takes a connection: `&mut *transaction`, or `&mut *pool.acquire().await?`.
#[derive(Clone, Debug)]
pub struct Rows {
    dialect: Dialect,
    read: String,
    show: String,
    write: String,
    exists: String,
}

impl Rows {
    /// Prepares the texts for these columns.
    ///
    /// # Errors
    /// [`InvalidName`] for a column's name that SQL cannot contain.
    pub fn new(table: &Table, dialect: Dialect, columns: &[&str]) -> Result<Rows, InvalidName> {
        let (read, mut write) = (table.read(dialect, columns)?, table.write(dialect, columns)?);
        if dialect != Dialect::MySql {
            write += " RETURNING 1";
        }
        Ok(Rows { dialect, read, show: table.show(dialect), write, exists: table.exists(dialect) })
    }

    /// Shows the token to the row and reads it, in one statement. MySQL has no such statement and takes two, so call it in a transaction
    /// there: another holder could write between them.
    ///
    /// # Errors
    /// [`Error::Refused`] if a later holder was here, [`Error::Missing`] if there is no such row. [`Error::Driver`]: the token may have
    /// been shown.
    ///
    /// # Cancel safety
    /// A dropped future may have shown the token, which does no harm.
    pub async fn read<C, K>(
        &self,
        database: &mut C,
        key: &K,
        token: impl Into<u64>,
    ) -> Result<RowOf<C>, Error<sqlx_core::Error>>
    where
        C: Connection,
        for<'c> &'c mut C: Executor<'c, Database = C::Database>,
        <C::Database as Database>::Arguments: IntoArguments<C::Database>,
        K: for<'t> Encode<'t, C::Database> + Type<C::Database> + Sync,
        i64: for<'t> Encode<'t, C::Database> + Type<C::Database>,
    {
        let token = token.into();
        let number = bigint(token)?;
        let read: Bound<C::Database> = query(AssertSqlSafe(self.read.clone())).bind(key).bind(number);
        let Some(row) = read.fetch_optional(&mut *database).await? else {
            return Err(self.no_row(database, key, token).await?);
        };
        if self.dialect == Dialect::MySql {
            let show = self.bound(&self.show, key, number, |query| query);
            show.execute(&mut *database).await?;
            if !self.is_changed(database).await? {
                return Err(self.no_row(database, key, token).await?);
            }
        }
        Ok(row)
    }

    /// Writes the row, in one statement. `values` binds those of the columns, in their order. On MySQL the connection must ask for found
    /// rows, as those of sqlx do.
    ///
    /// # Errors
    /// [`Error::Refused`] if a later holder was here, [`Error::Missing`] if there is no such row: nothing was written.
    /// [`Error::Driver`]: the write may have taken effect; repeat it with the same token.
    ///
    /// # Cancel safety
    /// A dropped future may have written.
    pub async fn write<C, K>(
        &self,
        database: &mut C,
        key: &K,
        token: impl Into<u64>,
        values: impl FnOnce(Bound<C::Database>) -> Bound<C::Database>,
    ) -> Result<(), Error<sqlx_core::Error>>
    where
        C: Connection,
        for<'c> &'c mut C: Executor<'c, Database = C::Database>,
        <C::Database as Database>::Arguments: IntoArguments<C::Database>,
        K: for<'t> Encode<'t, C::Database> + Type<C::Database> + Sync,
        i64: for<'t> Encode<'t, C::Database> + Type<C::Database>,
    {
        let token = token.into();
        let write = self.bound(&self.write, key, bigint(token)?, values);
        let written = if self.dialect == Dialect::MySql {
            write.execute(&mut *database).await?;
            self.is_changed(database).await?
        } else {
            write.fetch_optional(&mut *database).await?.is_some()
        };
        if written { Ok(()) } else { Err(self.no_row(database, key, token).await?) }
    }

    /// Returns whether the last statement has found a row to change. MySQL has no `RETURNING`, and sqlx no such number that is the same for
    /// all databases.
    async fn is_changed<C>(&self, database: &mut C) -> Result<bool, sqlx_core::Error>
    where
        C: Connection,
        for<'c> &'c mut C: Executor<'c, Database = C::Database>,
    {
        let found =
            raw_sql("SELECT 1 FROM DUAL WHERE ROW_COUNT() > 0").fetch_optional(&mut *database).await?;
        Ok(found.is_some())
    }

    /// Finds out why a statement has found no row.
    async fn no_row<C, K>(
        &self,
        database: &mut C,
        key: &K,
        token: u64,
    ) -> Result<Error<sqlx_core::Error>, sqlx_core::Error>
    where
        C: Connection,
        for<'c> &'c mut C: Executor<'c, Database = C::Database>,
        <C::Database as Database>::Arguments: IntoArguments<C::Database>,
        K: for<'t> Encode<'t, C::Database> + Type<C::Database> + Sync,
    {
        let find: Bound<C::Database> = query(AssertSqlSafe(self.exists.clone())).bind(key);
        Ok(Error::no_row(find.fetch_optional(&mut *database).await?.is_some(), token))
    }

    fn bound<DB: Database, K>(
        &self,
        text: &str,
        key: &K,
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

/// Locks a name in a transaction of PostgreSQL or MySQL, and returns a fencing token. The table is
/// [`fencepost_row`](RowLocks::create_table).
///
/// The transaction holds the lock until it ends. [`RowLocks`] says what that guarantees. On MySQL call this before the transaction reads
/// anything, or begin it as `READ COMMITTED`.
///
/// ```
/// # use sqlx_core::{pool::Pool, query::query};
/// # use sqlx_postgres::Postgres;
/// use fencepost_fence::sqlx::lock_row;
///
/// # async fn sell(pool: Pool<Postgres>) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = pool.begin().await?;
/// let token = lock_row(&mut tx, "stock/42").await?;
/// query("UPDATE stock SET pieces = pieces - 3 WHERE id = 42 AND pieces >= 3").execute(&mut *tx).await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::BadName`] for a name that no lock can have, and [`Error::NoRowLocks`] for SQLite: nothing was sent. [`Error::NoTable`] if the
/// table is missing. [`Error::Driver`]: the server refused, as after a deadlock, or the connection failed. Roll the transaction back
/// after both.
///
/// # Cancel safety
/// A dropped future leaves the transaction with the lock or without it. Roll the transaction back. The drop of one that a pool began does
/// that; on a connection of your own the drop rolls back with the connection's next use.
pub async fn lock_row<DB>(
    transaction: &mut Transaction<'_, DB>,
    name: &str,
) -> Result<u64, Error<sqlx_core::Error>>
where
    DB: Database,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::Arguments: IntoArguments<DB>,
    for<'v> String: Encode<'v, DB>,
    String: Type<DB>,
    for<'v> i64: Decode<'v, DB>,
    i64: Type<DB>,
    usize: ColumnIndex<DB::Row>,
{
    lock_row_with(transaction, name, &RowLocks::new()).await
}

/// The same as [`lock_row`] with another table, or with a limit for the wait.
///
/// # Errors
/// Those of [`lock_row`]. [`Error::Busy`] if another transaction still had the lock after [`RowLocks::wait`]: this transaction goes on as
/// it was.
///
/// # Cancel safety
/// That of [`lock_row`]. With a limit, `innodb_lock_wait_timeout` of a session of MySQL may be left at the limit: close the connection.
pub async fn lock_row_with<DB>(
    transaction: &mut Transaction<'_, DB>,
    name: &str,
    locks: &RowLocks,
) -> Result<u64, Error<sqlx_core::Error>>
where
    DB: Database,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::Arguments: IntoArguments<DB>,
    for<'v> String: Encode<'v, DB>,
    String: Type<DB>,
    for<'v> i64: Decode<'v, DB>,
    i64: Type<DB>,
    usize: ColumnIndex<DB::Row>,
{
    let dialect = match DB::NAME {
        "PostgreSQL" => Dialect::Postgres,
        "MySQL" => Dialect::MySql,
        _ => return Err(Error::NoRowLocks),
    };
    locks.lock(&mut Locking { transaction, dialect }, name).await
}

struct Locking<'a, 't, DB: Database> {
    transaction: &'a mut Transaction<'t, DB>,
    dialect: Dialect,
}

impl<DB> Session for Locking<'_, '_, DB>
where
    DB: Database,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::Arguments: IntoArguments<DB>,
    for<'v> String: Encode<'v, DB>,
    String: Type<DB>,
    for<'v> i64: Decode<'v, DB>,
    i64: Type<DB>,
    usize: ColumnIndex<DB::Row>,
{
    type Error = sqlx_core::Error;

    fn dialect(&self) -> Dialect {
        self.dialect
    }

    async fn run(&mut self, text: String) -> Result<(), sqlx_core::Error> {
        raw_sql(AssertSqlSafe(text)).execute(&mut **self.transaction).await.map(drop)
    }

    async fn number(&mut self, text: String, name: Option<&str>) -> Result<Option<i64>, sqlx_core::Error> {
        let mut query: Bound<DB> = query(AssertSqlSafe(text));
        if let Some(name) = name {
            query = query.bind(name.to_owned());
        }
        let row = query.fetch_optional(&mut **self.transaction).await?;
        row.map(|row| row.try_get(0)).transpose()
    }

    fn is_late(error: &sqlx_core::Error) -> bool {
        is_coded(error, "55P03", "1205 ")
    }

    fn is_without_table(error: &sqlx_core::Error) -> bool {
        is_coded(error, "42P01", "1146 ")
    }
}

/// Whether an error of the server has this code of PostgreSQL, or begins with this number of MySQL, whose code means many errors.
fn is_coded(error: &sqlx_core::Error, code: &str, number: &str) -> bool {
    let Some(error) = error.as_database_error() else { return false };
    error.code().is_some_and(|own| own == code) || error.to_string().starts_with(number)
}
