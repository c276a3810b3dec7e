//! MySQL 5.7.7 and newer, MariaDB 10.2 and newer.

use fencepost_sql::{Dialect, LAYOUT, Statement, TableName};

/// MySQL and MariaDB. The comment of the table ends with the layout's number.
///
/// `UTC_TIMESTAMP` does not depend on the session's time zone. It stands still during a statement, so after a wait for a row it is
/// earlier than the time: a lease becomes shorter, but not shorter than its client believes, and nothing is dead too early.
///
/// No session can make commits durable. The tokens grow all the same, because they are at least the time.
pub(crate) const MYSQL: Dialect = Dialect {
    quote: '`',
    now: "UTC_TIMESTAMP(6)",
    after: "(UTC_TIMESTAMP(6) + INTERVAL {} MICROSECOND)",
    since_1970: "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {})",
    left: "TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), {})",
    begins: "LEFT({0}, LENGTH({1})) = {1}",
    returned: "LAST_INSERT_ID({})",
    returning: "",
    upserts: false,
    // It locks the row as an update does. `INSERT IGNORE` would share it, and two of them could not go on.
    or_nothing: "ON DUPLICATE KEY UPDATE {0}.token = {0}.token",
    names: None,
    notify: None,
    layout,
    missing: "the lease table is missing, or this user has no rights on it; run fencepost schema --apply with this URL, as a user who may create tables, \
              and grant this user SELECT, INSERT, UPDATE and DELETE on the four tables",
    schema,
};

fn layout(table: &TableName) -> Statement {
    let schema = table.schema().map_or_else(|| "DATABASE()".to_owned(), |schema| format!("'{schema}'"));
    let text = format!(
        "SELECT CASE WHEN TABLE_COMMENT LIKE 'fencepost locks, layout %' \
         THEN CAST(SUBSTRING_INDEX(TABLE_COMMENT, ' ', -1) AS SIGNED) END \
         FROM information_schema.TABLES WHERE TABLE_SCHEMA = {schema} AND TABLE_NAME = '{}'",
        table.table()
    );
    Statement::new(text, Vec::new())
}

