//! The session of core: a connection keeps the claims alive that it holds.

use std::sync::Arc;

use fencepost_core::{Claim, Reply, Result, Session, Validity};

use crate::conn::connection::Connection;

/// Renews the claims that a connection holds.
pub(crate) struct PostgresSession(pub(crate) Arc<Connection>);

impl Session for PostgresSession {
    fn id(&self) -> u64 {
        self.0.id
    }

    fn validity(&self) -> &Arc<Validity> {
        // Each claim has its own validity, because their lengths differ.
        &self.0.forever
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        Reply::coming(async move {
            let connection = &self.0;
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
            Ok(())
        })
    }
}
