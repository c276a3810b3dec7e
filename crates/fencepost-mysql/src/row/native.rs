//! The driver's view of row locks: the open transaction of a guard, and a lock in a transaction of the caller's own.

use std::fmt;
use std::sync::Arc;

use fencepost_core::{Error, ErrorKind, Guard, Name, Result};
use fencepost_sql::{LockOptions, RowLock, TableName};
use mysql_async::prelude::Queryable;
use mysql_async::{DriverError, Params, Row, ServerError, Transaction, Value};
use mysql_common::named_params::ParsedNamedParams;

use crate::conn::channel::Answer;
use crate::error::{self, ENGINE, NO_TABLE, Unanswered};
use crate::row::server::MysqlRow;
use crate::schema::rows::MYSQL_ROWS;

/// The server in messages: its address is not known here.
const SERVER: &str = "MySQL";

/// The server's error for a transaction that it has rolled back, because two waited for each other.
const DEADLOCK: u16 = 1213;

/// The longest wait for a row, in seconds, on MariaDB.
const MAX_WAIT: u128 = 100_000_000;

/// The open transaction of a row lock: what it writes commits with the lock's [release](Guard::release), and is undone with the drop of
/// the guard.
///
/// # What is guaranteed
/// - The writes commit only if the lock was held until then. If the lock was lost, the release fails and nothing was committed.
/// - A statement that fails is undone alone, and does not free the lock. A deadlock (1213) ends the transaction and the lock: the holder
///   is told at once, and the release fails.
/// - Renewals and your statements share the connection and wait for each other. A statement that takes longer than the lock's `ttl` is
///   ended, and the lock is lost.
///
/// # What is not guaranteed
/// - `COMMIT`, `ROLLBACK`, and statements that commit by themselves (`CREATE TABLE`, `BEGIN`), end the transaction, and with it the
///   lock. Leave them to the guard. Later writes are not committed.
/// - Once you have this value the connection serves no other lock: settings end with it. Statements after the guard's release fail.
/// - `sql_mode` is `STRICT_ALL_TABLES` and `time_zone` is UTC, unless you set them. Statements and rows are shorter than 16 MiB, and a
///   result has at most 250 columns.
#[derive(Clone)]
pub struct RowTransaction(Arc<MysqlRow>);

/// The outcome of a statement.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Executed {
    /// The rows of its result.
    pub rows: Vec<Row>,
    /// How many rows it changed.
    pub affected_rows: u64,
    /// The first number that it generated for an `AUTO_INCREMENT` column, or 0.
    pub last_insert_id: u64,
}

impl RowTransaction {
    pub(crate) fn new(row: Arc<MysqlRow>) -> RowTransaction {
        RowTransaction(row)
    }

    /// Returns the transaction of a guard. `None`: the guard's lock is not one of `mode=row`, or the guard is lost.
    ///
    /// ```
    /// # async fn example(locks: fencepost_core::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use fencepost_mysql::mysql_async::RowTransaction;
    ///
    /// let mut guard = locks.mutex("stock/42")?.lock().await?;
    /// let transaction = RowTransaction::of(&mut guard).ok_or("the URL lacks mode=row")?;
    /// transaction.execute("UPDATE stock SET pieces = pieces - ? WHERE id = ?", (3, 42)).await?;
    /// guard.release().await?; // commits
    /// # Ok(())
    /// # }
    /// ```
    pub fn of(guard: &mut Guard) -> Option<RowTransaction> {
        guard.native()?.downcast_ref::<RowTransaction>().cloned()
    }

