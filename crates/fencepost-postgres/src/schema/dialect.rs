//! PostgreSQL 14 and newer.

use fencepost_sql::{Dialect, LAYOUT, Statement, TableName, Value};

/// PostgreSQL. The schema's comment on the table ends with the layout's number.
pub(crate) const POSTGRES: Dialect = Dialect {
    quote: '"',
    now: "clock_timestamp()",
    after: "(clock_timestamp() + ({})::int8 * interval '1 microsecond')",
    since_1970: "(extract(epoch FROM {}) * 1000000)::int8",
    left: "(extract(epoch FROM ({} - clock_timestamp())) * 1000000)::int8",
    begins: "starts_with({0}, {1})",
    returned: "{}",
    returning: "RETURNING {}, set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' \
                ELSE current_setting('synchronous_commit') END, true)",
    upserts: true,
    or_nothing: "ON CONFLICT (name) DO NOTHING",
    names: Some("= ANY (string_to_array({}, E'\\n'))"),
    notify: Some("SELECT pg_notify($1, $2) IS NULL"),
    layout,
    missing: "the lease table is missing; run fencepost schema --apply with this URL, as a user who may create tables",
    schema,
};

fn layout(table: &TableName) -> Statement {
    let text = "SELECT substring(obj_description(oid, 'pg_class') FROM 'layout ([0-9]+)$')::int8 \
                FROM pg_class WHERE oid = to_regclass($1)";
    Statement::new(text, vec![Value::from(&*table.quote('"').lock)])
}

fn schema(table: &TableName) -> String {
    let names = table.quote('"');
    let schema = table
        .schema()
        .map_or_else(String::new, |schema| format!("CREATE SCHEMA IF NOT EXISTS \"{schema}\";\n\n"));
    let (lock, queue, session, view) = (&names.lock, &names.queue, &names.session, &names.view);
    let record = table.quoted(TableName::RECORD, '"');
    format!(
        r#"-- The lease table of fencepost on PostgreSQL. Running these statements again changes nothing.
-- The user that runs them needs the right CREATE on the schema.
BEGIN;
-- Two users that run them at once would collide.
SELECT pg_advisory_xact_lock(hashtext('fencepost'), hashtext('schema'));

{schema}-- The lease table: a row for each lock, and for each name that was ever locked.
CREATE TABLE IF NOT EXISTS {lock} (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name      text COLLATE "C" NOT NULL UNIQUE, -- of the lock; the token of the empty name is at least that of each removed row
    token     bigint NOT NULL,                  -- the last fencing token of the lock; it grows with each grant
    owner     text,                             -- the id of the only holder's claim, a secret; NULL: there is none
    mode      bigint NOT NULL DEFAULT 0,        -- 0 exclusive, 1 shared, 2 shared until it is exclusive, else permits: n * 2^32 + of
    session   bigint,                           -- the row of the client that renews; NULL: a detached lease
    expires   timestamptz,                      -- a lease of its own; NULL: that of its session
    ttl       bigint NOT NULL DEFAULT 0,        -- length of the lease in microseconds
    fixed     bigint NOT NULL DEFAULT 0,        -- 1: the lease is not renewed
    record    text,                             -- of the holder, or of the last one: who and why, as JSON
    count     bigint NOT NULL DEFAULT 0,        -- how often the holder has it
    evicted   text,                             -- by whom and why
    contended bigint NOT NULL DEFAULT 0,        -- 1: the queue has rows for this lock
    permits   bigint,                           -- the limit of permits for all claims; NULL: each claim has its own
    since     timestamptz NOT NULL DEFAULT clock_timestamp(), -- of the last grant
    created   timestamptz NOT NULL DEFAULT clock_timestamp(),
    modified  timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 70);

-- Waiters, and holders beside which others may hold or wait.
CREATE TABLE IF NOT EXISTS {queue} (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- the order of arrival
    name      text COLLATE "C" NOT NULL,
    token     bigint NOT NULL,                  -- 0: it waits
    owner     text NOT NULL,
    mode      bigint NOT NULL,
    session   bigint,
    expires   timestamptz,
    ttl       bigint NOT NULL,
    fixed     bigint NOT NULL,
    record    text NOT NULL,
    count     bigint NOT NULL,
    evicted   text,
    since     timestamptz NOT NULL DEFAULT clock_timestamp(), -- of its arrival, or of its grant
    created   timestamptz NOT NULL DEFAULT clock_timestamp(),
    modified  timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (name, owner)
);

-- A row for each client and length of a lease. Its renewal renews all locks of the client.
CREATE TABLE IF NOT EXISTS {session} (
    id        bigint PRIMARY KEY,
    client    text NOT NULL,                    -- the channel of messages to the client
    host      text NOT NULL,
    process   bigint NOT NULL,
    ttl       bigint NOT NULL,                  -- length of the lease in microseconds
    expires   timestamptz NOT NULL,
    evictions bigint NOT NULL DEFAULT 0,        -- how many of its locks were evicted
    evicted   text,                             -- the last of them: by whom and why
    created   timestamptz NOT NULL DEFAULT clock_timestamp(),
    modified  timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

INSERT INTO {lock} (name, token) VALUES ('', 0) ON CONFLICT (name) DO NOTHING;

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

-- Each claim with its true expiry, for people.
CREATE OR REPLACE VIEW {view} AS
SELECT c.name, c.token, c.token > 0 AS holds, c.mode, c.record, c.since,
       -- An end that is further away than the lease is long comes from an earlier clock. The next claim cuts it.
       least(coalesce(c.expires, s.expires), clock_timestamp()
             + CASE WHEN c.expires IS NULL THEN s.ttl ELSE c.ttl END * interval '1 microsecond') AS expires,
       c.session IS NULL AS detached, c.evicted
FROM (
    SELECT name, token, 0 AS place, owner, mode, session, ttl, expires, record, since, evicted FROM {lock}
    UNION ALL
    SELECT name, token, id, owner, mode, session, ttl, expires, record, since, evicted FROM {queue}
) AS c LEFT JOIN {session} AS s ON s.id = c.session
WHERE c.owner IS NOT NULL AND coalesce(c.expires, s.expires) > clock_timestamp()
ORDER BY c.name, c.token = 0, c.place;

COMMENT ON TABLE {lock} IS 'fencepost locks, layout {LAYOUT}';

-- Each user that takes locks needs these rights:
--     GRANT SELECT, INSERT, UPDATE, DELETE ON {lock}, {queue}, {session}, {record} TO app;
-- For listing in SQL:
--     GRANT SELECT ON {view} TO operator;
COMMIT;
"#,
        record_index = table.quoted(TableName::RECORD, ' ').replace([' ', '.'], ""),
    )
}
