//! The state that the parts of one client share.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Name, Runtime};
use tokio::sync::mpsc;

use crate::claim::listed::ListedClaims;
use crate::config::Config;
use crate::conn::connect::Connector;
use crate::conn::connection::Connection;
use crate::conn::pool::Pool;
use crate::error::Failure;
use crate::inbox::{self, Inbox};
use crate::keys;

/// The lease for which the first connection is opened: core's default.
pub(crate) const FIRST_TTL: Duration = Duration::from_secs(30);

pub(crate) struct PostgresClient {
    pub(crate) pool: Pool,
    pub(crate) runtime: Runtime,
    pub(crate) prefix: String,
    pub(crate) listed: ListedClaims,
    pub(crate) inbox: Inbox,
    /// The keys that claims of this client use on connections that hold for many.
    uses: Mutex<HashMap<i64, Use>>,
}

impl PostgresClient {
    /// Connects and checks that the server accepts this client.
    pub(crate) async fn open(config: Config, runtime: Runtime) -> Result<Arc<PostgresClient>, Failure> {
        let prefix = config.prefix.clone();
        let (sender, messages) = mpsc::unbounded_channel();
        let pool = Pool::new(Connector::new(config, runtime.clone(), sender)?);
        let client = Arc::new(PostgresClient {
            pool,
            runtime: runtime.clone(),
            prefix,
            listed: ListedClaims::default(),
            inbox: Inbox::default(),
            uses: Mutex::default(),
        });
        runtime.spawn(inbox::run(Arc::downgrade(&client), messages));
        client.pool.holding(FIRST_TTL).await?;
        Ok(client)
    }

    /// Sends a statement of which only the reply matters.
    pub(crate) async fn reach(&self) -> Result<(), Failure> {
        let connection = self.pool.holding(FIRST_TTL).await?;
        connection.ping(FIRST_TTL).await
    }

    /// Returns when `waiting` stands in the queue of a lock.
    pub(crate) async fn await_queued(&self, waiting: &Connection, ttl: Duration) -> Result<(), Failure> {
        let mut pause = Duration::from_micros(100);
        loop {
            let connection = self.pool.holding(ttl).await?;
            if connection.is_queued(waiting).await? {
                return Ok(());
            }
            // Its backend has not read the statement yet.
            let clock = self.runtime.clock();
            clock.sleep_until(clock.now() + pause).await;
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    pub(crate) fn key(&self, name: &Name) -> i64 {
        keys::key(&self.prefix, name)
    }

    /// Lets a claim use the key on a connection that holds for many claims: the server would give that connection a lock a second
    /// time. `None`: another claim uses the key, and not both are shared.
    pub(crate) fn use_key(self: &Arc<Self>, key: i64, shared: bool) -> Option<KeyUse> {
        let mut uses = self.uses.lock();
        let again = match uses.entry(key) {
            Entry::Vacant(free) => {
                free.insert(if shared { Use::Shared(1) } else { Use::Exclusive });
                false
            }
            Entry::Occupied(mut used) => match used.get_mut() {
                Use::Shared(count) if shared => {
                    *count += 1;
                    true
                }
                Use::Shared(_) | Use::Exclusive => return None,
            },
        };
        Some(KeyUse { client: Arc::clone(self), key, again })
    }
}

/// How claims use a key on a connection that holds for many.
enum Use {
    Exclusive,
    Shared(usize),
}

/// One claim that uses a key, until this is dropped.
pub(crate) struct KeyUse {
    client: Arc<PostgresClient>,
    key: i64,
    /// Another claim used it already.
    pub(crate) again: bool,
}

impl Drop for KeyUse {
    fn drop(&mut self) {
        let mut uses = self.client.uses.lock();
        match uses.get_mut(&self.key) {
            Some(Use::Shared(count)) if *count > 1 => *count -= 1,
            _ => drop(uses.remove(&self.key)),
        }
    }
}
