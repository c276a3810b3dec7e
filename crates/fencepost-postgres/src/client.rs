//! The state that the parts of one client share.

use std::collections::HashMap;
use std::sync::Arc;

use fencepost_core::sync::Mutex;
use fencepost_core::{Name, Runtime};

use crate::config::Config;
use crate::conn::connect::Connector;
use crate::conn::pool::Pool;
use crate::error::Failure;
use crate::keys;

/// The lease for which the first connection is opened: core's default.
const FIRST_TTL: std::time::Duration = std::time::Duration::from_secs(30);

pub(crate) struct PostgresClient {
    pub(crate) pool: Pool,
    pub(crate) runtime: Runtime,
    prefix: String,
    /// How many claims of this client hold a key shared on a connection that holds for many.
    shared: Mutex<HashMap<i64, usize>>,
}

impl PostgresClient {
    /// Connects and checks that the server accepts this client.
    pub(crate) async fn open(config: Config, runtime: Runtime) -> Result<Arc<PostgresClient>, Failure> {
        let prefix = config.prefix.clone();
        let pool = Pool::new(Connector::new(config, runtime.clone())?);
        let client = Arc::new(PostgresClient { pool, runtime, prefix, shared: Mutex::default() });
        client.pool.holding(FIRST_TTL).await?;
        Ok(client)
    }

    /// Sends a statement of which only the reply matters.
    pub(crate) async fn reach(&self) -> Result<(), Failure> {
        let connection = self.pool.holding(FIRST_TTL).await?;
        connection.ping(FIRST_TTL).await
    }

    pub(crate) fn key(&self, name: &Name) -> i64 {
        keys::key(&self.prefix, name)
    }

    /// Returns whether a claim of this client holds the key shared.
    pub(crate) fn is_shared(&self, key: i64) -> bool {
        self.shared.lock().contains_key(&key)
    }

    /// Counts a shared holder of a key. The count ends when the value is dropped.
    pub(crate) fn count_shared(self: &Arc<Self>, key: i64) -> SharedHolder {
        *self.shared.lock().entry(key).or_default() += 1;
        SharedHolder { client: Arc::clone(self), key }
    }
}

/// One claim that holds a key shared.
pub(crate) struct SharedHolder {
    client: Arc<PostgresClient>,
    key: i64,
}

impl Drop for SharedHolder {
    fn drop(&mut self) {
        let mut shared = self.client.shared.lock();
        if let Some(count) = shared.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                shared.remove(&self.key);
            }
        }
    }
}
