//! Locks by name that are rows of a program's own transaction.

use std::time::Duration;

use crate::{Dialect, Error, InvalidName, Table};

/// The longest name of a lock, in bytes.
const LONGEST: usize = 255;

/// The server's longest limits: PostgreSQL's is in milliseconds of 31 bits, MySQL's in seconds.
const LONGEST_WAIT: Duration = Duration::from_millis(i32::MAX as u64);

/// The table of row locks, and how long a lock is waited for.
///
/// `lock_row` of the modules [`sqlx`](crate::sqlx), [`tokio_postgres`](crate::tokio_postgres) and [`mysql_async`](crate::mysql_async)
/// locks a name in a transaction of yours and returns a fencing token. The transaction holds the lock until it commits, is rolled back,
/// or its connection ends.
///
/// # What is guaranteed
/// - Of two transactions that lock a name in the same table of the same server, the second one waits until the first one has ended.
/// - The token is greater than that of each transaction that had the lock before, also of one that was rolled back, unless the clock of
///   the server was set back. It is stored in the lock's row by your transaction, so it is committed together with your change.
/// - What a transaction has written is not committed unless it had its locks until the commit.
///
/// # What is not guaranteed
/// - There is no order: a transaction that asks later may have the lock first.
/// - Nothing renews the lock, and a program that hangs keeps it. Let the server end such a transaction: by
///   `idle_in_transaction_session_timeout` or `transaction_timeout` on PostgreSQL, by `idle_transaction_timeout` on MariaDB, and by
///   `wait_timeout` on MySQL.
/// - On MySQL and MariaDB, a transaction that has read before it locks does not see what the last holder has written, unless it is
///   `READ COMMITTED`. PostgreSQL refuses such a transaction with the error 40001.
/// - The rows stay. A row may be deleted while no program uses its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowLocks {
    table: Table,
    wait: Option<Duration>,
}

impl Default for RowLocks {
    fn default() -> RowLocks {
        RowLocks::new()
    }
}

impl RowLocks {
    /// The table `fencepost_row`, with the server's own limit of waiting.
    #[must_use]
    pub fn new() -> RowLocks {
        let table = Table::new("fencepost_row", "name").expect("these are names");
        RowLocks { table, wait: None }
    }

    /// Uses another table. Programs that use different tables do not exclude each other.
    ///
    /// # Errors
    /// [`InvalidName`] if the name is empty, longer than 63 bytes, or has a control character.
    pub fn table(self, name: &str) -> Result<RowLocks, InvalidName> {
        let table = Table { schema: self.table.schema, ..Table::new(name, "name")? };
        Ok(RowLocks { table, ..self })
    }

    /// Sets the schema of the table, in MySQL the database. Without it the connection's default applies.
    ///
    /// # Errors
    /// As [`table`](RowLocks::table).
    pub fn schema(self, schema: &str) -> Result<RowLocks, InvalidName> {
        Ok(RowLocks { table: self.table.schema(schema)?, ..self })
    }

    /// Limits how long a lock is waited for. A lock that is still held then is [`Error::Busy`], and the transaction goes on as it was. The
    /// limit is rounded up: to milliseconds on PostgreSQL, and to seconds on MySQL and MariaDB, which wait for a second at least.
    ///
    /// Without this the server's own limit applies: `lock_timeout` of PostgreSQL, which is off by default, and
    /// `innodb_lock_wait_timeout` of MySQL, 50 s by default. It is then an error of the driver.
    #[must_use]
    pub fn wait(self, limit: Duration) -> RowLocks {
        RowLocks { wait: Some(limit), ..self }
    }

