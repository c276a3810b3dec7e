//! Connections of the lease table.

use std::sync::Arc;

use fencepost_core::{ErrorKind, Runtime};
use fencepost_sql::{Answer, Connect, Failure, Plain, Results, ServerUrl, Statement};

use crate::conn::connect::{Connector, DriverClient};
use crate::error;
use crate::table::plan::Plans;
use crate::table::statement;

/// Returns whether the server is a standby, whether the session's transactions are read-only, and what tells the server from others.
const IS_WRITABLE: &str = "SELECT pg_is_in_recovery(), current_setting('transaction_read_only')::bool, \
    extract(epoch FROM pg_postmaster_start_time())::text";

/// The driver's side of a connection.
pub(crate) struct PlainClient {
    pub(crate) driver: DriverClient,
    pub(crate) plans: Plans,
    host: (String, u16),
}

/// Statements that run on a connection. Dropping this before they are done cancels them at the server, because a backend that waits for a row
/// does not notice that its connection was closed: it would take effect much later, and hold up others until then.
struct Running<'a> {
    connector: &'a Connector,
    client: &'a PlainClient,
    is_done: bool,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.connector.cancel(&self.client.driver, &self.client.host);
        }
    }
}

impl Connect for Connector {
    type Client = PlainClient;

    fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    fn url(&self) -> &ServerUrl {
        &self.config.server
    }

    /// Nothing is set on the connection: it may be one of a pooler in transaction mode.
    fn open<'a>(&'a self, host: &'a (String, u16)) -> Answer<'a, Plain<PlainClient>> {
        Box::pin(async move {
            let (driver, task) = self.greet(host).await?;
            let server = format!("{}:{}", host.0, host.1);
            let row = driver.query_typed_one(IS_WRITABLE, &[]).await;
            let row = row.map_err(|error| error::read(&error, &server))?;
            self.check_writable(row.get(0), row.get(1), &server)?;
            // Records beside advisory locks are at the server of the locks.
            let identity: String = row.try_get(2).map_err(|error| error::read(&error, &server))?;
            self.servers.follow(&identity, &server, task.end())?;
            let client = PlainClient { driver, plans: Plans::default(), host: host.clone() };
            Ok(Plain { client: Arc::new(client), task })
        })
    }

    fn run<'a>(&'a self, client: &'a PlainClient, statements: &'a [Statement]) -> Answer<'a, Results> {
        Box::pin(async move {
            let mut running = Running { connector: self, client, is_done: false };
            let results = statement::run(self, client, statements).await;
            running.is_done = true;
            results
        })
    }
}

/// Runs statements without parameters on a connection of their own.
pub(crate) async fn run_batch(connector: &Connector, statements: &str) -> Result<(), Failure> {
    let connection = Plain::open(connector).await?;
    let clock = connector.runtime.clock();
    let running = connection.client.driver.batch_execute(statements);
    let made = clock.within(clock.now() + connector.config.server.timeout, running).await;
    made.ok_or_else(|| Failure::timeout(&connector.server))?.map_err(|error| {
        let mut failure = error::read(&error, &connector.server);
        if failure.kind == ErrorKind::Denied {
            failure.message = format!(
                "{} denied a statement; apply the schema as a user with the right CREATE, such as the owner of the database",
                connector.server
            );
        }
        failure
    })
}
