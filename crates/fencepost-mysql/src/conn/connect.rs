//! Opens a connection and checks that locks work on it.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fencepost_core::{ErrorKind, NoHistory, Runtime};
use fencepost_sql::connection_locks::{ConnectionTask, OneServer};
use fencepost_sql::{Failure, connection_name, dial};
use futures_util::future::try_join3;
use mysql_common::row::Row;

use crate::config::Config;
use crate::conn::channel::{Answer, Channel};
use crate::conn::greeting::{Greeted, Refused, greet};
use crate::conn::session::MysqlSession;
use crate::conn::socket::Security;
use crate::conn::statements::Statements;
use crate::error;
use crate::error::{NO_ACCESS, NO_TABLE, Unanswered};
use crate::schema::tokens::{CREATE_RECORDS, CREATE_TABLE, FIND_RECORDS, TRY_AND_DRAW};

/// The oldest version of MySQL: sessions hold more than one lock.
const OLDEST_MYSQL: (u16, u16, u16) = (5, 7, 5);

/// The oldest version of MariaDB: it has `CREATE TABLE` and locks as this engine uses them.
const OLDEST_MARIADB: (u16, u16, u16) = (10, 2, 0);

/// How long a statement waits for a row that others lock.
const ROW_TIMEOUT_SECS: u64 = 1;

/// The variables that decide whether locks and tokens work. A server returns those that it knows.
const FACTS: &str = "SHOW VARIABLES WHERE Variable_name IN ('hostname', 'port', 'server_id', 'server_uuid', 'datadir', \
    'read_only', 'super_read_only', 'innodb_read_only', 'wsrep_on', 'group_replication_single_primary_mode', \
    'lower_case_table_names', 'log_bin', 'binlog_format')";

const NO_RUNS: NoHistory = NoHistory {
    kind: ErrorKind::Configuration,
    why: "the table fencepost_record is missing, and this user may not make it; run fencepost schema --apply as a user with the right CREATE",
};

const RUNS_DENIED: NoHistory = NoHistory {
    kind: ErrorKind::Denied,
    why: "this user may not write the table fencepost_record; grant the user SELECT, INSERT, UPDATE and DELETE on it",
};

const NO_TOKENS: NoHistory = NoHistory {
    kind: ErrorKind::Configuration,
    why: "a run is kept by its token, and there are no tokens; fencepost doctor says why",
};

/// Opens connections to the server that a URL names.
pub(crate) struct Connector {
    pub(crate) config: Config,
    security: Security,
    pub(crate) runtime: Runtime,
    /// The server as messages name it.
    pub(crate) server: Arc<str>,
    /// The findings of the first connection.
    found: OnceLock<Found>,
    /// The server of the open connections. A load balancer may stand before several.
    pub(crate) servers: Arc<OneServer>,
}

/// The findings of the first connection. They hold for all connections of the client.
pub(crate) struct Found {
    /// Why there are no tokens.
    pub(crate) no_tokens: Option<String>,
    /// Why the table of records cannot be used.
    pub(crate) no_runs: Option<NoHistory>,
    /// The database, as locks' names begin.
    pub(crate) database: String,
}

impl Connector {
    /// Reads the files of certificates. `servers`: shared with the connections that hold locks.
    pub(crate) fn new(
        config: Config,
        runtime: Runtime,
        servers: Arc<OneServer>,
    ) -> Result<Connector, Failure> {
        let security = Security::of(config.server.tls.as_ref())?;
        let server = config.server.to_string().into();
        Ok(Connector { config, security, runtime, server, found: OnceLock::new(), servers })
    }

    /// Returns the findings of the first connection. `None` before it.
    pub(crate) fn found(&self) -> Option<&Found> {
        self.found.get()
    }

    /// Opens a connection to the first server that accepts writes, which ends it after `idle` without a statement. Runs on the client's own
    /// thread.
    pub(crate) async fn connect(
        self: &Arc<Connector>,
        idle: Duration,
    ) -> Result<(MysqlSession, ConnectionTask), Failure> {
        let open = |host| -> fencepost_sql::Answer<'_, _> { Box::pin(self.open_at(host, idle)) };
        self.config.server.first(&self.runtime, open).await
    }

