//! The session of core: a connection keeps the claims alive that it holds.

use std::sync::Arc;

use fencepost_core::{Claim, Reply, Result};

use crate::connection_locks::connection::Connection;
use crate::connection_locks::{ConnectionLocks, Server};
use crate::failure::named;

/// Renews the claims that a connection holds.
pub(super) struct ConnectionRenewal<S: Server> {
    pub(super) locks: Arc<ConnectionLocks<S>>,
    pub(super) connection: Arc<Connection<S>>,
}

impl<S: Server> fencepost_core::Session for ConnectionRenewal<S> {
    fn id(&self) -> u64 {
        self.connection.id
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        named(S::ENGINE, async move {
            let connection = &self.connection;
            // Read before the statement is sent: the user may change a length meanwhile.
            let sent = connection.now();
            let ttls: Vec<_> = due.iter().map(|claim| claim.ttl()).collect();
            let longest = ttls.iter().copied().max().unwrap_or_default();
            connection.ping(longest).await?;
            for (claim, ttl) in due.iter().zip(ttls) {
                if connection.holds(claim) {
                    claim.confirm(sent, ttl);
                }
            }
            Ok(self.locks.look_after(connection).await?)
        })
    }
}