    /// Returns the statement that creates the table. Users of the locks need `SELECT`, `INSERT` and `UPDATE` on it.
    pub fn create_table(&self, dialect: Dialect) -> String {
        let table = self.table.quoted(dialect);
        let (name, end) = match dialect {
            Dialect::Postgres => ("text COLLATE \"C\" PRIMARY KEY", ""),
            Dialect::MySql => ("VARBINARY(255) NOT NULL PRIMARY KEY", " ENGINE = InnoDB"),
            Dialect::Sqlite => ("TEXT PRIMARY KEY", ""),
        };
        let [key, token] = [&self.table.key, &self.table.token].map(|column| dialect.quoted(column));
        format!("CREATE TABLE IF NOT EXISTS {table} ({key} {name}, {token} BIGINT NOT NULL){end}")
    }

    /// Locks a name in the transaction of `session`, and returns its token.
    pub(crate) async fn lock<S: Session>(&self, session: &mut S, name: &str) -> Result<u64, Error<S::Error>> {
        checked(name)?;
        let statements = Statements::new(&self.table, session.dialect(), self.wait);
        if let Some([begin, _, _]) = &statements.limit {
            session.run(begin.clone()).await.map_err(Self::failed::<S>)?;
        }
        if let Err(error) = statements.lock(session, name).await {
            return Err(self.unlocked(session, &statements, name, error).await?);
        }
        if let Some([_, restore, _]) = &statements.limit {
            session.run(restore.clone()).await.map_err(Self::failed::<S>)?;
        }
        // Each is a statement of its own after the lock: one that waits has computed its values before the wait.
        if let Some(raise) = &statements.raise {
            session.number(raise.clone(), Some(name)).await.map_err(Self::failed::<S>)?;
        }
        let token = session.number(statements.token, Some(name)).await.map_err(Self::failed::<S>)?;
        token.map(i64::unsigned_abs).ok_or(Error::Missing)
    }

    /// Returns why a name was not locked. If it was waited for too long, the transaction goes on.
    async fn unlocked<S: Session>(
        &self,
        session: &mut S,
        statements: &Statements,
        name: &str,
        error: S::Error,
    ) -> Result<Error<S::Error>, Error<S::Error>> {
        let (Some([_, _, undo]), Some(wait)) = (&statements.limit, self.wait) else {
            return Ok(Self::failed::<S>(error));
        };
        if !S::is_late(&error) {
            // PostgreSQL takes the limit back with the transaction. MySQL's belongs to the session, so it would stay. If the connection
            // fails here as well, the first error says more.
            if session.dialect() == Dialect::MySql {
                let _ = session.run(undo.clone()).await;
            }
            return Ok(Self::failed::<S>(error));
        }
        session.run(undo.clone()).await.map_err(Self::failed::<S>)?;
        // The server has undone all of the transaction, so it must not go on.
        if session.dialect() == Dialect::MySql {
            let undone =
                session.number("SELECT CAST(@@innodb_rollback_on_timeout AS SIGNED)".to_owned(), None);
            if undone.await.map_err(Self::failed::<S>)? != Some(0) {
                return Ok(Self::failed::<S>(error));
            }
        }
        Ok(Error::Busy { name: name.to_owned(), wait })
    }

    fn failed<S: Session>(error: S::Error) -> Error<S::Error> {
        if S::is_without_table(&error) { Error::NoTable(error) } else { Error::Driver(error) }
    }
}

/// The texts for one lock.
struct Statements {
    /// Reads whether the row is there, and locks it.
    find: Option<String>,
    /// Makes the row and locks it, or waits for the transaction that makes it.
    make: String,
    /// Raises the token, where another statement returns it.
    raise: Option<String>,
    /// Returns the token.
    token: String,
    /// Sets the limit of waiting, sets it back after the lock, and undoes what has failed.
    limit: Option<[String; 3]>,
}