    async fn open_at(
        self: &Arc<Connector>,
        host: &(String, u16),
        idle: Duration,
    ) -> Result<(MysqlSession, ConnectionTask), Failure> {
        let server = format!("{}:{}", host.0, host.1);
        let failed = |error| error::read(error, &server);
        let greeted = self.greet(host).await?;
        let (channel, task) = Channel::start(greeted.socket, greeted.capabilities, &self.runtime);
        let set_up = set_up(greeted.mariadb, idle);
        let (_, id, facts) =
            try_join3(all(&channel, &set_up), channel.query("SELECT CONNECTION_ID()"), channel.query(FACTS))
                .await
                .map_err(failed)?;
        let id = id.rows.into_iter().next().and_then(|mut row| row.take::<u64, _>(0)).unwrap_or(0);
        if id & u64::from(u32::MAX) != u64::from(greeted.id) {
            return Err(error::pooled(&server));
        }
        let facts = pairs(facts.rows);
        let identity = identity(&facts);
        if let Err(failure) = check(&facts, "named locks", &server) {
            if failure.unusable {
                self.servers.leave(&identity);
            }
            return Err(failure);
        }
        self.servers.check(&identity, &server)?;
        let found = match self.found.get() {
            Some(found) => found,
            None => {
                let found = self.look(&channel, &facts, &server).await?;
                self.found.get_or_init(|| found)
            }
        };
        let statements = Statements::prepare(&channel, found.no_tokens.is_none()).await.map_err(failed)?;
        // Another connection may have been opened meanwhile.
        self.servers.join(&identity, &server, task.end())?;
        Ok((MysqlSession::new(Arc::clone(self), channel, statements, id, identity), task))
    }

    /// Greets a server, and checks its version. Runs on the client's own thread.
    pub(crate) async fn greet(&self, host: &(String, u16)) -> Result<Greeted, Failure> {
        let log_in =
            |password: Option<Arc<str>>| async move { self.greet_with(host, password.as_deref()).await };
        self.config.server.credentials.log_in(log_in).await
    }

    /// The same with this password.
    async fn greet_with(&self, host: &(String, u16), password: Option<&str>) -> Result<Greeted, Failure> {
        let server = format!("{}:{}", host.0, host.1);
        let clock = self.runtime.clock();
        let greeting = async {
            let stream = dial(host, self.config.server.pinned).await.map_err(Refused::Io)?;
            let client = connection_name(&self.runtime);
            greet(stream, &host.0, &self.config, &self.security, password, &client).await
        };
        let greeted = clock.within(clock.now() + self.config.server.connect_timeout, greeting).await;
        let greeted = greeted.ok_or_else(|| Failure::timeout(&server))?;
        let greeted = greeted.map_err(|error| explain(error, &server, self))?;
        let oldest = if greeted.mariadb { OLDEST_MARIADB } else { OLDEST_MYSQL };
        if greeted.version < oldest {
            let message = format!("{server} is older than MySQL 5.7.5 or MariaDB 10.2; update it");
            return Err(Failure::new(ErrorKind::Configuration, message));
        }
        Ok(greeted)
    }

    /// Finds out whether there are tokens and runs. Makes their tables if the user may.
    async fn look(
        &self,
        channel: &Channel,
        facts: &HashMap<String, String>,
        server: &str,
    ) -> Result<Found, Failure> {
        let fact = |name: &str| facts.get(name).map(String::as_str).unwrap_or_default();
        let database = match fact("lower_case_table_names") {
            "" | "0" => self.config.server.database.clone(),
            // The server takes names that differ in case for one.
            _ => self.config.server.database.to_lowercase(),
        };
        let no_tokens = if fact("log_bin") == "ON" && fact("binlog_format") == "STATEMENT" {
            Some(
                "binlog_format is STATEMENT, so replicas would take the locks as well; set it to ROW"
                    .to_owned(),
            )
        } else {
            let mut prepared = channel.prepare(TRY_AND_DRAW).await;
            if matches!(prepared, Err(Unanswered::Refused { code: NO_TABLE, .. })) {
                prepared = match channel.query(CREATE_TABLE).await {
                    Ok(_) => channel.prepare(TRY_AND_DRAW).await,
                    Err(error) => Err(error),
                };
            }
            match prepared.map_err(|error| error::read(error, server)) {
                Ok(_) => None,
                Err(failure) if failure.kind == ErrorKind::Denied => Some(format!(
                    "the user may not make or write the table fencepost_token; run as an administrator: {CREATE_TABLE}; \
                     GRANT SELECT, INSERT, UPDATE, DELETE ON {}.fencepost_token TO the user",
                    self.config.server.database
                )),
                Err(failure) => return Err(failure),
            }
        };
        if let Some(why) = &no_tokens {
            tracing::warn!(server, why, "locks of this client have no fencing tokens");
        }
        let mut no_runs = tried(channel.query(FIND_RECORDS).await, server)?;
        if no_tokens.is_some() {
            no_runs = Some(NO_TOKENS);
        } else if no_runs.is_some() && tried(channel.query(CREATE_RECORDS).await, server)?.is_none() {
            no_runs = tried(channel.query(FIND_RECORDS).await, server)?;
        }
        Ok(Found { no_tokens, no_runs, database })
    }
}

