//! Connections that are used for one statement or transaction at a time.

use std::sync::Arc;

use fencepost_core::ErrorKind;
use fencepost_core::sync::Mutex;
use fencepost_sql::Failure;
use fencepost_sql::connection_locks::ConnectionTask;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::conn::connect::{Connector, DriverClient};
use crate::error;

/// A connection.
pub(crate) struct Plain {
    pub(crate) client: DriverClient,
    pub(crate) running: ConnectionTask,
}

impl Plain {
    fn has_ended(&self) -> bool {
        self.running.has_ended()
    }
}

/// Connections of one kind. Each idle one is open.
pub(crate) struct Connections {
    connector: Arc<Connector>,
    /// `None` once the client is closed.
    idle: Arc<Mutex<Option<Vec<Plain>>>>,
    permits: Arc<Semaphore>,
}

/// A connection in use. Dropping it closes the connection, unless nothing is under way on it.
pub(crate) struct Used {
    connection: Option<Plain>,
    idle: Arc<Mutex<Option<Vec<Plain>>>>,
    clean: bool,
    _permit: OwnedSemaphorePermit,
}

impl Used {
    pub(crate) fn client(&self) -> &DriverClient {
        &self.connection.as_ref().expect("it is there until it is dropped").client
    }

    /// Notes whether nothing is under way on the connection.
    pub(crate) fn set_clean(&mut self, clean: bool) {
        self.clean = clean;
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        if !self.clean || connection.has_ended() {
            return;
        }
        if let Some(idle) = self.idle.lock().as_mut() {
            idle.push(connection);
        }
    }
}

impl Connections {
    /// At most `most` connections at a time.
    pub(crate) fn new(connector: &Arc<Connector>, most: usize) -> Connections {
        Connections {
            connector: Arc::clone(connector),
            idle: Arc::new(Mutex::new(Some(Vec::new()))),
            permits: Arc::new(Semaphore::new(most)),
        }
    }

    /// Returns a connection, first come, first served. Opens one if none is idle.
    pub(crate) async fn get(&self) -> Result<Used, Failure> {
        let clock = self.connector.runtime.clock();
        let config = &self.connector.config;
        let until = clock.now() + config.server.timeout + config.server.connect_timeout;
        let permit = clock.within(until, Arc::clone(&self.permits).acquire_owned()).await;
        let busy = || {
            let message = "all connections of this client are busy; raise connections= in the URL, and check the server's load";
            Failure::new(ErrorKind::Unreachable, message)
        };
        let permit = permit.ok_or_else(busy)?.map_err(|_| closed())?;
        let connection = loop {
            match self.idle.lock().as_mut().ok_or_else(closed)?.pop() {
                Some(connection) if connection.has_ended() => {}
                other => break other,
            }
        };
        let connection = match connection {
            Some(connection) => connection,
            None => connect(&self.connector).await?,
        };
        Ok(Used { connection: Some(connection), idle: Arc::clone(&self.idle), clean: false, _permit: permit })
    }

    /// Closes idle connections, and those in use when their statements end.
    pub(crate) fn close(&self) {
        self.permits.close();
        let idle = self.idle.lock().take();
        drop(idle);
    }
}

/// Opens a connection on the client's own thread.
pub(crate) async fn connect(connector: &Arc<Connector>) -> Result<Plain, Failure> {
    let (sender, opened) = oneshot::channel();
    let own = Arc::clone(connector);
    connector.runtime.spawn(async move {
        // Dropped by its caller, the connection closes.
        let _ = sender.send(open(&own).await);
    });
    opened.await.map_err(|_| closed())?
}

/// Opens a connection to the first server that accepts writes. Nothing is set or prepared on it: it may be one of a pooler in
/// transaction mode. Runs on the client's own thread.
pub(crate) async fn open(connector: &Connector) -> Result<Plain, Failure> {
    let (clock, config) = (connector.runtime.clock(), &connector.config);
    let until = config.server.connect_limit(&connector.runtime);
    let opening = async {
        let mut failure = Failure::ended(&connector.server);
        for host in &config.server.hosts {
            match open_at(connector, host).await {
                Ok(connection) => return Ok(connection),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    };
    clock.within(until, opening).await.unwrap_or_else(|| Err(Failure::timeout(&connector.server)))
}

async fn open_at(connector: &Connector, host: &(String, u16)) -> Result<Plain, Failure> {
    let (client, running) = connector.greet(host).await?;
    let server = format!("{}:{}", host.0, host.1);
    let standby = client.query_typed_one("SELECT pg_is_in_recovery()", &[]).await;
    if standby.map_err(|error| error::read(&error, &server))?.get(0) {
        return Err(error::standby(&server));
    }
    Ok(Plain { client, running })
}

/// Runs statements without parameters on a connection of their own.
pub(crate) async fn run_batch(connector: &Connector, statements: &str) -> Result<(), Failure> {
    let connection = open(connector).await?;
    let clock = connector.runtime.clock();
    let running = connection.client.batch_execute(statements);
    let made = clock.within(clock.now() + connector.config.server.timeout, running).await;
    made.ok_or_else(|| Failure::timeout(&connector.server))?
        .map_err(|error| error::read(&error, &connector.server))
}

pub(crate) fn closed() -> Failure {
    Failure::closed()
}
