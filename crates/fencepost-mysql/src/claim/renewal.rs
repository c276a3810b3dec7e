//! Renews the claims that a connection holds, and reads the marks of evictions in the same round.

use std::sync::Arc;

use fencepost_core::{Claim, Reply, Result, Session, Validity};

use crate::client::MysqlClient;
use crate::conn::connection::Connection;
use crate::error::Failure;

/// Selects the locks of this session that operators have evicted.
const EVICTED: &str = "SELECT lock_name, token, why FROM fencepost_token WHERE evicted = CONNECTION_ID()";

/// The claims that a connection holds.
pub(crate) struct MysqlSession {
    pub(crate) client: Arc<MysqlClient>,
    pub(crate) connection: Arc<Connection>,
}

impl MysqlSession {
    async fn renew(&self, due: &[Arc<Claim>]) -> Result<(), Failure> {
        let connection = &self.connection;
        // Read before the statement is sent: the user may change a length meanwhile.
        let sent = self.client.runtime.clock().now();
        let ttls: Vec<_> = due.iter().map(|claim| claim.ttl()).collect();
        connection.ping(ttls.iter().copied().max().unwrap_or_default()).await?;
        connection.confirm(due, &ttls, sent);
        if self.client.found().no_tokens.is_none() {
            let evicted = connection.query(EVICTED).await.unwrap_or_else(|failure| {
                // The claims are confirmed all the same.
                tracing::warn!(?failure, "evictions cannot be read");
                Vec::new()
            });
            for mut row in evicted {
                let (key, token) = (row.take::<String, _>(0), row.take::<u64, _>(1));
                let why = row.take_opt::<Vec<u8>, _>(2).and_then(|why| why.ok()).unwrap_or_default();
                let (Some(key), Some(token)) = (key, token) else { continue };
                if let Some(held) = self.client.held(&key).filter(|held| held.token.get() == token) {
                    held.evict(&String::from_utf8_lossy(&why));
                }
            }
        }
        Ok(())
    }
}

impl Session for MysqlSession {
    fn id(&self) -> u64 {
        self.connection.id()
    }

    fn validity(&self) -> &Arc<Validity> {
        self.connection.forever()
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        Reply::coming(async move { Ok(MysqlSession::renew(self, due).await?) })
    }
}
