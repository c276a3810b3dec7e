//! Connections of the lease table.

use std::collections::HashMap;
use std::sync::Arc;

use fencepost_core::sync::Mutex;
use fencepost_core::{ErrorKind, Runtime};
use fencepost_sql::{Answer, Connect, Failure, Plain, Results, ServerUrl, Statement};
use futures_util::future::{try_join, try_join_all};

use crate::conn::channel::Channel;
use crate::conn::connect::{Connector, all, check, identity, pairs};
use crate::error::{self, Unanswered};
use crate::table::statement::{self, Prepared};

/// How long a statement waits for a row that others lock, in seconds.
pub(crate) const ROW_TIMEOUT_SECS: u64 = 3;

/// The variables that decide whether a lease table works, and those that tell the server from others. A server returns those that it knows.
const FACTS: &str = "SHOW VARIABLES WHERE Variable_name IN ('hostname', 'port', 'server_id', 'server_uuid', 'datadir', 'read_only', 'super_read_only', 'innodb_read_only', 'wsrep_on', \
    'group_replication_single_primary_mode', 'log_bin', 'binlog_format')";

/// The channel of a connection, and the statements that were prepared on it, by text.
pub(crate) struct PlainClient {
    pub(crate) channel: Channel,
    pub(crate) prepared: Mutex<HashMap<Arc<str>, Prepared>>,
}

impl Connect for Connector {
    type Client = PlainClient;

    fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    fn url(&self) -> &ServerUrl {
        &self.config.server
    }

    fn open<'a>(&'a self, host: &'a (String, u16)) -> Answer<'a, Plain<PlainClient>> {
        Box::pin(async move {
            let server = format!("{}:{}", host.0, host.1);
            let greeted = self.greet(host).await?;
            let (channel, task) = Channel::start(greeted.socket, greeted.capabilities, &self.runtime);
            let set_up = set_up(greeted.mariadb);
            let answers = try_join(all(&channel, &set_up), channel.query(FACTS)).await;
            let (_, facts) = answers.map_err(|error| error::read(error, &server))?;
            let facts = pairs(facts.rows);
            check(&facts, "clocks and locks", &server)?;
            // Records beside named locks are at the server of the locks.
            self.servers.follow(&identity(&facts), &server, task.end())?;
            let fact = |name: &str| facts.get(name).map(String::as_str).unwrap_or_default();
            if fact("log_bin") == "ON" && fact("binlog_format") == "STATEMENT" {
                let message =
                    "has binlog_format STATEMENT, which lacks READ COMMITTED; set it to ROW or MIXED";
                return Err(Failure::new(ErrorKind::Configuration, format!("{server} {message}")));
            }
            Ok(Plain { client: Arc::new(PlainClient { channel, prepared: Mutex::default() }), task })
        })
    }

    fn run<'a>(&'a self, client: &'a PlainClient, statements: &'a [Statement]) -> Answer<'a, Results> {
        Box::pin(statement::run(client, statements, &self.server))
    }
}

/// Sets the session's parameters. The server's own configuration may have limits and modes under which statements fail.
fn set_up(mariadb: bool) -> [String; 2] {
    let limit = if mariadb { "max_statement_time" } else { "max_execution_time" };
    [
        format!(
            "SET SESSION autocommit = 1, time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES', sql_safe_updates = 0, \
             completion_type = 0, {limit} = 0, lock_wait_timeout = {ROW_TIMEOUT_SECS}, \
             innodb_lock_wait_timeout = {ROW_TIMEOUT_SECS}"
        ),
        // Each statement sees what others have committed, and no gap between rows is locked.
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED".to_owned(),
    ]
}

/// Runs statements without parameters in order, on a connection of their own. Each ends with a semicolon at the end of a line.
pub(crate) async fn run_batch(connector: &Connector, statements: &str) -> Result<(), Failure> {
    let connection = Plain::open(connector).await?;
    let clock = connector.runtime.clock();
    let running = async {
        for text in statements.split_inclusive(";\n").filter(|text| is_statement(text)) {
            connection.client.channel.query(text).await?;
        }
        Ok(())
    };
    let made = clock.within(clock.now() + connector.config.server.timeout, running).await;
    made.ok_or_else(|| Failure::timeout(&connector.server))?
        .map_err(|error| refused(error, &connector.server))
}

/// Returns whether a text is more than comments.
fn is_statement(text: &str) -> bool {
    text.lines().any(|line| !line.is_empty() && !line.starts_with("--"))
}

fn refused(error: Unanswered, server: &str) -> Failure {
    match error {
        Unanswered::Refused { code: 1044 | 1142 | 1227, message } => Failure::new(
            ErrorKind::Denied,
            format!(
                "{server} denied a statement; grant the user CREATE, CREATE VIEW, DROP, SELECT and INSERT, or run as an \
                 administrator what fencepost schema prints"
            ),
        )
        .because(message),
        error => error::read(error, server),
    }
}

impl PlainClient {
    /// Prepares those of the texts that are not prepared yet, in one round trip. `texts`: by key, the places of the parameters and the
    /// text as the server reads it.
    pub(crate) async fn prepare(&self, texts: Vec<(Arc<str>, Vec<usize>, String)>) -> Result<(), Unanswered> {
        let preparing: Vec<_> = texts.iter().map(|(_, _, text)| self.channel.prepare(text)).collect();
        let statements = try_join_all(preparing).await?;
        let mut prepared = self.prepared.lock();
        for ((key, places, _), statement) in texts.into_iter().zip(statements) {
            prepared.insert(key, Prepared { statement: Arc::new(statement), places: places.into() });
        }
        Ok(())
    }
}