impl Statements {
    fn new(table: &Table, dialect: Dialect, wait: Option<Duration>) -> Statements {
        let wait = wait.map(|wait| wait.min(LONGEST_WAIT).as_micros());
        let (place, parameter) = (table.quoted(dialect), dialect.parameter(1));
        let [key, token] = [&table.key, &table.token].map(|column| dialect.quoted(column));
        let insert = format!("INSERT INTO {place} ({key}, {token}) VALUES ({parameter}, 0)");
        let update = |now: &str| {
            format!("UPDATE {place} SET {token} = GREATEST({token} + 1, {now}) WHERE {key} = {parameter}")
        };
        if dialect == Dialect::Postgres {
            let update = update("(extract(epoch FROM clock_timestamp()) * 1000000)::int8");
            let limit = wait.map(|wait| {
                // Zero is no limit to the server.
                let millis = wait.div_ceil(1_000).max(1);
                [
                    format!(
                        "SAVEPOINT fencepost_lock; \
                         SELECT set_config('fencepost.lock_timeout', current_setting('lock_timeout'), true); \
                         SET LOCAL lock_timeout = {millis}"
                    ),
                    "SELECT set_config('lock_timeout', current_setting('fencepost.lock_timeout'), true); \
                     RELEASE SAVEPOINT fencepost_lock"
                        .to_owned(),
                    "ROLLBACK TO SAVEPOINT fencepost_lock; RELEASE SAVEPOINT fencepost_lock".to_owned(),
                ]
            });
            return Statements {
                find: Some(format!("SELECT {token} FROM {place} WHERE {key} = {parameter} FOR UPDATE")),
                make: format!("{insert} ON CONFLICT ({key}) DO NOTHING"),
                raise: None,
                token: format!("{update} RETURNING {token}"),
                limit,
            };
        }
        let limit = wait.map(|wait| {
            let seconds = wait.div_ceil(1_000_000).max(1);
            let restore = "SET SESSION innodb_lock_wait_timeout = @fencepost_lock_wait".to_owned();
            let set = format!(
                "SET @fencepost_lock_wait = @@session.innodb_lock_wait_timeout, SESSION innodb_lock_wait_timeout = {seconds}"
            );
            [set, restore.clone(), restore]
        });
        Statements {
            // A locking read of a row that is missing locks a gap, and two transactions that do so cannot insert.
            find: None,
            make: format!("{insert} ON DUPLICATE KEY UPDATE {token} = {token}"),
            raise: Some(update("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))")),
            // A plain read would show the transaction the data of this moment for all of its time.
            token: format!("SELECT {token} FROM {place} WHERE {key} = {parameter} FOR UPDATE"),
            limit,
        }
    }

    /// Locks the row of a name, and makes it if it is missing.
    async fn lock<S: Session>(&self, session: &mut S, name: &str) -> Result<(), S::Error> {
        let Some(find) = &self.find else {
            return session.number(self.make.clone(), Some(name)).await.map(drop);
        };
        if session.number(find.clone(), Some(name)).await?.is_none() {
            session.number(self.make.clone(), Some(name)).await?;
            // Another transaction may have made it.
            session.number(find.clone(), Some(name)).await?;
        }
        Ok(())
    }
}

/// A transaction of a driver.
pub(crate) trait Session: Send {
    /// The driver's error.
    type Error: Send;

    /// The database's SQL.
    fn dialect(&self) -> Dialect;

    /// Runs statements without parameters. Only PostgreSQL gets several.
    fn run(&mut self, text: String) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Runs a statement whose parameter is the name. Returns the number in the first column of its row.
    fn number(
        &mut self,
        text: String,
        name: Option<&str>,
    ) -> impl Future<Output = Result<Option<i64>, Self::Error>> + Send;

    /// Whether the server's limit for waiting has ended the statement.
    fn is_late(error: &Self::Error) -> bool;

    /// Whether the table is missing.
    fn is_without_table(error: &Self::Error) -> bool;
}

/// Refuses what no lock of fencepost can be called.
fn checked<E>(name: &str) -> Result<(), Error<E>> {
    let why = if name.is_empty() {
        "it is empty"
    } else if name.len() > LONGEST {
        "it is longer than 255 bytes"
    } else if name.chars().any(char::is_control) {
        "it has a control character"
    } else if name.trim() != name {
        "it begins or ends with white space"
    } else {
        return Ok(());
    };
    Err(Error::BadName { why })
}
