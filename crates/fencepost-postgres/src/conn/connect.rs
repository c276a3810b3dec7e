//! Opens a connection and checks that locks work on it.

use std::collections::HashSet;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{ErrorKind, Runtime};
use futures_util::StreamExt;
use futures_util::future::select;
use rustix::net::sockopt;
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{oneshot, watch};
use tokio_postgres::AsyncMessage;
use tokio_postgres::config::SslMode;
use tokio_postgres::{CancelToken, Client, SimpleQueryMessage};

use crate::config::Config;
use crate::conn::connection::Connection;
use crate::conn::security::{Driver, Failed, Security, check_hosts};
use crate::conn::statements::Statements;
use crate::error::Failure;

/// The oldest version of the server: it has `idle_session_timeout`.
const OLDEST: i32 = 140_000;

/// How often the server checks during a statement that waits whether its client is still there.
const CHECK_INTERVAL: &str = "500ms";

/// Sets the session's parameters as far as the server knows them, and reads what the client has to know. A limit of the server's own
/// configuration would end waiting statements. `synchronous_commit` must not be off, or a crash repeats tokens.
const SET_UP: &str = "SELECT pg_backend_pid(), current_setting('server_version_num')::int4, pg_is_in_recovery(), \
    count(set_config(name, wanted, false))::int4 \
    FROM (VALUES ('client_connection_check_interval', $2), ('idle_session_timeout', $1), \
    ('idle_in_transaction_session_timeout', '0'), ('lock_timeout', '0'), ('statement_timeout', '0'), \
    ('transaction_timeout', '0'), ('default_transaction_isolation', 'read committed'), \
    ('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' \
    ELSE current_setting('synchronous_commit') END)) AS parameters (name, wanted) \
    JOIN pg_settings USING (name)";

/// The channel of questions to all clients.
pub(crate) const CHANNEL: &str = "fencepost";

/// The channel on which a release tells the key that it has freed, if a claim waits for such a message.
pub(crate) const FREE_CHANNEL: &str = "fencepost_free";

/// Returns the name of a client's sessions, which is also the channel of replies to it.
pub(crate) fn session_name(runtime: &Runtime) -> String {
    format!("fencepost_{:016x}", runtime.client())
}

/// Opens connections to the server that a URL names.
pub(crate) struct Connector {
    driver: tokio_postgres::Config,
    security: Security,
    pub(crate) config: Config,
    pub(crate) runtime: Runtime,
    /// The server as messages name it.
    pub(crate) server: Arc<str>,
    /// The hosts that are no poolers in transaction mode.
    direct: Mutex<HashSet<(String, u16)>>,
    /// Where messages of other clients go.
    inbox: UnboundedSender<Message>,
}

/// A message of another client.
pub(crate) struct Message {
    pub(crate) channel: String,
    pub(crate) text: String,
}

impl Connector {
    /// Reads the files of certificates.
    pub(crate) fn new(
        config: Config,
        runtime: Runtime,
        inbox: UnboundedSender<Message>,
    ) -> Result<Connector, Failure> {
        check_hosts(config.tls.as_ref(), &config.hosts)?;
        let security = Security::of(config.tls.as_ref())?;
        let mut driver = tokio_postgres::Config::new();
        driver
            .user(&config.credentials.user)
            .dbname(&config.database)
            .application_name(session_name(&runtime));
        if let Some(password) = &config.credentials.password {
            driver.password(password);
        }
        driver.ssl_mode(if config.tls.is_some() { SslMode::Require } else { SslMode::Disable });
        let server = config.server().into();
        Ok(Connector { driver, security, config, runtime, server, direct: Mutex::default(), inbox })
    }

    /// Opens a connection that the server ends after `idle` without a statement. Runs on the client's own thread.
    pub(crate) async fn connect(self: &Arc<Connector>, idle: Duration) -> Result<Arc<Connection>, Failure> {
        let clock = self.runtime.clock();
        // Several hosts are tried in turn.
        let count = u32::try_from(self.config.hosts.len()).unwrap_or(u32::MAX);
        let until = clock.now() + self.config.connect_timeout.saturating_mul(count) + self.config.timeout;
        clock.within(until, self.open(idle)).await.unwrap_or_else(|| Err(Failure::timeout(&self.server)))
    }

    /// Tries the servers in turn. The first one that accepts writes is used.
    async fn open(self: &Arc<Connector>, idle: Duration) -> Result<Arc<Connection>, Failure> {
        let mut failure = None;
        for host in &self.config.hosts {
            match self.open_at(host, idle).await {
                Ok(connection) => return Ok(connection),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| Failure::ended(&self.server)))
    }

