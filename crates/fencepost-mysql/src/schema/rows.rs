//! Row locks of MySQL 8.0.1 and newer, MariaDB 10.6 and newer.

use fencepost_sql::{OldTokens, RowDialect, TableName};

use super::dialect::MYSQL;

/// Row locks of MySQL and MariaDB. The connection of an open transaction holds a lock by `GET_LOCK`: any user can see that.
///
/// A token is committed by another connection than the transaction's, and is at least the time in microseconds: it grows after a crash
/// that lost commits, too.
pub(crate) const MYSQL_ROWS: RowDialect = RowDialect {
    table: "fencepost_row",
    quote: '`',
    values: &MYSQL,
    check: "SELECT 1 FROM {row} r LEFT JOIN {claim} c ON c.id = 0 LEFT JOIN {token} t ON t.name = '' \
            LEFT JOIN {record} n ON n.kind = '' WHERE r.name = ''",
    // Each server reads one of these comments.
    shared: "/*M! LOCK IN SHARE MODE {skip} *//*!80001 FOR SHARE {skip} */",
    // A row that others have locked is not touched.
    make: "INSERT INTO {row} (name) SELECT $1 FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM {row} r WHERE r.name = $1) \
           ON DUPLICATE KEY UPDATE {row}.name = {row}.name",
    begins: "LEFT({0}, LENGTH({1})) = {1}",
    open: "(IS_USED_LOCK(CONCAT('fencepost.row:', c.transaction)) <=> c.connection)",
    wait: "INSERT INTO {claim} (id, name, connection, transaction, shared, record) VALUES ($1, $2, $3, $4, $5, $6)",
    hold: &[
        "INSERT INTO {token} (name, token) \
         VALUES ($2, LAST_INSERT_ID(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))) \
         ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(GREATEST(token + 1, VALUES(token)))",
        "INSERT INTO {claim} (id, name, connection, transaction, shared, record, token) \
         VALUES ($1, $2, $3, $4, $5, $6, LAST_INSERT_ID(LAST_INSERT_ID()))",
    ],
    grant: &[
        "INSERT INTO {token} (name, token) \
         SELECT c.name, LAST_INSERT_ID(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) FROM {claim} c WHERE c.id = $1 \
         ON DUPLICATE KEY UPDATE {token}.token = LAST_INSERT_ID(GREATEST({token}.token + 1, VALUES(token)))",
        "UPDATE {claim} SET token = LAST_INSERT_ID(LAST_INSERT_ID()) WHERE id = $1",
    ],
    draw: [
        "INSERT INTO {token} (name, token) VALUES ($1, LAST_INSERT_ID(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))) \
         ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(GREATEST(token + 1, VALUES(token)))",
        "SELECT GREATEST(COALESCE(MAX(token), 0) + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) FROM {token} \
         WHERE name = $1",
    ],
    clean: "DELETE c FROM {claim} AS c WHERE NOT {open}",
    // A token is at least the time when it was drawn. A draw locks the row, so it comes before the removal, which finds a new token
    // then, or it makes the row again.
    old: Some(OldTokens {
        page: "SELECT t.name, CASE WHEN t.token <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6) - INTERVAL 30 DAY) \
               AND NOT EXISTS (SELECT 1 FROM {claim} c WHERE c.name = t.name AND {open}) THEN 1 ELSE 0 END \
               FROM {token} t WHERE t.name > $1 ORDER BY t.name LIMIT 500",
        free: "SELECT 1 FROM {token} WHERE name = $1 FOR UPDATE SKIP LOCKED",
        remove: "DELETE FROM {token} WHERE name = $1 \
                 AND token <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6) - INTERVAL 30 DAY)",
    }),
    terminate: &[
        "SET @fencepost_connection = (SELECT c.connection FROM {claim} c WHERE c.id = $1 AND {open})",
        "KILL @fencepost_connection",
    ],
    schema,
};

fn schema(table: &TableName) -> String {
    let quoted = |suffix| table.quoted(suffix, '`');
    let (row, claim, token) = (quoted(""), quoted(TableName::CLAIM), quoted(TableName::TOKEN));
    let record = quoted(TableName::RECORD);
    let schema = table
        .schema()
        .map_or_else(String::new, |schema| format!("CREATE DATABASE IF NOT EXISTS `{schema}`;\n\n"));
    // The database runs the statements one by one: each ends with a semicolon at the end of a line, and no comment does.
    format!(
        r#"-- Row locks of fencepost on MySQL and MariaDB. Running these statements again changes nothing.
-- The user that runs them needs the rights CREATE, SELECT and INSERT on the database.
{schema}-- A row for each name that was ever locked. A transaction holds a lock by locking its row. Never delete a row that is in use.
CREATE TABLE IF NOT EXISTS {row} (
    name    VARBINARY(400) NOT NULL PRIMARY KEY,
    created DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)
) ENGINE = InnoDB COMMENT = 'fencepost row locks';

-- The last fencing token of each name. A row that is lost does no harm: tokens begin with the time in microseconds. Clients remove rows
-- that nobody has used for 30 days.
CREATE TABLE IF NOT EXISTS {token} (
    name  VARBINARY(400) NOT NULL PRIMARY KEY,
    token BIGINT NOT NULL
) ENGINE = InnoDB COMMENT = 'fencepost row locks: tokens';

-- A note of each claim, for operators. No lock depends on it. It counts as long as its transaction is open.
CREATE TABLE IF NOT EXISTS {claim} (
    id          BIGINT NOT NULL PRIMARY KEY,
    name        VARBINARY(400) NOT NULL,
    token       BIGINT COMMENT 'NULL: it waits',
    connection  BIGINT NOT NULL COMMENT 'the number of its session',
    transaction BIGINT NOT NULL COMMENT 'the number of its transaction: the session has the lock fencepost.row:NUMBER',
    shared      BIGINT NOT NULL COMMENT '1: beside other holders',
    record      TEXT NOT NULL COMMENT 'the holder and the reason, as JSON',
    evicted     TEXT COMMENT 'by whom and why',
    created     DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    KEY by_name (name)
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'fencepost row locks: claims';

INSERT INTO {row} (name) SELECT '' FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM {row} r WHERE r.name = '');

-- Small records: the last runs of locks, and what the lock service notes. No lock depends on them. Clients delete what has expired.
CREATE TABLE IF NOT EXISTS {record} (
    kind       VARBINARY(16) NOT NULL COMMENT 'what the record is for',
    name       VARBINARY(400) NOT NULL,
    version    BIGINT NOT NULL COMMENT 'another one with each write',
    keep_until BIGINT NOT NULL COMMENT 'microseconds since 1970',
    record     MEDIUMTEXT NOT NULL COMMENT 'JSON',
    PRIMARY KEY (kind, name),
    KEY by_keep_until (keep_until)
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'fencepost: records beside locks';

-- Each user that takes locks needs these rights. UPDATE lets it lock rows:
--     GRANT SELECT, INSERT, UPDATE ON {row} TO app
--     GRANT SELECT, INSERT, UPDATE, DELETE ON {token} TO app
--     GRANT SELECT, INSERT, UPDATE, DELETE ON {claim} TO app
--     GRANT SELECT, INSERT, UPDATE, DELETE ON {record} TO app
-- An operator that evicts at once ends a session, which needs the holder's user or CONNECTION ADMIN.
"#
    )
}