    /// Runs a statement in the transaction. Without parameters it is sent as it is, else it is prepared first.
    ///
    /// # Errors
    /// [`Server`](mysql_async::Error::Server) if the server refuses it: it is undone alone, except after a deadlock.
    /// [`DriverError::ConnectionClosed`] if the transaction is over.
    ///
    /// # Cancel safety
    /// Dropped midway, the statement takes effect in the transaction or not. The next one waits for it.
    pub async fn execute(&self, statement: &str, params: impl Into<Params>) -> mysql_async::Result<Executed> {
        let params = params.into();
        if matches!(params, Params::Empty) {
            let sent = self.0.lend(|client| client.channel.query(statement));
            return self.finish(sent.ok_or(DriverError::ConnectionClosed)?.await);
        }
        let named = ParsedNamedParams::parse(statement.as_bytes()).map_err(|_| DriverError::MixedParams)?;
        let names: Vec<Vec<u8>> = named.params().iter().map(|name| name.to_vec()).collect();
        let values = params.into_values(Some(&names)).map_err(DriverError::Params)?;
        let text = String::from_utf8_lossy(named.query());
        let prepared = self.0.lend(|client| client.channel.prepare(&text));
        let prepared = self.read(prepared.ok_or(DriverError::ConnectionClosed)?.await)?;
        if usize::from(prepared.parameters) != values.len() {
            let (required, supplied) = (prepared.parameters, values.len());
            return Err(DriverError::StmtParamsMismatch { required, supplied }.into());
        }
        let sent = self.0.lend(|client| client.channel.execute(prepared.number, &values));
        self.finish(sent.ok_or(DriverError::ConnectionClosed)?.await)
    }

    /// Reads the reply to a statement that was executed. One that ended the transaction ended the lock: the holder is told.
    fn finish(&self, reply: std::result::Result<Answer, Unanswered>) -> mysql_async::Result<Executed> {
        let answer = self.read(reply)?;
        if !answer.in_transaction {
            self.0.end();
        }
        Ok(Executed { rows: answer.rows, affected_rows: answer.affected, last_insert_id: answer.insert_id })
    }

    fn read<T>(&self, reply: std::result::Result<T, Unanswered>) -> mysql_async::Result<T> {
        reply.map_err(|error| match error {
            Unanswered::Refused { code, message } => {
                if code == DEADLOCK {
                    self.0.end();
                }
                mysql_async::Error::Server(ServerError { code, message, state: String::new() })
            }
            Unanswered::Ended => DriverError::ConnectionClosed.into(),
        })
    }
}

impl fmt::Debug for RowTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowTransaction").finish_non_exhaustive()
    }
}

/// Makes the row of a lock, unless it is there. Call it once for each name, outside of a transaction: a row that is not committed makes
/// others wait for its transaction.
///
/// # Errors
/// [`is_invalid`](Error::is_invalid) for a bad name or table, [`is_denied`](Error::is_denied), or what the server says.
///
/// # Cancel safety
/// Dropped midway, the row is made or not.
pub async fn make_row(connection: &mut mysql_async::Conn, name: &str, options: &LockOptions) -> Result<()> {
    let (name, table, stored) = row(options, name)?;
    let text = format!("INSERT IGNORE INTO {} (name) VALUES (?)", table.quoted("", '`'));
    connection.exec_drop(text, (stored,)).await.map_err(|error| failed(error, &name))
}

