//! The state that the parts of one client share.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Backoff, Name, Runtime};
use tokio::sync::mpsc::{self, UnboundedReceiver};

use crate::claim::listed::ListedClaims;
use crate::claim::quiet::QuietWaiters;
use crate::config::Config;
use crate::conn::connect::{Connector, Message};
use crate::conn::connection::Connection;
use crate::conn::pool::Pool;
use crate::error::Failure;
use crate::inbox::Inbox;
use crate::keys::{Keys, KeysInUse};
use crate::operator::names::Names;

/// The lease for which the first connection is opened: core's default.
pub(crate) const FIRST_TTL: Duration = Duration::from_secs(30);

pub(crate) struct PostgresClient {
    pub(crate) pool: Pool,
    pub(crate) runtime: Runtime,
    pub(crate) prefix: String,
    pub(crate) listed: ListedClaims,
    pub(crate) inbox: Inbox,
    pub(crate) keys: KeysInUse,
    pub(crate) quiet: QuietWaiters,
    pub(crate) names: Names,
    /// No claim waits in the server's queue.
    pub(crate) waits_quietly: bool,
}

impl PostgresClient {
    /// Connects and checks that the server accepts this client.
    /// Returns the messages of other clients, too.
    pub(crate) async fn open(
        config: Config,
        runtime: Runtime,
    ) -> Result<(Arc<PostgresClient>, UnboundedReceiver<Message>), Failure> {
        let (prefix, waits_quietly) = (config.prefix.clone(), config.quiet);
        let (sender, messages) = mpsc::unbounded_channel();
        let pool = Pool::new(Connector::new(config, runtime.clone(), sender)?);
        let client = Arc::new(PostgresClient {
            pool,
            runtime: runtime.clone(),
            prefix,
            listed: ListedClaims::default(),
            inbox: Inbox::default(),
            keys: KeysInUse::default(),
            quiet: QuietWaiters::default(),
            names: Names::default(),
            waits_quietly,
        });
        let connection = client.pool.holding(FIRST_TTL).await?;
        client.names.find(&connection).await?;
        Ok((client, messages))
    }

    /// Sends a statement of which only the reply matters.
    pub(crate) async fn reach(&self) -> Result<(), Failure> {
        let connection = self.pool.holding(FIRST_TTL).await?;
        connection.ping(FIRST_TTL).await
    }

    /// Returns when `waiting` stands in the queue of a lock.
    pub(crate) async fn await_queued(&self, waiting: &Connection, ttl: Duration) -> Result<(), Failure> {
        let mut backoff = Backoff::new(Duration::from_micros(100), Duration::from_millis(100));
        loop {
            let connection = self.pool.holding(ttl).await?;
            if connection.is_queued(waiting).await? {
                return Ok(());
            }
            // Its backend has not read the statement yet.
            backoff.sleep(self.runtime.clock()).await;
        }
    }

    /// Writes the names of new locks to the table, many in one statement.
    pub(crate) async fn write_names(self: Arc<PostgresClient>) {
        loop {
            let (keys, names) = self.names.take();
            if keys.is_empty() {
                return;
            }
            let written = async {
                let connection = self.pool.holding(FIRST_TTL).await?;
                connection.write_names(&self.prefix, &keys, &names).await
            };
            if let Err(failure) = written.await {
                // The lock is held all the same. Another client writes the name.
                tracing::debug!(?failure, "names of locks were not written");
            }
        }
    }

    pub(crate) fn keys_of(&self, name: &Name) -> Keys {
        Keys::of(&self.prefix, name)
    }
}
