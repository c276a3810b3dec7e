//! The state that the parts of one client share.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Backoff, Name, Runtime};

use crate::claim::held::Held;
use crate::config::Config;
use crate::conn::connect::{Connector, Found};
use crate::conn::connection::Connection;
use crate::conn::pool::Pool;
use crate::error::Failure;
use crate::keys::{self, Key, KeysInUse};

/// The lease for which the first connection is opened: core's default.
pub(crate) const FIRST_TTL: Duration = Duration::from_secs(30);

pub(crate) struct MysqlClient {
    pub(crate) pool: Pool,
    pub(crate) runtime: Runtime,
    pub(crate) keys: KeysInUse,
    /// The locks that claims of this client hold, by key.
    held: Mutex<HashMap<Arc<str>, Weak<Held>>>,
}

impl MysqlClient {
    /// Connects and checks that the server accepts this client.
    pub(crate) async fn open(config: Config, runtime: Runtime) -> Result<Arc<MysqlClient>, Failure> {
        let pool = Pool::new(Connector::new(config, runtime.clone())?);
        let client =
            Arc::new(MysqlClient { pool, runtime, keys: KeysInUse::default(), held: Mutex::default() });
        client.pool.holding(FIRST_TTL).await?;
        Ok(client)
    }

    /// Returns the findings of the first connection.
    pub(crate) fn found(&self) -> &Found {
        self.pool.connector.found().expect("a client that was opened has connected")
    }

    /// Notes that a claim holds a lock.
    pub(crate) fn holds(&self, key: &Key, held: &Arc<Held>) {
        self.held.lock().insert(Arc::clone(&key.text), Arc::downgrade(held));
    }

    /// Notes that `held` holds a lock no more.
    pub(crate) fn forget(&self, key: &Key, held: &Arc<Held>) {
        let mut known = self.held.lock();
        if known.get(&key.text).is_some_and(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(held))) {
            known.remove(&key.text);
        }
    }

    /// Returns a lock that a claim of this client holds.
    pub(crate) fn held(&self, key: &str) -> Option<Arc<Held>> {
        self.held.lock().get(key).and_then(Weak::upgrade)
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
            // The server has not read the statement yet.
            backoff.sleep(self.runtime.clock()).await;
        }
    }

    /// Ends the wait of a connection. Ends the connection if that fails.
    pub(crate) async fn cancel(
        &self,
        other: &Connection,
        key: &Key,
        ttl: Duration,
        waiting: impl Future<Output = Result<(), Failure>>,
    ) {
        match self.pool.holding(ttl).await {
            Ok(connection) => connection.cancel(other, key, waiting).await,
            Err(_) => other.end(),
        }
    }

    pub(crate) fn key(&self, name: &Name) -> Key {
        let connector = &self.pool.connector;
        keys::key(&self.found().database, &connector.config.prefix, name)
    }
}