/// Locks a name in a transaction of your own, and draws a token. Clients of `mode=row` with the same database, table and prefix exclude it.
///
/// Begin the transaction as `READ COMMITTED`, or lock before it reads anything: a `REPEATABLE READ` transaction goes on to see what was
/// committed before its first read, and not what the last holder has written.
///
/// Nothing renews the lock, and operators do not see it. The server frees it when the connection ends, or is silent for its
/// `wait_timeout`.
///
/// # Errors
/// [`is_timeout`](Error::is_timeout) if another transaction has the lock for longer than `options.wait`, in whole seconds: the
/// transaction is as it was. [`is_configuration`](Error::is_configuration) if the [row](make_row) is missing, or if
/// `innodb_rollback_on_timeout` is on and `options.wait` is given. After another error roll the transaction back; after a deadlock the
/// server has.
///
/// # Cancel safety
/// Dropped midway, the transaction has the lock or not, and `innodb_lock_wait_timeout` of the session may be changed. Close the connection.
pub async fn lock_in(
    transaction: &mut Transaction<'_>,
    name: &str,
    options: &LockOptions,
) -> Result<RowLock> {
    let (name, table, stored) = row(options, name)?;
    let sql = |error: mysql_async::Error| failed(error, &name);
    let configuration =
        |message: &str| Error::new(ErrorKind::Configuration, message).of(name.clone()).on(ENGINE);
    let facts = "SELECT @@session.innodb_lock_wait_timeout, @@innodb_rollback_on_timeout";
    let facts: Option<(u64, u8)> = transaction.query_first(facts).await.map_err(sql)?;
    let (timeout, ends) = facts.unwrap_or((50, 1));
    if ends != 0 && options.wait.is_some() {
        return Err(configuration(
            "innodb_rollback_on_timeout is on, so a wait that ends would undo the transaction; lock without options.wait",
        ));
    }
    // No row is read before the lock: a transaction that repeats its reads would see what was committed before. Zero skips a row, and
    // parts of a second are none.
    let skips = options.wait.is_some_and(|wait| wait.is_zero());
    let seconds = options.wait.map_or(MAX_WAIT, |wait| wait.as_millis().div_ceil(1_000).clamp(1, MAX_WAIT));
    let lock = MYSQL_ROWS.lock(&table, options.shared, skips).replace("$1", "?");
    transaction.query_drop(format!("SET SESSION innodb_lock_wait_timeout = {seconds}")).await.map_err(sql)?;
    let locked: std::result::Result<Option<u8>, _> = transaction.exec_first(lock, (&*stored,)).await;
    let restored = transaction.query_drop(format!("SET SESSION innodb_lock_wait_timeout = {timeout}")).await;
    let is_late =
        |error: &mysql_async::Error| matches!(error, mysql_async::Error::Server(error) if error.code == 1205);
    let is_locked = match locked {
        Err(error) if is_late(&error) => false,
        locked => locked.map_err(sql)?.is_some(),
    };
    restored.map_err(sql)?;
    if !is_locked {
        let count = format!("SELECT COUNT(*) FROM {} WHERE name = ?", table.quoted("", '`'));
        let count: Option<u64> = transaction.exec_first(count, (&*stored,)).await.map_err(sql)?;
        if count == Some(0) {
            return Err(configuration(
                "the lock has no row yet; make it with make_row() before the transaction",
            ));
        }
        let message = format!("still busy after {:?}", options.wait.unwrap_or_default());
        return Err(Error::new(ErrorKind::Timeout, message).transient(true).of(name).on(ENGINE));
    }
    // After the lock, or the order of tokens is not that of holders.
    let text = MYSQL_ROWS.draw(&table, options.shared).replace("$1", "?");
    let mut drawn = transaction.exec_iter(text, (Value::from(stored),)).await.map_err(sql)?;
    let token = match drawn.last_insert_id() {
        Some(token) => token,
        None => drawn.next().await.map_err(sql)?.and_then(|mut row| row.take(0)).unwrap_or_default(),
    };
    drawn.drop_result().await.map_err(sql)?;
    Ok(RowLock::new(name, token))
}

fn row(options: &LockOptions, name: &str) -> Result<(Name, TableName, String)> {
    options.row(&MYSQL_ROWS, name).map_err(|error| error.on(ENGINE))
}

fn failed(error: mysql_async::Error, name: &Name) -> Error {
    let error = match error {
        mysql_async::Error::Server(ServerError { code: NO_TABLE, message, .. }) => {
            let advice =
                "a table of mode=row is missing; run fencepost schema --apply with mode=row in the URL";
            return Error::new(ErrorKind::Configuration, advice).because(message).of(name.clone()).on(ENGINE);
        }
        mysql_async::Error::Server(ServerError { code, message, .. }) => {
            error::read(Unanswered::Refused { code, message }, SERVER)
        }
        other => fencepost_sql::Failure::ended(SERVER).because(other),
    };
    error.on(ENGINE).of(name.clone())
}
