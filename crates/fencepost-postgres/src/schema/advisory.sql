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

-- Each user that takes locks needs these rights:
--     GRANT USAGE ON SCHEMA fencepost TO app;
--     GRANT USAGE ON SEQUENCE fencepost.token TO app;
COMMIT;
