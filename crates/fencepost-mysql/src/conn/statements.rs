//! The statements of a connection, prepared once. They are sent together, in one round trip.

use fencepost_sql::mysql_text;
use futures_util::future::try_join_all;

use crate::conn::channel::Channel;
use crate::error::Unanswered;

/// The table of tokens. It keeps the plain names of locks and their holders, too.
///
/// A lost or removed row does no harm: tokens begin with the time, in microseconds since 1970.
pub(crate) const CREATE_TABLE: &str = "CREATE TABLE IF NOT EXISTS fencepost_token (\
    lock_name VARBINARY(64) NOT NULL PRIMARY KEY, name VARBINARY(512) NOT NULL, token BIGINT UNSIGNED NOT NULL, \
    session BIGINT UNSIGNED NOT NULL, holder BLOB NOT NULL, evicted BIGINT UNSIGNED, why BLOB, KEY by_name (name), \
    KEY by_evicted (evicted)) ENGINE = InnoDB";

/// Draws the token of a lock that this session holds, and stores its holder.
macro_rules! draw {
    ($($condition:expr),*) => {
        concat!(
            "INSERT INTO fencepost_token (lock_name, name, token, session, holder) ",
            "SELECT ?, ?, LAST_INSERT_ID(CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS UNSIGNED)), CONNECTION_ID(), ? FROM DUAL ",
            $($condition,)*
            " ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(GREATEST(fencepost_token.token + 1, VALUES(token))), \
             session = VALUES(session), holder = VALUES(holder), evicted = NULL, why = NULL"
        )
    };
}

/// Returns whether somebody holds permits: their locks lie between two texts.
macro_rules! permits_held {
    () => {
        "EXISTS (SELECT 1 FROM fencepost_token t WHERE t.lock_name BETWEEN ? AND ? AND IS_USED_LOCK(t.lock_name) IS NOT NULL)"
    };
}

/// Takes the lock and draws the token in one statement. The server calls `GET_LOCK` before it touches the row or looks for permits:
/// a subquery with `IS_USED_LOCK` is never read ahead. If permits are held, the lock is released.
pub(crate) const TRY_AND_DRAW: &str = draw!(
    "WHERE CASE WHEN GET_LOCK(?, 0) = 1 THEN CASE WHEN ",
    permits_held!(),
    " THEN RELEASE_LOCK(?) IS NULL ELSE TRUE END END"
);

/// Draws the token after a wait. A statement that waits must not be one that writes: `FLUSH TABLES WITH READ LOCK` would wait for it,
/// and all writes of the server for that.
const DRAW: &str = draw!("WHERE NOT ", permits_held!());

const TRY: &str = "SELECT GET_LOCK(?, 0)";

/// Returns the statement that waits for a lock. It is a text, which operators see in the server's list of processes: the comment
/// describes the claim. Hexadecimal needs no quotes. It waits for a year: -1 means no wait at all on MariaDB. The claim ends the
/// wait before.
pub(crate) fn wait(key: &str, holder: &[u8]) -> String {
    format!("{}31536000) /* {} */", wait_begins(key), mysql_text(holder))
}

/// Returns how the statements begin that wait for a lock.
pub(crate) fn wait_begins(key: &str) -> String {
    format!("SELECT GET_LOCK({}, ", mysql_text(key))
}

/// The beginning of all statements that wait for a lock.
pub(crate) const WAIT_BEGINS: &str = "SELECT GET_LOCK(_utf8mb4 0x";

/// Returns the key and the description of the claim that waits by this statement.
pub(crate) fn read_wait(statement: &str) -> Option<(String, Vec<u8>)> {
    let (key, rest) = statement.strip_prefix(WAIT_BEGINS)?.split_once(", ")?;
    let (_, comment) = rest.split_once("/* ")?;
    let (holder, _) = comment.strip_prefix("_utf8mb4 0x")?.split_once(" */")?;
    Some((String::from_utf8(from_hex(key)?).ok()?, from_hex(holder)?))
}

fn from_hex(hex: &str) -> Option<Vec<u8>> {
    let byte = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
    (0..hex.len()).step_by(2).map(byte).collect()
}

const RELEASE: &str = "SELECT RELEASE_LOCK(?)";

const SET_IDLE: &str = "SET SESSION wait_timeout = ?";

const IS_QUEUED: &str =
    "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = ? AND STATE = 'User lock'";

/// The prepared statements.
pub(crate) struct Statements {
    /// Takes a lock if it is free, and draws a token if there are tokens.
    pub(crate) try_lock: u32,
    /// Draws a token after a wait, unless permits are held. `None`: there are no tokens.
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
        let texts = [if tokens { TRY_AND_DRAW } else { TRY }, RELEASE, SET_IDLE, IS_QUEUED];
        let draw = tokens.then_some(DRAW);
        let prepared = try_join_all(texts.into_iter().chain(draw).map(|text| channel.prepare(text))).await?;
        let numbers: Vec<u32> = prepared.into_iter().map(|answer| answer.statement).collect();
        let (&[try_lock, release, set_idle, is_queued], draw) =
            numbers.split_first_chunk().expect("each text gives a statement");
        Ok(Statements { try_lock, draw: draw.first().copied(), release, set_idle, is_queued })
    }
}
