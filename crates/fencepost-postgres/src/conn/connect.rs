//! Opens a connection and checks that locks work on it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{ErrorKind, Runtime};
use fencepost_sql::connection_locks::{ConnectionTask, OneServer};
use fencepost_sql::{Answer, Failure, UrlMode, client_name, connection_name, dial};
use futures_util::StreamExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedSender;
use tokio_postgres::AsyncMessage;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::config::Config;
use crate::conn::security::{Driver, Failed, Security};
use crate::conn::session::PostgresSession;
use crate::conn::statements::Statements;
use crate::error;

/// The oldest version of the server: it has `idle_session_timeout`.
const OLDEST: i32 = 140_000;

/// How often the server checks during a statement that waits whether its client is still there.
const CHECK_INTERVAL: &str = "500ms";

/// Sets the session's parameters as far as the server knows them, and reads what the client has to know. A limit of the server's own
/// configuration would end waiting statements. `synchronous_commit` must not be off, or a crash repeats tokens.
///
/// The time at which the server was started tells it from others. Each user may read it, and it is the same behind a pooler and at each
/// address of the server. A standby has the system identifier of its primary, so that would not tell them apart.
const SET_UP: &str = "SELECT pg_backend_pid(), current_setting('server_version_num')::int4, pg_is_in_recovery(), \
    extract(epoch FROM pg_postmaster_start_time())::text, count(set_config(name, wanted, false))::int4 \
    FROM (VALUES ('client_connection_check_interval', $2), ('idle_session_timeout', $1), \
    ('idle_in_transaction_session_timeout', '0'), ('lock_timeout', $3), ('statement_timeout', '0'), \
    ('transaction_timeout', '0'), ('default_transaction_isolation', 'read committed'), \
    ('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' \
    ELSE current_setting('synchronous_commit') END)) AS parameters (name, wanted) \
    JOIN pg_settings USING (name)";

/// How long a statement of a connection that holds locks waits for others: its pings queue behind the statement. `LOCK TABLE` and
/// `ALTER TABLE` on the tables of fencepost hold up the others.
const HOLDING_LOCK_TIMEOUT: &str = "1s";

/// The channel of questions to all clients.
pub(crate) const CHANNEL: &str = "fencepost";

/// Opens connections to the server that a URL names.
pub(crate) struct Connector {
    driver: tokio_postgres::Config,
    security: Arc<Security>,
    pub(crate) config: Config,
    pub(crate) runtime: Runtime,
    /// The server as messages name it.
    pub(crate) server: Arc<str>,
    /// The server of the open connections that hold locks.
    pub(crate) servers: Arc<OneServer>,
    /// The hosts that are no poolers in transaction mode.
    direct: Mutex<HashSet<(String, u16)>>,
    /// Whether the server keeps the plans of the lease table's statements: the URL allows it, and no plan was missing.
    pub(crate) keeps_plans: AtomicBool,
    /// Where messages of other clients go.
    inbox: UnboundedSender<Message>,
}

/// A message of another client.
pub(crate) struct Message {
    pub(crate) channel: String,
    pub(crate) text: String,
}

impl Connector {
    /// Reads the files of certificates. `servers`: shared with the connections that hold locks.
    pub(crate) fn new(
        config: Config,
        runtime: Runtime,
        inbox: UnboundedSender<Message>,
        servers: Arc<OneServer>,
    ) -> Result<Connector, Failure> {
        let security = Arc::new(Security::of(config.server.tls.as_ref())?);
        let mut driver = tokio_postgres::Config::new();
        driver
            .user(&config.server.credentials.user)
            .dbname(&config.server.database)
            .application_name(connection_name(&runtime));
        driver.ssl_mode(if config.server.tls.is_some() { SslMode::Require } else { SslMode::Disable });
        let server = config.server.to_string().into();
        let keeps_plans = AtomicBool::new(config.prepare);
        Ok(Connector {
            driver,
            security,
            config,
            runtime,
            server,
            servers,
            direct: Mutex::default(),
            keeps_plans,
            inbox,
        })
    }

