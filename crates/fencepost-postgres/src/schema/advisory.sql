-- The schema of fencepost for advisory locks on PostgreSQL. Running these statements again changes nothing.
-- The user that runs them needs the right CREATE on the database.
BEGIN;
-- Two users that run them at once would collide.
SELECT pg_advisory_xact_lock(hashtext('fencepost'), hashtext('schema'));

CREATE SCHEMA IF NOT EXISTS fencepost;
COMMENT ON SCHEMA fencepost IS 'Locks of fencepost.';

-- Fencing tokens: each grant takes the next number. Without this sequence a token is the id of a transaction, so the
-- sequence starts above every transaction id of the near future.
DO $$
BEGIN
    IF to_regclass('fencepost.token') IS NULL THEN
        EXECUTE format('CREATE SEQUENCE fencepost.token START %s', pg_current_xact_id()::text::int8 + 1000000000);
    END IF;
END
$$;
COMMENT ON SEQUENCE fencepost.token IS 'Fencing tokens. Never set it back or drop it: tokens must grow.';

-- The names of locks: the server knows only their keys. A client writes a name when it first holds the lock on a day, and
-- later acquisitions cost no write. Clients remove names that nobody has used for 30 days. Rows may be deleted at any
-- time; a deleted one comes back with the next client.
CREATE TABLE IF NOT EXISTS fencepost.name (
    key bigint PRIMARY KEY,
    prefix text NOT NULL,
    name text NOT NULL,
    used date NOT NULL DEFAULT current_date
);
CREATE INDEX IF NOT EXISTS name_used ON fencepost.name (used);
COMMENT ON TABLE fencepost.name IS 'Names of locks, for listings. No lock depends on it.';
COMMENT ON COLUMN fencepost.name.key IS 'Key of the advisory lock, a hash of prefix and name.';
COMMENT ON COLUMN fencepost.name.used IS 'The last day on which a client has written the name.';

-- Small records: the last runs of locks, and what the lock service notes. No lock depends on them. Clients delete what has expired.
CREATE TABLE IF NOT EXISTS fencepost.record (
    kind       text COLLATE "C" NOT NULL,   -- what the record is for
    name       text COLLATE "C" NOT NULL,   -- a prefix of the URL stands on a line before it
    version    bigint NOT NULL,             -- another one with each write
    keep_until bigint NOT NULL,             -- microseconds since 1970
    record     text NOT NULL,               -- JSON
    PRIMARY KEY (kind, name)
);
CREATE INDEX IF NOT EXISTS record_keep_until ON fencepost.record (keep_until);
COMMENT ON TABLE fencepost.record IS 'fencepost: records beside locks.';

-- Each user that takes locks needs these rights:
--     GRANT USAGE ON SCHEMA fencepost TO app;
--     GRANT USAGE ON SEQUENCE fencepost.token TO app;
--     GRANT SELECT, INSERT, UPDATE, DELETE ON fencepost.name, fencepost.record TO app;
COMMIT;
