//! The statements of a connection, prepared once.

use futures_util::future::try_join_all;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Statement};

/// Writes a message to the log, so that the transaction has an id, and the server flushes its commit and waits for the standby that
/// `synchronous_standby_names` demands. Never null.
macro_rules! written {
    () => {
        "pg_logical_emit_message(true, 'fencepost', '') IS NOT NULL"
    };
}

/// Draws a token, which must happen after the grant: from the sequence that `fencepost schema --apply` makes, else the id of the
/// transaction. A crash must not repeat it.
///
/// A sequence logs 32 later values with the one that is drawn, and the transactions that draw those write nothing. So such a commit neither
/// flushes the log nor waits for a standby, even if the session that has logged the values has not done so yet. The message makes it do
/// both. It is left out if no commit waits for a standby and the log is flushed up to its end. The end is read after the draw, because it
/// then includes the record that logged this value. `CASE` makes the server evaluate in this order. Amazon Aurora refuses to tell positions of
/// the log, so each grant writes the message there.
macro_rules! token {
    () => {
        concat!(
            "CASE WHEN nextval(to_regclass('fencepost.token')) IS NULL THEN CASE WHEN ",
            written!(),
            " THEN pg_current_xact_id()::text::int8 END \
             WHEN CASE WHEN current_setting('synchronous_standby_names') <> '' OR to_regproc('aurora_version') IS NOT NULL \
             THEN false ELSE pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn() END THEN lastval() WHEN ",
            written!(),
            " THEN lastval() END"
        )
    };
}

/// Selects the advisory locks of a key.
macro_rules! of_key {
    ($key:literal) => {
        concat!(
            "l.locktype = 'advisory' AND l.objsubid = 1 \
             AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
             AND (l.classid::int8 << 32 | l.objid::int8) = ",
            $key
        )
    };
}

/// Returns whether nobody waits for key `$1`: a session that holds a shared lock gets it again before all waiters.
macro_rules! nobody_waits {
    () => {
        concat!("NOT EXISTS (SELECT FROM pg_locks l WHERE NOT l.granted AND ", of_key!("$1"), ")")
    };
}

/// Each statement returns the number of the backend that ran it: another one than before means a pooler. They stand in the order of
/// [`Sql`].
const TEXTS: [&str; 14] = [
    concat!("SELECT pg_backend_pid(), CASE WHEN pg_try_advisory_lock($1) THEN ", token!(), " END"),
    concat!("SELECT pg_backend_pid(), CASE WHEN pg_try_advisory_lock_shared($1) THEN ", token!(), " END"),
    concat!(
        "SELECT pg_backend_pid(), CASE WHEN ",
        nobody_waits!(),
        " THEN CASE WHEN pg_try_advisory_lock_shared($1) THEN ",
        token!(),
        " END END"
    ),
    concat!("SELECT pg_backend_pid(), pg_advisory_lock($1) IS NULL, ", token!()),
    concat!("SELECT pg_backend_pid(), pg_advisory_lock_shared($1) IS NULL, ", token!()),
    "SELECT pg_backend_pid(), pg_advisory_unlock($1)",
    "SELECT pg_backend_pid(), pg_advisory_unlock_shared($1)",
    "SELECT pg_backend_pid(), pg_advisory_unlock_all() IS NULL",
    "SELECT pg_backend_pid(), coalesce(bool_or(wait_event_type = 'Lock'), false) FROM pg_stat_get_activity($1)",
    "SELECT pg_backend_pid(), pg_cancel_backend($1)",
    "SELECT pg_backend_pid(), set_config('idle_session_timeout', $1, false)",
    "SELECT pg_backend_pid(), pg_notify($1, $2) IS NULL",
    concat!(
        "SELECT a.application_name, l.pid, l.granted, l.mode = 'ShareLock' FROM pg_locks l JOIN pg_stat_activity a USING (pid) ",
        "WHERE ",
        of_key!("$1"),
    ),
    "SELECT DISTINCT application_name FROM pg_stat_activity \
     WHERE datname = current_database() AND application_name LIKE 'fencepost_%'",
];

/// Returns the backends that hold keys whose names are in the table.
pub(crate) const NAMED: &str = "SELECT coalesce(a.application_name, ''), l.pid, true, l.mode = 'ShareLock', n.name FROM pg_locks l \
    JOIN fencepost.name n ON n.key = (l.classid::int8 << 32 | l.objid::int8) JOIN pg_stat_activity a USING (pid) \
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted \
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
    AND n.prefix = $1 AND starts_with(n.name, $2) AND n.name COLLATE \"C\" > $3 ORDER BY n.name COLLATE \"C\"";

/// Writes names to the table, in one order for all clients.
pub(crate) const WRITE_NAMES: &str = "INSERT INTO fencepost.name AS old (key, prefix, name) \
    SELECT key, $1, name FROM unnest($2::int8[], $3::text[]) AS new (key, name) ORDER BY key \
    ON CONFLICT (key) DO UPDATE SET used = current_date WHERE old.used < current_date";

/// Removes some names that nobody has used for 30 days. A lock may be held for longer.
pub(crate) const REMOVE_NAMES: &str = "DELETE FROM fencepost.name WHERE key IN (SELECT key FROM fencepost.name \
    WHERE used < current_date - 30 AND key NOT IN (SELECT l.classid::int8 << 32 | l.objid::int8 FROM pg_locks l \
    WHERE l.locktype = 'advisory' AND l.objsubid = 1) LIMIT 1000 FOR UPDATE SKIP LOCKED)";

/// A statement of a connection.
#[derive(Clone, Copy)]
pub(crate) enum Sql {
    /// Takes an exclusive lock if it is free, and draws a token.
    TryLock,
    /// Takes a shared lock if no exclusive one is held or awaited, and draws a token.
    TryShared,
    /// The same for a connection that holds the key already.
    TrySharedAgain,
    /// Waits for an exclusive lock, and draws a token after the wait.
    Lock,
    /// Waits for a shared lock, and draws a token after the wait.
    LockShared,
    /// Releases an exclusive lock. `false`: the connection did not hold it.
    Unlock,
    /// Releases a shared lock.
    UnlockShared,
    /// Releases all locks of the connection.
    UnlockAll,
    /// Returns whether another backend stands in the queue of a lock.
    IsQueued,
    /// Cancels the statement of another backend of this user.
    Cancel,
    /// Sets the idle timeout, which starts again with each statement.
    Ping,
    /// Sends a text to a channel.
    Notify,
    /// Returns the backends that hold a key or wait for it.
    Backends,
    /// Returns the names of the sessions of all clients.
    Sessions,
}

/// The prepared statements.
pub(crate) struct Statements(Vec<Statement>);

impl Statements {
    /// Prepares all statements in one round trip.
    pub(crate) async fn prepare(client: &Client) -> Result<Statements, Error> {
        let prepared = try_join_all(TEXTS.iter().map(|text| client.prepare(text))).await?;
        debug_assert_eq!(prepared[Sql::TryLock as usize].params(), [Type::INT8]);
        Ok(Statements(prepared))
    }

    pub(crate) fn get(&self, sql: Sql) -> &Statement {
        &self.0[sql as usize]
    }
}
