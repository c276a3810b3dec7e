//! The driver's view of row locks: the open transaction of a guard, and a lock in a transaction of the caller's own.

use std::fmt;
use std::sync::Arc;

use fencepost_core::{Error, ErrorKind, Guard, Name, Result};
use fencepost_sql::{LockOptions, RowLock};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, GenericClient, Row, Transaction};

use crate::error::{self, ENGINE};
use crate::row::server::PostgresRow;
use crate::schema::rows::POSTGRES_ROWS;

/// The server in messages: its address is not known here.
const SERVER: &str = "PostgreSQL";

/// The open transaction of a row lock: what it writes commits with the lock's [release](Guard::release), and is undone with the drop of
/// the guard.
///
/// # What is guaranteed
/// - The writes commit only if the lock was held until then. If the lock was lost, the release fails and nothing was committed.
/// - A statement that fails does not free the lock. The transaction answers no other statement until `ROLLBACK TO SAVEPOINT fencepost`,
///   or to a savepoint of your own. Without that the release fails, and nothing is committed.
/// - Renewals and your statements share the connection and wait for each other. A statement that takes longer than the lock's `ttl` is
///   cancelled, and the lock is lost.
///
/// # What is not guaranteed
/// - `COMMIT` and `ROLLBACK` end the transaction, and with it the lock. Leave them to the guard.
/// - Once you have this value the connection serves no other lock: settings and prepared statements end with it. Statements after the
///   guard's release fail.
#[derive(Clone)]
pub struct RowTransaction(Arc<PostgresRow>);

impl RowTransaction {
    pub(crate) fn new(row: Arc<PostgresRow>) -> RowTransaction {
        RowTransaction(row)
    }

    /// Returns the transaction of a guard. `None`: the guard's lock is not one of `mode=row`, or the guard is lost.
    ///
    /// ```
    /// # async fn example(locks: fencepost_core::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use fencepost_postgres::tokio_postgres::RowTransaction;
    ///
    /// let mut guard = locks.mutex("stock/42")?.lock().await?;
    /// let transaction = RowTransaction::of(&mut guard).ok_or("the URL lacks mode=row")?;
    /// transaction.client().execute("UPDATE stock SET pieces = pieces - 3 WHERE id = 42", &[]).await?;
    /// guard.release().await?; // commits
    /// # Ok(())
    /// # }
    /// ```
    pub fn of(guard: &mut Guard) -> Option<RowTransaction> {
        guard.native()?.downcast_ref::<RowTransaction>().cloned()
    }

    /// Returns the connection on which the transaction is open.
    pub fn client(&self) -> &Client {
        &self.0.client.driver
    }
}

impl fmt::Debug for RowTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowTransaction").finish_non_exhaustive()
    }
}

fn row(options: &LockOptions, name: &str) -> Result<(Name, String, String)> {
    let (name, table, stored) = options.row(&POSTGRES_ROWS, name).map_err(|error| error.on(ENGINE))?;
    Ok((name, table.quoted("", '"'), stored))
}

/// Makes the row of a lock, unless it is there. Call it once for each name, outside of a transaction: a row that is not committed makes
/// others wait for its transaction.
///
/// # Errors
/// [`is_invalid`](Error::is_invalid) for a bad name or table, [`is_denied`](Error::is_denied), or what the server says.
///
/// # Cancel safety
/// Dropped midway, the row is made or not.
pub async fn make_row(client: &Client, name: &str, options: &LockOptions) -> Result<()> {
    let (name, table, stored) = row(options, name)?;
    let text = format!("INSERT INTO {table} (name) VALUES ($1) ON CONFLICT (name) DO NOTHING");
    query(client, &text, &stored).await.map(drop).map_err(|error| failed(&error, &name))
}

