//! The statements of MySQL's and MariaDB's named locks, and of the table of their tokens.

use std::fmt::Write;

/// The table of tokens. It keeps the plain names of locks and their holders, too.
///
/// A lost or removed row does no harm: tokens begin with the time, in microseconds since 1970. Clients remove rows that nobody has
/// used for 30 days.
pub(crate) const CREATE_TABLE: &str = "CREATE TABLE IF NOT EXISTS fencepost_token (\
    lock_name VARBINARY(64) NOT NULL PRIMARY KEY, name VARBINARY(512) NOT NULL, token BIGINT UNSIGNED NOT NULL, \
    session BIGINT UNSIGNED NOT NULL, holder BLOB NOT NULL, evicted BIGINT UNSIGNED, why BLOB, KEY by_name (name), \
    KEY by_evicted (evicted)) ENGINE = InnoDB";

/// The table of records beside named locks.
pub(crate) const CREATE_RECORDS: &str = "CREATE TABLE IF NOT EXISTS fencepost_record (\
    kind VARBINARY(16) NOT NULL, name VARBINARY(512) NOT NULL, version BIGINT NOT NULL, keep_until BIGINT NOT NULL, \
    record MEDIUMTEXT NOT NULL, PRIMARY KEY (kind, name), KEY by_keep_until (keep_until)) \
    ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin";

/// Returns nothing if the table of records is there and the user may read it.
pub(crate) const FIND_RECORDS: &str = "SELECT 1 FROM fencepost_record WHERE kind = ''";

/// The columns that a grant writes.
macro_rules! insert {
    () => {
        "INSERT INTO fencepost_token (lock_name, name, token, session, holder) "
    };
}

/// The time in microseconds since 1970.
macro_rules! time {
    () => {
        "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS UNSIGNED)"
    };
}

/// The tokens of locks that nobody was granted for 30 days are not above this one.
macro_rules! old {
    () => {
        "CAST(UNIX_TIMESTAMP(NOW(6) - INTERVAL 30 DAY) * 1000000 AS UNSIGNED)"
    };
}

/// The token is greater than the last one of the lock.
macro_rules! next {
    () => {
        "GREATEST(fencepost_token.token + 1, VALUES(token))"
    };
}

/// The other columns of a row that is there.
macro_rules! replace {
    () => {
        "session = VALUES(session), holder = VALUES(holder), evicted = NULL, why = NULL"
    };
}

/// Draws the token of a lock that this session holds, and stores its holder.
macro_rules! draw {
    ($condition:literal) => {
        concat!(
            insert!(),
            "SELECT ?, ?, LAST_INSERT_ID(",
            time!(),
            "), CONNECTION_ID(), ? FROM DUAL ",
            $condition,
            " ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(",
            next!(),
            "), ",
            replace!()
        )
    };
}

/// Takes the lock and draws the token in one statement. The server calls `GET_LOCK` before it touches the row.
pub(crate) const TRY_AND_DRAW: &str = draw!("WHERE GET_LOCK(?, 0) = 1");

/// Draws the token after a wait. A statement that waits must not be one that writes: `FLUSH TABLES WITH READ LOCK` would wait for it,
/// and all writes of the server for that.
pub(crate) const DRAW: &str = draw!("");

/// A lock that is to be taken, and its row.
#[derive(Clone, Debug)]
pub(crate) struct MysqlTry {
    /// The server's name of the lock.
    pub(crate) lock: Vec<u8>,
    /// The plain name.
    pub(crate) name: Vec<u8>,
    /// Describes the holder.
    pub(crate) holder: Vec<u8>,
}

/// Returns two statements for the same as [`TRY_AND_DRAW`] with several locks, which this session does not hold. The first one takes
/// those that are free, and draws their tokens. Its commit is one flush of the server's log. The second one returns the locks that were
/// taken, with their tokens. A lock whose row somebody has changed or deleted meanwhile has no token there. If the first one fails,
/// locks may be taken, and the reply of the second one says nothing.
#[must_use]
pub(crate) fn try_all<'a>(tries: impl IntoIterator<Item = &'a MysqlTry>) -> [String; 2] {
    let (mut asked, mut locks) = (Vec::new(), Vec::new());
    for MysqlTry { lock, name, holder } in tries {
        let columns = [(lock, "wanted"), (name, "plain"), (holder, "label")];
        let columns = columns.map(|(value, column)| format!("{} AS {column}", text(value)));
        asked.push(format!("SELECT {}", columns.join(", ")));
        locks.push(format!("SELECT {} AS wanted", text(lock)));
    }
    [
        format!(
            concat!(
                insert!(),
                "SELECT wanted, plain, ",
                time!(),
                ", CONNECTION_ID(), label FROM ({}) AS asked WHERE GET_LOCK(asked.wanted, 0) = 1 ON DUPLICATE KEY UPDATE token = ",
                next!(),
                ", ",
                replace!()
            ),
            asked.join(" UNION ALL ")
        ),
        format!(
            "SELECT asked.wanted, t.token FROM ({}) AS asked LEFT JOIN fencepost_token t \
             ON t.lock_name = asked.wanted AND t.session = CONNECTION_ID() \
             WHERE IS_USED_LOCK(asked.wanted) = CONNECTION_ID()",
            locks.join(" UNION ALL ")
        ),
    ]
}

