//! The state that the parts of one client share.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Claim, Runtime, Want};
use fencepost_sql::connection_locks::{Connection, ConnectionLocks, ConnectionTask, OneServer, Server};
use fencepost_sql::{Answer, Failure, ServerUrl, TableOfRecords, records_beside};
use tokio::sync::mpsc::{self, UnboundedReceiver};

use crate::config::Config;
use crate::conn::connect::{Connector, Message};
use crate::conn::session::PostgresSession;
use crate::error::ENGINE;
use crate::inbox::Inbox;
use crate::keys::key;
use crate::operator::names::Names;
use crate::schema::dialect::POSTGRES;

/// A client.
pub(crate) type PostgresClient = ConnectionLocks<PostgresServer>;

/// The server as a client uses it.
pub(crate) struct PostgresServer {
    connector: Arc<Connector>,
    pub(crate) inbox: Inbox,
    pub(crate) names: Names,
}

/// Connects and checks that the server accepts this client.
/// Returns the messages of other clients, too.
pub(crate) async fn open(
    config: Config,
    runtime: Runtime,
    servers: Arc<OneServer>,
) -> Result<(Arc<PostgresClient>, UnboundedReceiver<Message>), Failure> {
    let (sender, messages) = mpsc::unbounded_channel();
    let connector = Arc::new(Connector::new(config, runtime.clone(), sender, servers)?);
    let server = PostgresServer { connector, inbox: Inbox::default(), names: Names::default() };
    let client = ConnectionLocks::open(Arc::new(server), runtime).await?;
    client.connection().await?.run(|session| client.server.names.find(session)).await?;
    Ok((client, messages))
}

/// Returns the records beside advisory locks. `servers`: that of the locks, because a job would run twice if its lock and its record were at
/// two servers.
pub(crate) fn records(
    mut config: Config,
    runtime: &Runtime,
    servers: Arc<OneServer>,
) -> Result<Arc<TableOfRecords>, Failure> {
    // No lock belongs to its connection, so no program has to inherit one. Nobody listens.
    config.server.pinned = false;
    let (ignored, _) = mpsc::unbounded_channel();
    let connector = Arc::new(Connector::new(config, runtime.clone(), ignored, servers)?);
    Ok(records_beside(&connector, &POSTGRES, "fencepost.record", ENGINE))
}

impl PostgresServer {
    /// Returns the prefix of all names.
    pub(crate) fn prefix(&self) -> &str {
        &self.connector.config.server.prefix
    }
}

/// Writes the names of new locks to the table, many in one statement.
async fn write_names(client: Arc<PostgresClient>) {
    let server = &client.server;
    loop {
        let (keys, names) = server.names.take();
        if keys.is_empty() {
            return;
        }
        let written = async {
            let connection = client.connection().await?;
            connection.run(|session| session.write_names(server.prefix(), &keys, &names)).await
        };
        if let Err(failure) = written.await {
            // The lock is held all the same. A later grant writes the name.
            server.names.note_failure(client.runtime.clock().now());
            tracing::debug!(?failure, "names of locks were not written");
        }
    }
}

impl Server for PostgresServer {
    const ENGINE: &'static str = ENGINE;
    const CANNOT_DETACH: &'static str =
        "an advisory lock ends with its connection and cannot be detached; use mode=table";

    type Session = PostgresSession;

    fn url(&self) -> &ServerUrl {
        &self.connector.config.server
    }

    fn name(&self) -> &str {
        &self.connector.server
    }

    fn keys(&self, want: &Want) -> i64 {
        key(self.prefix(), &want.name)
    }

    fn connect(
        self: &Arc<Self>,
        idle: Duration,
        holds: bool,
    ) -> Answer<'_, (PostgresSession, ConnectionTask)> {
        Box::pin(self.connector.connect(idle, holds))
    }

    /// By a statement: a request to cancel, as the protocol has it, needs a connection of its own.
    fn interrupt<'a>(
        client: &'a PostgresClient,
        waiting: &'a Connection<PostgresServer>,
        ttl: Duration,
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            client.connections.holding(ttl).await?.run(|session| session.cancel(waiting.session())).await
        })
    }

    fn granted(client: &Arc<PostgresClient>, claim: &Claim, key: &i64) {
        if client.server.names.note(*key, &claim.want().name, client.runtime.clock().now()) {
            client.runtime.spawn(write_names(Arc::clone(client)));
        }
    }
}
