//! Connections of the lease table and of row locks.

use std::sync::Arc;

use fencepost_sql::Failure;
use fencepost_sql::connection_locks::ConnectionTask;

use crate::conn::connect::{Connector, DriverClient};
use crate::error;

/// A connection.
pub(crate) struct Plain {
    pub(crate) client: Arc<DriverClient>,
    pub(crate) running: ConnectionTask,
    pub(crate) host: (String, u16),
}

impl Plain {
    pub(crate) fn has_ended(&self) -> bool {
        self.running.has_ended()
    }
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
    Ok(Plain { client: Arc::new(client), running, host: host.clone() })
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