/// Selects who holds the locks of a name. A row describes the last grant, which another session may have followed by hand.
pub(crate) const HOLDERS: &str = "SELECT name, IS_USED_LOCK(lock_name), session, token, holder, evicted IS NOT NULL \
    FROM fencepost_token WHERE name = ? AND IS_USED_LOCK(lock_name) IS NOT NULL";

/// Selects the same of a page of names.
pub(crate) const LIST: &str = "SELECT t.name, IS_USED_LOCK(lock_name), session, token, holder, evicted IS NOT NULL \
    FROM (SELECT DISTINCT name FROM fencepost_token WHERE name >= ? AND LEFT(name, LENGTH(?)) = ? AND name > ? \
    AND IS_USED_LOCK(lock_name) IS NOT NULL ORDER BY name LIMIT ?) AS page JOIN fencepost_token t ON t.name = page.name \
    WHERE IS_USED_LOCK(lock_name) IS NOT NULL ORDER BY t.name";

/// Selects the statements that wait for a lock. A user without the right `PROCESS` sees those of the same user.
pub(crate) const WAITERS: &str = "SELECT INFO FROM information_schema.PROCESSLIST \
    WHERE STATE = 'User lock' AND LEFT(INFO, LENGTH(?)) = ? ORDER BY TIME DESC, ID";

/// Selects the other locks that a session holds.
pub(crate) const ALSO: &str =
    "SELECT DISTINCT name FROM fencepost_token WHERE IS_USED_LOCK(lock_name) = ? AND name <> ? ORDER BY name";

/// Marks the holder of a lock as evicted.
pub(crate) const EVICT: &str =
    "UPDATE fencepost_token SET evicted = session, why = ? WHERE name = ? AND token = ?";

/// Selects the locks of this session that operators have evicted.
pub(crate) const EVICTED: &str =
    "SELECT DISTINCT name, token, why FROM fencepost_token WHERE evicted = CONNECTION_ID()";

/// How many rows [`old_rows`] reads at once.
pub(crate) const PAGE: usize = 500;

/// Returns the statement that reads the locks behind `last`, in order, and whether nobody has each and was granted it for 30 days. It
/// locks no row.
#[must_use]
pub(crate) fn old_rows(last: &[u8]) -> String {
    format!(
        concat!(
            "SELECT lock_name, CASE WHEN token <= ",
            old!(),
            " THEN IS_USED_LOCK(lock_name) IS NULL ELSE 0 END FROM fencepost_token WHERE lock_name > {} ORDER BY lock_name LIMIT {}"
        ),
        text(last),
        PAGE
    )
}

/// Returns the statement that removes the row of a lock, if nobody has the lock and it is still old.
///
/// A grant takes the lock before it writes the row. So it has written the row, whose token is not old then, or it waits for this
/// statement and makes the row again. This statement locks one row alone, so no deadlock can end a claim's statement.
#[must_use]
pub(crate) fn remove_old(lock: &[u8]) -> String {
    format!(
        concat!(
            "DELETE FROM fencepost_token WHERE lock_name = {} AND token <= ",
            old!(),
            " AND IS_USED_LOCK(lock_name) IS NULL"
        ),
        text(lock)
    )
}

/// Returns the statement that waits for a lock. It is a text, which operators see in the server's list of processes: the comment
/// describes the claim. Hexadecimal needs no quotes. It waits for a year: -1 means no wait at all on MariaDB. The claim ends the
/// wait before.
#[must_use]
pub(crate) fn wait(key: &str, holder: &[u8]) -> String {
    format!("{}31536000) /* {} */", wait_begins(key), text(holder))
}

/// Returns how the statements begin that wait for a lock.
#[must_use]
pub(crate) fn wait_begins(key: &str) -> String {
    format!("SELECT GET_LOCK({}, ", text(key))
}

/// The beginning of all statements that wait for a lock.
pub(crate) const WAIT_BEGINS: &str = "SELECT GET_LOCK(_utf8mb4 0x";

/// Returns the key and the description of the claim that waits by this statement.
#[must_use]
pub(crate) fn read_wait(statement: &str) -> Option<(String, Vec<u8>)> {
    let (key, rest) = statement.strip_prefix(WAIT_BEGINS)?.split_once(", ")?;
    let (_, comment) = rest.split_once("/* ")?;
    let (holder, _) = comment.strip_prefix("_utf8mb4 0x")?.split_once(" */")?;
    Some((String::from_utf8(from_hex(key)?).ok()?, from_hex(holder)?))
}

/// Returns a text as MySQL and MariaDB read it in each mode: hexadecimal needs no quotes.
pub(crate) fn text(text: impl AsRef<[u8]>) -> String {
    text.as_ref().iter().fold("_utf8mb4 0x".to_owned(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn from_hex(hex: &str) -> Option<Vec<u8>> {
    let byte = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
    (0..hex.len()).step_by(2).map(byte).collect()
}