fn schema(table: &TableName) -> String {
    let names = table.quote('`');
    let schema = table
        .schema()
        .map_or_else(String::new, |schema| format!("CREATE DATABASE IF NOT EXISTS `{schema}`;\n\n"));
    let (lock, queue, session, view) = (&names.lock, &names.queue, &names.session, &names.view);
    let record = table.quoted(TableName::RECORD, '`');
    // The database runs the statements one by one: each ends with a semicolon at the end of a line, and no comment does.
    format!(
        r#"-- The lease table of fencepost on MySQL and MariaDB. Running these statements again changes nothing.
-- The user that runs them needs the rights CREATE, CREATE VIEW, DROP, SELECT and INSERT on the database.
-- All times are UTC.
SET time_zone = '+00:00';

{schema}-- A row for each lock, and for each name that was ever locked.
CREATE TABLE IF NOT EXISTS {lock} (
    name      VARBINARY(400) NOT NULL PRIMARY KEY COMMENT 'of the lock; the token of the empty name is at least that of each removed row',
    token     BIGINT NOT NULL COMMENT 'the last fencing token of the lock; it grows with each grant',
    owner     VARBINARY(32) COMMENT 'the id of the only holder, a secret; NULL: there is none',
    mode      BIGINT NOT NULL DEFAULT 0 COMMENT '0 exclusive, 1 shared, 2 shared until it is exclusive, else permits: n * 2^32 + of',
    session   BIGINT COMMENT 'the row of the client that renews; NULL: a detached lease',
    expires   DATETIME(6) COMMENT 'a lease of its own; NULL: that of its session',
    ttl       BIGINT NOT NULL DEFAULT 0 COMMENT 'length of the lease in microseconds',
    fixed     BIGINT NOT NULL DEFAULT 0 COMMENT '1: the lease is not renewed',
    record    TEXT COMMENT 'of the holder, or of the last one: who and why, as JSON',
    count     BIGINT NOT NULL DEFAULT 0 COMMENT 'how often the holder has it',
    evicted   TEXT COMMENT 'by whom and why',
    contended BIGINT NOT NULL DEFAULT 0 COMMENT '1: the queue has rows for this lock',
    permits   BIGINT COMMENT 'the limit of permits for all claims; NULL: each claim has its own',
    since     DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'of the last grant',
    created   DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    modified  DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'fencepost locks, layout {LAYOUT}';

-- Waiters, and holders beside which others may hold or wait.
CREATE TABLE IF NOT EXISTS {queue} (
    id        BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY COMMENT 'the order of arrival',
    name      VARBINARY(400) NOT NULL,
    token     BIGINT NOT NULL COMMENT '0: it waits',
    owner     VARBINARY(32) NOT NULL,
    mode      BIGINT NOT NULL,
    session   BIGINT,
    expires   DATETIME(6),
    ttl       BIGINT NOT NULL,
    fixed     BIGINT NOT NULL,
    record    TEXT NOT NULL,
    count     BIGINT NOT NULL,
    evicted   TEXT,
    since     DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'of its arrival, or of its grant',
    created   DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    modified  DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    KEY by_name (name, owner) -- not unique: the check would lock gaps between rows, and claims could not go on
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'fencepost locks: holders in common, and waiters';

-- A row for each client and length of a lease. Its renewal renews all locks of the client.
CREATE TABLE IF NOT EXISTS {session} (
    id        BIGINT NOT NULL PRIMARY KEY,
    client    VARCHAR(255) NOT NULL COMMENT 'a name for the client',
    host      VARCHAR(255) NOT NULL,
    process   BIGINT NOT NULL,
    ttl       BIGINT NOT NULL COMMENT 'length of the lease in microseconds',
    expires   DATETIME(6) NOT NULL,
    evictions BIGINT NOT NULL DEFAULT 0 COMMENT 'how many of its locks were evicted',
    evicted   TEXT COMMENT 'the last of them: by whom and why',
    created   DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    modified  DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'fencepost locks: clients';

INSERT INTO {lock} (name, token) VALUES ('', 0) ON DUPLICATE KEY UPDATE token = token;

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

-- Each claim with its true expiry, for people. An end that is further away than the lease is long comes from an earlier clock. The next
-- claim cuts it.
CREATE OR REPLACE VIEW {view} AS
SELECT CONVERT(c.name USING utf8mb4) AS name, c.token, 1 AS holds, c.mode, c.record, c.since,
       LEAST(COALESCE(c.expires, s.expires),
             UTC_TIMESTAMP(6) + INTERVAL CASE WHEN c.expires IS NULL THEN s.ttl ELSE c.ttl END MICROSECOND) AS expires, c.session IS NULL AS detached, c.evicted, 0 AS place
FROM {lock} AS c LEFT JOIN {session} AS s ON s.id = c.session
WHERE c.owner IS NOT NULL AND COALESCE(c.expires, s.expires) > UTC_TIMESTAMP(6)
UNION ALL
SELECT CONVERT(c.name USING utf8mb4), c.token, c.token > 0, c.mode, c.record, c.since,
       LEAST(COALESCE(c.expires, s.expires),
             UTC_TIMESTAMP(6) + INTERVAL CASE WHEN c.expires IS NULL THEN s.ttl ELSE c.ttl END MICROSECOND), c.session IS NULL, c.evicted, c.id
FROM {queue} AS c LEFT JOIN {session} AS s ON s.id = c.session
WHERE COALESCE(c.expires, s.expires) > UTC_TIMESTAMP(6)
ORDER BY name, holds DESC, place;

-- Each user that takes locks needs these rights:
--     GRANT SELECT, INSERT, UPDATE, DELETE ON {lock} TO app
--     GRANT SELECT, INSERT, UPDATE, DELETE ON {queue} TO app
--     GRANT SELECT, INSERT, UPDATE, DELETE ON {session} TO app
--     GRANT SELECT, INSERT, UPDATE, DELETE ON {record} TO app
-- For listing in SQL:
--     GRANT SELECT ON {view} TO operator
"#
    )
}