/// Locks a name in a transaction of your own, and draws a token. The transaction must be `READ COMMITTED`. Clients of `mode=row` with the
/// same database, table and prefix exclude it.
///
/// Nothing renews the lock, and operators do not see it. Set `idle_in_transaction_session_timeout` if your process may fall silent.
///
/// # Errors
/// [`is_timeout`](Error::is_timeout) if another transaction has the lock for longer than `options.wait`: the transaction is as it was.
/// [`is_configuration`](Error::is_configuration) if the [row](make_row) is missing, or the isolation level is another one. After another
/// error the transaction can only be rolled back.
///
/// # Cancel safety
/// Dropped midway, the transaction has the lock or not, and the savepoint `fencepost_lock` may be left. Roll it back.
pub async fn lock_in(transaction: &Transaction<'_>, name: &str, options: &LockOptions) -> Result<RowLock> {
    let (name, table, stored) = row(options, name)?;
    let sql = |error: tokio_postgres::Error| failed(&error, &name);
    let configuration =
        |message: String| Error::new(ErrorKind::Configuration, message).of(name.clone()).on(ENGINE);
    let facts = "SELECT current_setting('transaction_isolation'), current_setting('lock_timeout')";
    let facts = transaction.query_typed_one(facts, &[]).await.map_err(sql)?;
    let (isolation, timeout): (String, String) = (facts.get(0), facts.get(1));
    if isolation != "read committed" {
        let message = format!(
            "the transaction is {isolation}, and would not see what the last holder has written; begin it as READ COMMITTED"
        );
        return Err(configuration(message));
    }
    let count = query(transaction, &format!("SELECT count(*) FROM {table} WHERE name = $1"), &stored).await;
    if count.map_err(sql)?.first().is_none_or(|row| row.get::<_, i64>(0) == 0) {
        return Err(configuration(
            "the lock has no row yet; make it with make_row() before the transaction".to_owned(),
        ));
    }
    let mode = if options.shared { "SHARE" } else { "UPDATE" };
    let busy = || {
        let message = format!("still busy after {:?}", options.wait.unwrap_or_default());
        Error::new(ErrorKind::Timeout, message).transient(true).of(name.clone()).on(ENGINE)
    };
    if options.wait.is_some_and(|wait| wait.is_zero()) {
        let text = format!("SELECT 1 FROM {table} WHERE name = $1 FOR {mode} SKIP LOCKED");
        if query(transaction, &text, &stored).await.map_err(sql)?.is_empty() {
            return Err(busy());
        }
    } else {
        // Zero is no limit to the server, and parts of a millisecond are none.
        let limit = options.wait.map_or(0, |wait| wait.as_micros().div_ceil(1_000).min(i32::MAX as u128));
        let begin = format!("SAVEPOINT fencepost_lock; SET LOCAL lock_timeout = {limit}");
        transaction.batch_execute(&begin).await.map_err(sql)?;
        match query(transaction, &format!("SELECT 1 FROM {table} WHERE name = $1 FOR {mode}"), &stored).await
        {
            Ok(_) => {}
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                let back = "ROLLBACK TO SAVEPOINT fencepost_lock; RELEASE SAVEPOINT fencepost_lock";
                transaction.batch_execute(back).await.map_err(sql)?;
                return Err(busy());
            }
            Err(error) => return Err(sql(error)),
        }
        let restore = "SELECT set_config('lock_timeout', $1, true)";
        query(transaction, restore, &timeout).await.map_err(sql)?;
        transaction.batch_execute("RELEASE SAVEPOINT fencepost_lock").await.map_err(sql)?;
    }
    // After the lock, or the order of tokens is not that of holders.
    let draw = "SELECT nextval('fencepost.token')";
    let token: i64 = transaction.query_typed_one(draw, &[]).await.map_err(sql)?.get(0);
    Ok(RowLock::new(name, token.unsigned_abs()))
}

async fn query(
    client: &impl GenericClient,
    text: &str,
    value: &str,
) -> std::result::Result<Vec<Row>, tokio_postgres::Error> {
    client.query_typed(text, &[(&value as &(dyn ToSql + Sync), Type::TEXT)]).await
}

fn failed(error: &tokio_postgres::Error, name: &Name) -> Error {
    let missing = [&SqlState::UNDEFINED_TABLE, &SqlState::INVALID_SCHEMA_NAME];
    if error.code().is_some_and(|code| missing.contains(&code)) {
        let message = "a table of mode=row is missing; run fencepost schema --apply with mode=row in the URL";
        return Error::new(ErrorKind::Configuration, message)
            .because(error.to_string())
            .of(name.clone())
            .on(ENGINE);
    }
    error::read(error, SERVER).on(ENGINE).of(name.clone())
}
