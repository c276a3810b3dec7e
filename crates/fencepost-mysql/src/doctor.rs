//! Checks the server.

use std::collections::HashMap;

use fencepost_core::{Finding, Report};
use fencepost_sql::connection_locks::Server;
use fencepost_sql::{Failure, findings};
use futures_util::future::try_join;

use crate::client::MysqlClient;
use crate::conn::channel::Channel;
use crate::conn::connect::pairs;
use crate::error;

/// The variables that the checks need. A server returns those that it knows.
const FACTS: &str = "SHOW VARIABLES WHERE Variable_name IN ('version', 'innodb_flush_log_at_trx_commit', 'log_bin', \
    'sync_binlog', 'max_connections', 'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled')";

/// How many connections the server has.
const CONNECTIONS: &str = "SHOW GLOBAL STATUS LIKE 'Threads_connected'";

/// The release of MySQL that passes the suite.
const TESTED_MYSQL: &str = "9.7";

const SOUND: &str = "a token is on the disk before its lock is granted";

const WEAK: &str =
    "a crash of the machine can lose the last tokens; the next ones are greater unless the clock steps back";

/// The meaning of replicas for tokens: there is none, a commit waits for one, or it does not.
const REPLICAS: [&str; 3] = [
    "no binary log, so no replica: while the server is down no lock is granted",
    "semi-synchronous: a replica has each token before its lock is granted",
    "replicas are asynchronous: after a failover tokens grow only if the clocks of the servers agree",
];

pub(crate) async fn examine(client: &MysqlClient) -> fencepost_core::Result<Report> {
    let server = client.server.name();
    let facts = client.connection().await?.run(|session| facts(&session.channel, server)).await?;
    let fact = |name: &str| facts.get(name).map(String::as_str).unwrap_or_default();
    Ok(Report::from(vec![
        version(fact("version")),
        tokens(client),
        durability(&fact, SOUND, WEAK),
        replication(&fact, REPLICAS),
        connections(&fact),
        findings::idle_clocks(),
    ]))
}

/// Reads the variables and the number of connections.
pub(crate) async fn facts(channel: &Channel, server: &str) -> Result<HashMap<String, String>, Failure> {
    let answers = try_join(channel.query(FACTS), channel.query(CONNECTIONS)).await;
    let (variables, status) = answers.map_err(|error| error::read(error, server))?;
    Ok(pairs(variables.rows.into_iter().chain(status.rows).collect()))
}

/// Returns the finding about the version. `docs/backends/mysql.md` has the tested versions.
pub(crate) fn version(version: &str) -> Finding {
    let tested = version.strip_prefix(TESTED_MYSQL).is_some_and(|rest| rest.starts_with('.'));
    if tested || version.contains("MariaDB") {
        return Finding::ok("version", version);
    }
    Finding::note("version", format!("MySQL {version}: of MySQL, only {TESTED_MYSQL} was tested"))
}

fn tokens(client: &MysqlClient) -> Finding {
    match &client.server.found().no_tokens {
        None => Finding::ok("tokens", "they come from the table fencepost_token"),
        Some(why) => Finding::problem("tokens", "there are none").advice(why.clone()),
    }
}

/// Returns the finding about flushes. `sound` and `weak`: what follows for locks.
pub(crate) fn durability<'a>(
    fact: &impl Fn(&str) -> &'a str,
    sound: &'static str,
    weak: &'static str,
) -> Finding {
    let (log, binlog) =
        (fact("innodb_flush_log_at_trx_commit"), fact("log_bin") == "ON" && fact("sync_binlog") != "1");
    if log == "1" && !binlog {
        return Finding::ok("durability", sound);
    }
    Finding::warning("durability", weak).advice("set innodb_flush_log_at_trx_commit and sync_binlog to 1")
}

/// `texts`: what follows if there is no replica, if a commit waits for one, and if it does not.
pub(crate) fn replication<'a>(fact: &impl Fn(&str) -> &'a str, texts: [&str; 3]) -> Finding {
    let mut waits = ["rpl_semi_sync_master_enabled", "rpl_semi_sync_source_enabled"].into_iter();
    let waits = waits.any(|name| fact(name) == "ON");
    let advice = "use semi-synchronous replication, and keep the clocks in step";
    findings::replication(fact("log_bin") == "ON", waits, texts, advice)
}

pub(crate) fn connections<'a>(fact: &impl Fn(&str) -> &'a str) -> Finding {
    let number = |name: &str| fact(name).parse().unwrap_or(0);
    findings::connections(number("threads_connected"), number("max_connections"))
}

#[cfg(test)]
mod tests {
    use super::version;
    use fencepost_core::Severity;

    #[test]
    fn a_version_of_mysql_that_was_not_tested_is_noted() {
        for (text, severity) in [
            ("10.11.19-MariaDB-0+deb12u1", Severity::Ok),
            ("9.7.4-2", Severity::Ok),
            ("9.70.1", Severity::Note),
            ("8.0.36", Severity::Note),
        ] {
            assert_eq!(version(text).severity, severity, "{text}");
        }
    }
}
