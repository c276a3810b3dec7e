//! Row locks in transactions of mysql_async.

use crate::lock_row::Session;
use crate::{Dialect, Error, RowLocks};
use mysql_async::prelude::Queryable;
use mysql_async::{Params, Transaction};

/// The server's error for a wait that took too long.
const LATE: u16 = 1205;

/// The server's error for a table that does not exist.
const NO_TABLE: u16 = 1146;

/// Locks a name in a transaction, and returns a fencing token. The table is [`fencepost_row`](RowLocks::create_table).
///
/// The transaction holds the lock until it ends. [`RowLocks`] says what that guarantees. Call this before the transaction reads
/// anything, or begin it as `READ COMMITTED`.
///
/// ```
/// # async fn example(mut connection: mysql_async::Conn) -> Result<(), Box<dyn std::error::Error>> {
/// use fencepost_fence::mysql_async::lock_row;
/// use mysql_async::prelude::Queryable;
///
/// let mut tx = connection.start_transaction(Default::default()).await?;
/// let token = lock_row(&mut tx, "stock/42").await?;
/// tx.query_drop("UPDATE stock SET pieces = pieces - 3 WHERE id = 42 AND pieces >= 3").await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::BadName`] for a name that no lock can have: nothing was sent. [`Error::NoTable`] if the table is missing.
/// [`Error::Driver`]: the server refused, as after a deadlock (1213), or the connection failed. Roll the transaction back after both.
///
/// # Cancel safety
/// A dropped future leaves the transaction with the lock or without it. Roll the transaction back. The drop of one that a pool began does
/// that; on a connection of your own the drop rolls back with the connection's next use.
pub async fn lock_row(
    transaction: &mut Transaction<'_>,
    name: &str,
) -> Result<u64, Error<mysql_async::Error>> {
    lock_row_with(transaction, name, &RowLocks::new()).await
}

/// The same as [`lock_row`] with another table, or with a limit for the wait.
///
/// # Errors
/// Those of [`lock_row`]. [`Error::Busy`] if another transaction still had the lock after [`RowLocks::wait`]: this transaction goes on as
/// it was.
///
/// # Cancel safety
/// That of [`lock_row`]. With a limit, `innodb_lock_wait_timeout` of the session may be left at the limit: close the connection, or let
/// its pool reset it.
pub async fn lock_row_with(
    transaction: &mut Transaction<'_>,
    name: &str,
    locks: &RowLocks,
) -> Result<u64, Error<mysql_async::Error>> {
    locks.lock(&mut Locking(transaction), name).await
}

struct Locking<'a, 't>(&'a mut Transaction<'t>);

impl Session for Locking<'_, '_> {
    type Error = mysql_async::Error;

    fn dialect(&self) -> Dialect {
        Dialect::MySql
    }

    async fn run(&mut self, text: String) -> Result<(), mysql_async::Error> {
        self.0.query_drop(text).await
    }

    async fn number(&mut self, text: String, name: Option<&str>) -> Result<Option<i64>, mysql_async::Error> {
        let name = name.map_or(Params::Empty, |name| (name,).into());
        self.0.exec_first(text, name).await
    }

    fn is_late(error: &mysql_async::Error) -> bool {
        code(error) == Some(LATE)
    }

    fn is_without_table(error: &mysql_async::Error) -> bool {
        code(error) == Some(NO_TABLE)
    }
}

fn code(error: &mysql_async::Error) -> Option<u16> {
    match error {
        mysql_async::Error::Server(error) => Some(error.code),
        _ => None,
    }
}
