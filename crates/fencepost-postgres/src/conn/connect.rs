//! Opens a connection and checks that locks work on it.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{ErrorKind, Runtime};
use tokio_postgres::config::{SslMode, TargetSessionAttrs};
use tokio_postgres::{CancelToken, Client};

use crate::config::Config;
use crate::conn::connection::Connection;
use crate::conn::security::{Driver, Security, check_hosts};
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

/// Opens connections to the server that a URL names.
pub(crate) struct Connector {
    driver: tokio_postgres::Config,
    security: Security,
    pub(crate) config: Config,
    pub(crate) runtime: Runtime,
    /// The server as messages name it.
    pub(crate) server: Arc<str>,
}

impl Connector {
    /// Reads the files of certificates.
    pub(crate) fn new(config: Config, runtime: Runtime) -> Result<Connector, Failure> {
        check_hosts(config.tls.as_ref(), &config.hosts)?;
        let security = Security::of(config.tls.as_ref())?;
        let mut driver = tokio_postgres::Config::new();
        for (host, port) in &config.hosts {
            driver.host(host).port(*port);
        }
        driver.user(&config.credentials.user).dbname(&config.database).application_name("fencepost");
        if let Some(password) = &config.credentials.password {
            driver.password(password);
        }
        driver.ssl_mode(if config.tls.is_some() { SslMode::Require } else { SslMode::Disable });
        driver.connect_timeout(config.connect_timeout).target_session_attrs(TargetSessionAttrs::ReadWrite);
        // A waiting statement has no time limit: these end it when the network is silent.
        driver.keepalives_idle(Duration::from_secs(5)).keepalives_interval(Duration::from_secs(2));
        driver.keepalives_retries(3).tcp_user_timeout(Duration::from_secs(11));
        let server = config.server().into();
        Ok(Connector { driver, security, config, runtime, server })
    }

    /// Opens a connection that the server ends after `idle` without a statement. Runs on the client's own thread.
    pub(crate) async fn connect(self: &Arc<Connector>, idle: Duration) -> Result<Arc<Connection>, Failure> {
        let clock = self.runtime.clock();
        // Several hosts are tried in turn.
        let count = u32::try_from(self.config.hosts.len()).unwrap_or(u32::MAX);
        let until = clock.now() + self.config.connect_timeout.saturating_mul(count) + self.config.timeout;
        clock.within(until, self.open(idle)).await.unwrap_or_else(|| Err(Failure::timeout(&self.server)))
    }

    async fn open(self: &Arc<Connector>, idle: Duration) -> Result<Arc<Connection>, Failure> {
        let failed = |error| Failure::read(&error, &self.server);
        let (client, driver) = self.security.connect(&self.driver).await.map_err(failed)?;
        let driver = Running::start(driver, &self.runtime);
        let millis = idle.as_millis().to_string();
        let row = client.query_one(SET_UP, &[&millis, &CHECK_INTERVAL]).await.map_err(failed)?;
        let (pid, version, standby): (i32, i32, bool) = (row.get(0), row.get(1), row.get(2));
        if version < OLDEST {
            let message =
                format!("{} is older than PostgreSQL 14; update it, or use mode=table", self.server);
            return Err(Failure::new(ErrorKind::Configuration, message));
        }
        if standby {
            let message = format!("{} is a standby; connect to the primary", self.server);
            return Err(Failure::new(ErrorKind::Configuration, message));
        }
        let statements = Statements::prepare(&client).await.map_err(failed)?;
        Ok(Connection::new(self, client, statements, driver, pid, idle))
    }

    pub(crate) async fn cancel(&self, token: &CancelToken) -> Result<(), Failure> {
        self.security.cancel(token).await.map_err(|error| Failure::read(&error, &self.server))
    }
}

/// The driver's task of a connection, on the client's own thread. Dropping this ends the connection.
pub(crate) struct Running {
    pub(crate) ended: tokio::sync::watch::Receiver<bool>,
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl Running {
    fn start(driver: Driver, runtime: &Runtime) -> Running {
        let (_stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let (ending, ended) = tokio::sync::watch::channel(false);
        runtime.spawn(async move {
            if let futures_util::future::Either::Left((Err(error), _)) =
                futures_util::future::select(driver, stopped).await
            {
                tracing::debug!(%error, "a connection to PostgreSQL ended");
            }
            let _ = ending.send(true);
        });
        Running { ended, _stop }
    }
}

/// Keeps the driver's type out of the other modules.
pub(crate) type DriverClient = Client;