    /// Opens a connection to the first server that accepts writes, which ends it after `idle` without a statement. `holds`: it holds locks for
    /// many claims, and hears the messages of other clients. Runs on the client's own thread.
    pub(crate) async fn connect(
        self: &Arc<Connector>,
        idle: Duration,
        holds: bool,
    ) -> Result<(PostgresSession, ConnectionTask), Failure> {
        let open = |host| -> Answer<'_, _> {
            Box::pin(async move {
                let (session, task, identity) = self.open_at(host, idle, holds).await?;
                if holds {
                    session.listen(&[CHANNEL, &client_name(&self.runtime)]).await?;
                }
                // Another connection may have been opened meanwhile.
                self.servers.join(&identity, &format!("{}:{}", host.0, host.1), task.end())?;
                Ok((session, task))
            })
        };
        self.config.server.first(&self.runtime, open).await
    }

    /// Opens a connection to a host. Returns a text that tells its server from others, too.
    async fn open_at(
        self: &Arc<Connector>,
        host: &(String, u16),
        idle: Duration,
        holds: bool,
    ) -> Result<(PostgresSession, ConnectionTask, String), Failure> {
        let server = format!("{}:{}", host.0, host.1);
        let failed = |error| error::read(&error, &server);
        let (client, task) = self.greet(host).await?;
        self.check_pooler(host, &client).await?;
        let millis = idle.as_millis().to_string();
        let lock_timeout = if holds { HOLDING_LOCK_TIMEOUT } else { "0" };
        let values: [&(dyn ToSql + Sync); 3] = [&millis, &CHECK_INTERVAL, &lock_timeout];
        let row = client.query_one(SET_UP, &values).await.map_err(failed)?;
        let (pid, version, standby): (i32, i32, bool) = (row.get(0), row.get(1), row.get(2));
        let identity: String = row.try_get(3).map_err(failed)?;
        if version < OLDEST {
            let message =
                format!("{server} is older than PostgreSQL 14, which has no idle_session_timeout; update it");
            return Err(Failure::new(ErrorKind::Configuration, message));
        }
        // Read-only transactions are no reason to pass over the server. No open connection to it ends by them, and a client uses no other
        // server until all of them have ended.
        self.check_writable(standby, false, &server)?;
        // Before the statements are prepared and messages are heard, because a client that is refused asks again and again.
        self.servers.check(&identity, &server)?;
        let statements = Statements::prepare(&client).await.map_err(failed)?;
        Ok((PostgresSession { connector: Arc::clone(self), client, statements, pid }, task, identity))
    }

    /// Connects to a server and starts the driver's task.
    pub(crate) async fn greet(&self, host: &(String, u16)) -> Result<(Client, ConnectionTask), Failure> {
        let log_in =
            |password: Option<Arc<str>>| async move { self.greet_with(host, password.as_deref()).await };
        self.config.server.credentials.log_in(log_in).await
    }

    /// The same with this password.
    async fn greet_with(
        &self,
        host: &(String, u16),
        password: Option<&str>,
    ) -> Result<(Client, ConnectionTask), Failure> {
        let stream = self.dial(host).await?;
        let mut driver = self.driver.clone();
        if let Some(password) = password {
            driver.password(password);
        }
        let greeted = self.security.connect(&driver, &host.0, stream).await;
        let (client, driver) =
            greeted.map_err(|error| explain(error, &format!("{}:{}", host.0, host.1), &self.security))?;
        Ok((client, run(driver, &self.runtime, self.inbox.clone())))
    }

    /// Checks once for each host that a connection keeps its backend. A pooler in transaction mode gives the backend of a connection
    /// without a transaction to the transaction of another one.
    async fn check_pooler(&self, host: &(String, u16), client: &Client) -> Result<(), Failure> {
        if self.direct.lock().contains(host) {
            return Ok(());
        }
        let server = format!("{}:{}", host.0, host.1);
        let failed = |error| error::read(&error, &server);
        let (other, _running) = self.greet(host).await?;
        let backend = backend(client).await.map_err(failed)?;
        // A pooler in statement mode refuses this.
        other.simple_query("BEGIN").await.map_err(|error| error::pooled(&server).because(error))?;
        if backend == self::backend(&other).await.map_err(failed)?
            || backend != self::backend(client).await.map_err(failed)?
        {
            return Err(error::pooled(&server));
        }
        self.direct.lock().insert(host.clone());
        Ok(())
    }

    /// Refuses a server that accepts no writes, so that the next one is tried. A primary that was given up can have read-only transactions
    /// instead of being a standby; `read_only` says so of a connection on which no lock rests.
    pub(crate) fn check_writable(&self, standby: bool, read_only: bool, server: &str) -> Result<(), Failure> {
        let refused = if standby {
            error::standby(server)
        } else if read_only && self.passes_over_read_only() {
            error::read_only(server)
        } else {
            return Ok(());
        };
        // During a switchover no server of the URL accepts writes for a while, so a claim that waits asks again.
        Err(Failure { transient: self.config.server.hosts.len() > 1, ..refused })
    }

    /// Returns whether a server whose transactions are read-only is passed over. Not beside advisory locks, which stay at it. If the URL
    /// names no other server, such a session is used all the same, because it can read.
    pub(crate) fn passes_over_read_only(&self) -> bool {
        self.config.mode == UrlMode::Table && self.config.server.hosts.len() > 1
    }

    /// Asks the server in the background to cancel the statement that runs on a connection to `host`.
    pub(crate) fn cancel(&self, client: &Client, host: &(String, u16)) {
        let (security, token, host) = (Arc::clone(&self.security), client.cancel_token(), host.clone());
        let (clock, timeout) = (self.runtime.clock().clone(), self.config.server.connect_timeout);
        self.runtime.spawn(async move {
            let cancelling = async {
                let stream = dial(&host, false).await.ok()?;
                security.cancel(&token, &host.0, stream).await.ok()
            };
            if clock.within(clock.now() + timeout, cancelling).await.flatten().is_none() {
                tracing::debug!(host = host.0, "a statement that took too long could not be cancelled");
            }
        });
    }

    /// Connects a socket.
    async fn dial(&self, host: &(String, u16)) -> Result<TcpStream, Failure> {
        let server = format!("{}:{}", host.0, host.1);
        let clock = self.runtime.clock();

        let until = clock.now() + self.config.server.connect_timeout;
        let stream = clock.within(until, dial(host, self.config.server.pinned)).await;
        let stream = stream.ok_or_else(|| Failure::timeout(&server))?;
        stream.map_err(|error| error::unconnected(&server, error))
    }
}

