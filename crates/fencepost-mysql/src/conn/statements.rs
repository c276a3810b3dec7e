//! The statements of a connection, prepared once. They are sent together, in one round trip.

use futures_util::future::try_join_all;

use crate::conn::channel::Channel;
use crate::error::Unanswered;

/// The table of tokens. It keeps the plain names of locks and their holders, too.
///
/// A lost or removed row does no harm: tokens begin with the time, in microseconds since 1970.
pub(crate) const CREATE_TABLE: &str = "CREATE TABLE IF NOT EXISTS fencepost_token (\
    lock_name VARBINARY(64) NOT NULL PRIMARY KEY, name VARBINARY(512) NOT NULL, token BIGINT UNSIGNED NOT NULL, \
    session BIGINT UNSIGNED NOT NULL, holder BLOB NOT NULL, KEY by_name (name)) ENGINE = InnoDB";

/// Draws the token of a lock that this session holds, and stores its holder.
macro_rules! draw {
    ($condition:literal) => {
        concat!(
            "INSERT INTO fencepost_token (lock_name, name, token, session, holder) ",
            "SELECT ?, ?, LAST_INSERT_ID(CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS UNSIGNED)), CONNECTION_ID(), ? FROM DUAL ",
            $condition,
            " ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(GREATEST(token + 1, VALUES(token))), \
             session = VALUES(session), holder = VALUES(holder)"
        )
    };
}

/// Takes the lock and draws the token in one statement. The server calls `GET_LOCK` before it touches the row.
pub(crate) const TRY_AND_DRAW: &str = draw!("WHERE GET_LOCK(?, 0) = 1");

/// Draws the token after a wait. A statement that waits must not be one that writes: `FLUSH TABLES WITH READ LOCK` would wait for it,
/// and all writes of the server for that.
const DRAW: &str = draw!("");

const TRY: &str = "SELECT GET_LOCK(?, 0)";

/// Waits for a year: -1 means no wait at all on MariaDB. The claim ends the wait before.
const WAIT: &str = "SELECT GET_LOCK(?, 31536000)";

const RELEASE: &str = "SELECT RELEASE_LOCK(?)";

const SET_IDLE: &str = "SET SESSION wait_timeout = ?";

const IS_QUEUED: &str =
    "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = ? AND STATE = 'User lock'";

/// The prepared statements.
pub(crate) struct Statements {
    /// Takes a lock if it is free, and draws a token if there are tokens.
    pub(crate) try_lock: u32,
    /// Waits for a lock.
    pub(crate) wait: u32,
    /// Draws a token after a wait. `None`: there are no tokens.
    pub(crate) draw: Option<u32>,
    /// Releases a lock. `NULL` or 0: the connection did not hold it.
    pub(crate) release: u32,
    /// Sets the idle timeout, which starts again with each statement.
    pub(crate) set_idle: u32,
    /// Returns whether another session stands in the queue of a lock.
    pub(crate) is_queued: u32,
}

impl Statements {
    /// Prepares all statements in one round trip.
    pub(crate) async fn prepare(channel: &Channel, tokens: bool) -> Result<Statements, Unanswered> {
        let texts = [if tokens { TRY_AND_DRAW } else { TRY }, WAIT, RELEASE, SET_IDLE, IS_QUEUED];
        let draw = tokens.then_some(DRAW);
        let prepared =
            try_join_all(texts.iter().copied().chain(draw).map(|text| channel.prepare(text))).await?;
        let numbers: Vec<u32> = prepared.into_iter().map(|answer| answer.statement).collect();
        let (&[try_lock, wait, release, set_idle, is_queued], draw) =
            numbers.split_first_chunk().expect("each text gives a statement");
        Ok(Statements { try_lock, wait, draw: draw.first().copied(), release, set_idle, is_queued })
    }
}
