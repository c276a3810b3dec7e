//! Row locks of PostgreSQL 14 and newer.

use fencepost_sql::{RowDialect, TableName};

use super::dialect::POSTGRES;

/// Row locks of PostgreSQL. A transaction is open as long as its backend has the lock of its id.
pub(crate) const POSTGRES_ROWS: RowDialect = RowDialect {
    // Unqualified names depend on the user's search path, and a user may be called as this schema.
    table: "fencepost.row",
    quote: '"',
    values: &POSTGRES,
    check: "SELECT 1 FROM {row} r LEFT JOIN {claim} c ON c.id = 0 LEFT JOIN {record} n ON n.kind = '' WHERE r.name = ''",
    shared: "FOR SHARE {skip}",
    make: "INSERT INTO {row} (name) VALUES ($1) ON CONFLICT (name) DO NOTHING",
    begins: "starts_with({0}, {1})",
    open: "EXISTS (SELECT FROM pg_locks l WHERE l.locktype = 'transactionid' AND l.granted AND l.mode = 'ExclusiveLock' \
           AND l.pid = c.connection AND l.transactionid::text::int8 = c.transaction)",
    wait: "INSERT INTO {claim} (id, name, connection, transaction, shared, record) VALUES ($1, $2, $3, $4, $5, $6)",
    hold: &["INSERT INTO {claim} (id, name, connection, transaction, shared, record, token) \
         VALUES ($1, $2, $3, $4, $5, $6, nextval('fencepost.token')) RETURNING token, \
         set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' \
         ELSE current_setting('synchronous_commit') END, true)"],
    grant: &["UPDATE {claim} SET token = nextval('fencepost.token') WHERE id = $1 RETURNING token, \
         set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' \
         ELSE current_setting('synchronous_commit') END, true)"],
    draw: ["SELECT nextval('fencepost.token')"; 2],
    clean: "DELETE FROM {claim} AS c WHERE NOT ({open})",
    old: None,
    // Waits for its end, at most 1 s: until then its claim is shown.
    terminate: &[
        "SELECT pg_terminate_backend(c.connection::int4, 1000) FROM {claim} c WHERE c.id = $1 AND {open}",
    ],
    schema,
};

fn schema(table: &TableName) -> String {
    let (row, claim) = (table.quoted("", '"'), table.quoted(TableName::CLAIM, '"'));
    let record = table.quoted(TableName::RECORD, '"');
    let schema = table
        .schema()
        .filter(|schema| *schema != "fencepost")
        .map_or_else(String::new, |schema| format!("CREATE SCHEMA IF NOT EXISTS \"{schema}\";\n"));
    format!(
        r#"-- Row locks of fencepost on PostgreSQL. Running these statements again changes nothing.
-- The user that runs them needs the right CREATE on the database and on the schema.
BEGIN;
-- Two users that run them at once would collide.
SELECT pg_advisory_xact_lock(hashtext('fencepost'), hashtext('schema'));

CREATE SCHEMA IF NOT EXISTS fencepost;
{schema}
-- Fencing tokens: each grant takes the next number. The sequence is that of mode=advisory, and starts above every transaction id of the
-- near future: a change of the mode keeps tokens growing.
DO $$
BEGIN
    IF to_regclass('fencepost.token') IS NULL THEN
        EXECUTE format('CREATE SEQUENCE fencepost.token START %s', pg_current_xact_id()::text::int8 + 1000000000);
    END IF;
END
$$;
COMMENT ON SEQUENCE fencepost.token IS 'Fencing tokens. Never set it back or drop it: tokens must grow.';

-- A row for each name that was ever locked. A transaction holds a lock by locking its row. Never delete a row that is in use.
CREATE TABLE IF NOT EXISTS {row} (
    name    text COLLATE "C" PRIMARY KEY,
    created timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO {row} (name) VALUES ('') ON CONFLICT (name) DO NOTHING;
COMMENT ON TABLE {row} IS 'Row locks of fencepost.';

-- A note of each claim, for operators. No lock depends on it. It counts as long as its transaction is open.
CREATE TABLE IF NOT EXISTS {claim} (
    id          bigint PRIMARY KEY,
    name        text COLLATE "C" NOT NULL,
    token       bigint,                     -- NULL: it waits
    connection  bigint NOT NULL,            -- the number of its backend
    transaction bigint NOT NULL,            -- the id of its transaction
    shared      bigint NOT NULL,            -- 1: beside other holders
    record      text NOT NULL,              -- the holder and the reason, as JSON
    evicted     text,                       -- by whom and why
    created     timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX IF NOT EXISTS "{index}_name" ON {claim} (name);
COMMENT ON TABLE {claim} IS 'Notes of the claims on row locks of fencepost.';

-- Small records: the last runs of locks, and what the lock service notes. No lock depends on them. Clients delete what has expired.
CREATE TABLE IF NOT EXISTS {record} (
    kind       text COLLATE "C" NOT NULL,   -- what the record is for
    name       text COLLATE "C" NOT NULL,
    version    bigint NOT NULL,             -- another one with each write
    keep_until bigint NOT NULL,             -- microseconds since 1970
    record     text NOT NULL,               -- JSON
    PRIMARY KEY (kind, name)
);
CREATE INDEX IF NOT EXISTS "{record_index}" ON {record} (keep_until);
COMMENT ON TABLE {record} IS 'fencepost: records beside locks.';

-- Each user that takes locks needs these rights. UPDATE lets it lock rows:
--     GRANT USAGE ON SCHEMA fencepost TO app;
--     GRANT USAGE ON SEQUENCE fencepost.token TO app;
--     GRANT SELECT, INSERT, UPDATE ON {row} TO app;
--     GRANT SELECT, INSERT, UPDATE, DELETE ON {claim}, {record} TO app;
-- An operator that evicts at once ends a backend, which needs the holder's role or pg_signal_backend.
COMMIT;
"#,
        index = table.quoted(TableName::CLAIM, ' ').replace([' ', '.'], ""),
        record_index = table.quoted(TableName::RECORD, ' ').replace([' ', '.'], ""),
    )
}