/// Asks for the number of the backend that answers, by a statement that is not prepared.
async fn backend(client: &Client) -> Result<Option<String>, tokio_postgres::Error> {
    let replies = client.simple_query("SELECT pg_backend_pid()").await?;
    let row = replies.iter().find_map(|reply| match reply {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    Ok(row.map(str::to_owned))
}

fn explain(failed: Failed, server: &str, security: &Security) -> Failure {
    match failed {
        Failed::Driver(error) if error.as_db_error().is_none() => {
            error::read(&error, server).noting(security.unread())
        }
        Failed::Driver(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            let message =
                format!("{server} refuses this user the database; grant the user CONNECT on the database");
            Failure { message, ..error::read(&error, server) }
        }
        Failed::Driver(error) => error::read(&error, server),
        #[cfg(feature = "tls")]
        Failed::Name(error) => {
            Failure::new(ErrorKind::Invalid, format!("{server} has no name that a certificate can have"))
                .because(error)
        }
    }
}

/// Starts the driver's task of a connection.
fn run(mut driver: Driver, runtime: &Runtime, inbox: UnboundedSender<Message>) -> ConnectionTask {
    ConnectionTask::start(runtime, async move {
        while let Some(message) = driver.next().await {
            match message {
                Ok(AsyncMessage::Notification(said)) => {
                    let (channel, text) = (said.channel().to_owned(), said.payload().to_owned());
                    let _ = inbox.send(Message { channel, text });
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, "a connection to PostgreSQL ended");
                    break;
                }
            }
        }
    })
}

/// Keeps the driver's type out of the other modules.
pub(crate) type DriverClient = Client;