/// Returns why the table of records cannot be used, by the reply to a statement about it. An error that passes is one here, too.
fn tried(answer: Result<Answer, Unanswered>, server: &str) -> Result<Option<NoHistory>, Failure> {
    let missing = matches!(answer, Err(Unanswered::Refused { code: NO_TABLE, .. }));
    match answer.map_err(|error| error::read(error, server)) {
        Ok(_) => Ok(None),
        Err(_) if missing => Ok(Some(NO_RUNS)),
        Err(failure) if failure.kind == ErrorKind::Denied => Ok(Some(RUNS_DENIED)),
        Err(failure) => Err(failure),
    }
}

/// Sets the session's parameters. A limit of the server's own configuration would end waiting statements.
fn set_up(mariadb: bool, idle: Duration) -> [String; 2] {
    let limit = if mariadb { "max_statement_time" } else { "max_execution_time" };
    [
        format!(
            "SET SESSION wait_timeout = {}, autocommit = 1, time_zone = '+00:00', {limit} = 0, \
             group_concat_max_len = 65536, lock_wait_timeout = {ROW_TIMEOUT_SECS}, innodb_lock_wait_timeout = {ROW_TIMEOUT_SECS}",
            idle.as_secs()
        ),
        // Without it, statements for neighbouring names could wait for each other.
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED".to_owned(),
    ]
}

pub(crate) async fn all(channel: &Channel, texts: &[String]) -> Result<Vec<Answer>, Unanswered> {
    futures_util::future::try_join_all(texts.iter().map(|text| channel.query(text))).await
}

/// Reads rows of a name and a value.
pub(crate) fn pairs(rows: Vec<Row>) -> HashMap<String, String> {
    rows.into_iter()
        .filter_map(|mut row| Some((row.take::<String, _>(0)?.to_lowercase(), row.take::<String, _>(1)?)))
        .collect()
}

/// Returns a text that differs between servers.
pub(crate) fn identity(facts: &HashMap<String, String>) -> String {
    let fact = |name| facts.get(name).map(String::as_str).unwrap_or_default();
    ["server_uuid", "hostname", "port", "server_id", "datadir"].map(fact).join("\n")
}

/// Refuses servers on which locks exclude nobody. `own`: what each node of a cluster has by itself.
pub(crate) fn check(facts: &HashMap<String, String>, own: &str, server: &str) -> Result<(), Failure> {
    let fact = |name: &str| facts.get(name).map(String::as_str).unwrap_or_default();
    let is_on = |name: &str| !matches!(fact(name), "" | "OFF" | "0");
    let refusal = if is_on("wsrep_on") {
        format!(
            "is a node of a Galera cluster, whose nodes have {own} of their own; use another server or engine"
        )
    } else if fact("group_replication_single_primary_mode") == "OFF" {
        format!(
            "is a member of a group with several primaries, which have {own} of their own; use a single primary"
        )
    } else if ["read_only", "super_read_only", "innodb_read_only"].into_iter().any(is_on) {
        return Err(error::read_only(server));
    } else {
        return Ok(());
    };
    Err(Failure::new(ErrorKind::Configuration, format!("{server} {refusal}")))
}

fn explain(refused: Refused, server: &str, connector: &Connector) -> Failure {
    match refused {
        Refused::Server { code: NO_ACCESS, message } => {
            let advice = "denies this user the database; grant the rights that `fencepost schema` with this URL names in its comments";
            Failure::new(ErrorKind::Denied, format!("{server} {advice}")).because(message)
        }
        Refused::Server { code, message } => error::read(Unanswered::Refused { code, message }, server),
        Refused::Io(error) => error::unconnected(server, error).noting(connector.security.unread()),
        Refused::NoTls => Failure::new(
            ErrorKind::Configuration,
            format!("{server} has no TLS; configure ssl_cert and ssl_key there, or use sslmode=disable"),
        ),
        Refused::Method(name) => Failure::new(
            ErrorKind::Denied,
            format!(
                "{server} asks user {} for the authentication {name}; use caching_sha2_password, ed25519 or \
                 mysql_native_password",
                connector.config.server.credentials.user
            ),
        ),
    }
}