    async fn open_at(
        self: &Arc<Connector>,
        host: &(String, u16),
        idle: Duration,
    ) -> Result<Arc<Connection>, Failure> {
        let server = format!("{}:{}", host.0, host.1);
        let failed = |error| Failure::read(&error, &server);
        let (client, driver) = self.greet(host).await?;
        self.check_pooler(host, &client).await?;
        let millis = idle.as_millis().to_string();
        let row = client.query_one(SET_UP, &[&millis, &CHECK_INTERVAL]).await.map_err(failed)?;
        let (pid, version, standby): (i32, i32, bool) = (row.get(0), row.get(1), row.get(2));
        if version < OLDEST {
            let message =
                format!("{server} is older than PostgreSQL 14, which has no idle_session_timeout; update it");
            return Err(Failure::new(ErrorKind::Configuration, message));
        }
        if standby {
            return Err(Failure::standby(&server));
        }
        let statements = Statements::prepare(&client).await.map_err(failed)?;
        Ok(Connection::new(self, client, statements, driver, Session { host: host.clone(), pid, idle }))
    }

    /// Connects to a server and starts the driver's task.
    pub(crate) async fn greet(&self, host: &(String, u16)) -> Result<(Client, Running), Failure> {
        let stream = self.dial(host, self.config.pinned).await?;
        let greeted = self.security.connect(&self.driver, &host.0, stream).await;
        let (client, driver) = greeted.map_err(|error| explain(error, &format!("{}:{}", host.0, host.1)))?;
        Ok((client, Running::start(driver, &self.runtime, self.inbox.clone())))
    }

    /// Checks once for each host that a connection keeps its backend. A pooler in transaction mode gives the backend of a connection
    /// without a transaction to the transaction of another one.
    async fn check_pooler(&self, host: &(String, u16), client: &Client) -> Result<(), Failure> {
        if self.direct.lock().contains(host) {
            return Ok(());
        }
        let server = format!("{}:{}", host.0, host.1);
        let failed = |error| Failure::read(&error, &server);
        let (other, _running) = self.greet(host).await?;
        let backend = backend(client).await.map_err(failed)?;
        // A pooler in statement mode refuses this.
        other.simple_query("BEGIN").await.map_err(|error| Failure::pooled(&server).because(error))?;
        if backend == self::backend(&other).await.map_err(failed)?
            || backend != self::backend(client).await.map_err(failed)?
        {
            return Err(Failure::pooled(&server));
        }
        self.direct.lock().insert(host.clone());
        Ok(())
    }

    /// Connects a socket. `pinned`: programs that this process starts inherit it.
    async fn dial(&self, host: &(String, u16), pinned: bool) -> Result<TcpStream, Failure> {
        let server = format!("{}:{}", host.0, host.1);
        let clock = self.runtime.clock();
        let dialling = TcpStream::connect((host.0.as_str(), host.1));
        let stream = clock.within(clock.now() + self.config.connect_timeout, dialling).await;
        let stream = stream.ok_or_else(|| Failure::timeout(&server))?;
        stream
            .and_then(|stream| set_options(stream, pinned))
            .map_err(|error| Failure::unconnected(&server, error))
    }

    /// Opens a connection that holds locks for many claims, and hears the messages of other clients.
    pub(crate) async fn connect_listening(
        self: &Arc<Connector>,
        idle: Duration,
    ) -> Result<Arc<Connection>, Failure> {
        let connection = self.connect(idle).await?;
        connection.listen(&[CHANNEL, FREE_CHANNEL, &session_name(&self.runtime)]).await?;
        Ok(connection)
    }

    /// Asks the server to cancel the statement that a connection to `host` runs.
    pub(crate) async fn cancel(&self, token: &CancelToken, host: &(String, u16)) -> Result<(), Failure> {
        let stream = self.dial(host, false).await?;
        let cancelled = self.security.cancel(token, &host.0, stream).await;
        cancelled.map_err(|error| explain(error, &self.server))
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

/// The session of a new connection.
pub(crate) struct Session {
    pub(crate) host: (String, u16),
    pub(crate) pid: i32,
    pub(crate) idle: Duration,
}

fn explain(failed: Failed, server: &str) -> Failure {
    match failed {
        Failed::Driver(error) => Failure::read(&error, server),
        #[cfg(feature = "tls")]
        Failed::Name(error) => {
            Failure::new(ErrorKind::Invalid, format!("{server} has no name that a certificate can have"))
                .because(error)
        }
    }
}

/// A waiting statement has no time limit: keep-alives end it when the network is silent.
fn set_options(stream: TcpStream, pinned: bool) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(2))?;
    sockopt::set_tcp_keepcnt(&stream, 3)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(&stream, 11_000)?;
    if pinned {
        rustix::io::fcntl_setfd(&stream, rustix::io::FdFlags::empty())?;
    }
    Ok(stream)
}

/// The driver's task of a connection, on the client's own thread. Dropping this ends the connection.
pub(crate) struct Running {
    pub(crate) ended: watch::Receiver<bool>,
    _stop: oneshot::Sender<()>,
}

impl Running {
    fn start(mut driver: Driver, runtime: &Runtime, inbox: UnboundedSender<Message>) -> Running {
        let (_stop, stopped) = oneshot::channel::<()>();
        let (ending, ended) = watch::channel(false);
        runtime.spawn(async move {
            let run = pin!(async {
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
            });
            let _ = select(run, stopped).await;
            drop(driver);
            let _ = ending.send(true);
        });
        Running { ended, _stop }
    }
}

/// Keeps the driver's type out of the other modules.
pub(crate) type DriverClient = Client;
