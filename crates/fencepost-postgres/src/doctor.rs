//! Checks the server.

use fencepost_core::{Finding, Report};
use fencepost_sql::{Failure, findings};
use tokio_postgres::Row;

use crate::client::PostgresClient;
use crate::conn::connect::DriverClient;
use crate::error;

/// Reads all that the checks need in one statement.
const FACTS: &str = "SELECT current_setting('server_version'), current_setting('fsync')::bool, \
    current_setting('full_page_writes')::bool, \
    (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'), \
    current_setting('synchronous_standby_names'), \
    (SELECT count(*) FROM pg_stat_replication), \
    current_setting('max_connections')::int8, \
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), \
    current_setting('max_locks_per_transaction')::int8 \
    * (current_setting('max_connections')::int8 + current_setting('max_prepared_transactions')::int8), \
    (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'), \
    CASE WHEN seen THEN to_regclass('fencepost.token') IS NOT NULL ELSE true END, \
    CASE WHEN seen THEN coalesce(has_sequence_privilege(to_regclass('fencepost.token'), 'USAGE'), true) ELSE false END, \
    (SELECT age(datfrozenxid)::int8 FROM pg_database WHERE datname = current_database()), \
    current_setting('autovacuum_freeze_max_age')::int8 \
    FROM (SELECT coalesce(has_schema_privilege(to_regnamespace('fencepost')::oid, 'USAGE'), true) AS seen) AS schema";

/// The meaning of standbys for tokens: there is none, a commit waits for one, or it does not.
const TOKENS_ON_STANDBYS: [&str; 3] = [
    "no standby: while the server is down no lock is granted",
    "a standby has each token before its lock is granted",
    "the standbys are asynchronous: after a failover tokens can repeat",
];

pub(crate) async fn examine(client: &PostgresClient) -> fencepost_core::Result<Report> {
    let row = client.connection().await?.run(|session| session.one_row(FACTS)).await?;
    Ok(Report::from(vec![
        Finding::ok("version", format!("PostgreSQL {}", row.get::<_, String>(0))),
        durability(&row),
        replication(&row, TOKENS_ON_STANDBYS),
        tokens(&row),
        findings::connections(row.get(7), row.get(6)),
        findings::share("lock table", row.get(9), row.get(8), "raise max_locks_per_transaction"),
        findings::idle_clocks(),
    ]))
}

/// Checks the server of a lease table. `messages`: whether they arrive.
pub(crate) async fn examine_table(
    client: &DriverClient,
    server: &str,
    messages: bool,
) -> Result<Report, Failure> {
    let row = client.query_typed_one(FACTS, &[]).await.map_err(|error| error::read(&error, server))?;
    let replication = replication(
        &row,
        [
            "no standby: while the server is down no lock is granted or renewed",
            "a standby has each grant before its holder",
            "the standbys are asynchronous: after a failover two can hold a lock; tokens grow only if the servers' clocks agree",
        ],
    );
    let messages = if messages {
        Finding::ok("messages", "waiters are told of their grants")
    } else {
        Finding::note(
            "messages",
            "a pooler in transaction mode delivers none: the first waiter polls every 50 to 100 ms",
        )
        .advice("connect to the server itself if waiters must be told sooner")
    };
    Ok(Report::from(vec![
        Finding::ok("version", format!("PostgreSQL {}", row.get::<_, String>(0))),
        durability(&row),
        replication,
        messages,
        findings::connections(row.get(7), row.get(6)),
        findings::lease_clocks(),
    ]))
}

fn durability(row: &Row) -> Finding {
    let (fsync, full_page_writes, commit): (bool, bool, String) = (row.get(1), row.get(2), row.get(3));
    if !fsync || !full_page_writes {
        let says =
            "fsync or full_page_writes is off: a crash of the machine can damage the data and repeat tokens";
        return Finding::problem("durability", says).advice("turn both on");
    }
    if commit == "off" {
        let says = "synchronous_commit is off for others; fencepost turns it on for its own sessions";
        return Finding::note("durability", says);
    }
    Finding::ok("durability", "a token is on the disk before its lock is granted")
}

/// `texts`: what follows if there is no standby, if a commit waits for one, and if it does not.
fn replication(row: &Row, texts: [&str; 3]) -> Finding {
    let (commit, names, standbys): (String, String, i64) = (row.get(3), row.get(4), row.get(5));
    let (waits, advice) = match (names.as_str(), commit.as_str()) {
        ("", _) => (false, "set synchronous_standby_names"),
        // The engine raises `off` alone: `local` is somebody's choice.
        (_, "local") => (false, "set synchronous_commit to on for this user"),
        _ => (true, ""),
    };
    findings::replication(standbys > 0, waits, texts, advice)
}

fn tokens(row: &Row) -> Finding {
    let (exists, usable): (bool, bool) = (row.get(10), row.get(11));
    let (age, limit): (i64, i64) = (row.get(12), row.get(13));
    match (exists, usable) {
        (true, true) => Finding::ok("tokens", "they come from the sequence fencepost.token"),
        (true, false) => Finding::problem("tokens", "this user may not use the sequence fencepost.token")
            .advice("GRANT USAGE ON SEQUENCE fencepost.token, and USAGE ON SCHEMA fencepost"),
        (false, _) => Finding::note(
            "tokens",
            format!(
                "they are transaction ids: each lock uses one, and {} more force a vacuum of every table",
                limit.saturating_sub(age).max(0)
            ),
        )
        .advice("run `fencepost schema --apply`, which makes a sequence for them"),
    }
}
