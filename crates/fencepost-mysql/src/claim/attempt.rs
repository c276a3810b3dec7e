//! The first statement of a claim, on a connection that holds for many.

use std::sync::Arc;

use fencepost_core::{Claim, ClaimRecord, Moment, Runtime, Token};

use crate::client::MysqlClient;
use crate::conn::connection::Connection;
use crate::error::Failure;
use crate::keys::{Key, KeyUse};

/// A lock that a connection was granted and that no claim holds yet. Dropping this releases it.
pub(crate) struct FreshGrant {
    pub(crate) connection: Arc<Connection>,
    pub(crate) token: Token,
    /// When the statement was sent from which the lease counts.
    pub(crate) sent: Moment,
    key: Key,
    runtime: Runtime,
    /// `None`: a claim holds the lock.
    key_use: Option<KeyUse>,
}

impl FreshGrant {
    /// Gives the lock to a claim, which releases it.
    pub(crate) fn take(mut self) -> KeyUse {
        self.key_use.take().expect("it is taken once")
    }
}

impl Drop for FreshGrant {
    fn drop(&mut self) {
        let Some(key_use) = self.key_use.take() else { return };
        let (connection, key) = (Arc::clone(&self.connection), self.key.clone());
        self.runtime.spawn(async move {
            if connection.within(connection.unlock(&key)).await.is_err() {
                connection.end();
            }
            drop(key_use);
        });
    }
}

/// Takes the lock if it is free. A connection that had ended is replaced once. `None`: another claim holds it.
///
/// Run this to its end: dropped after its first poll, it may leave a lock.
pub(crate) async fn try_lock(
    client: &Arc<MysqlClient>,
    claim: &Claim,
    key: &Key,
) -> Result<Option<FreshGrant>, Failure> {
    let key_use = loop {
        if let Some(key_use) = client.keys.take(key) {
            break key_use;
        }
        if claim.join {
            return Ok(None);
        }
        let held = client.held(&key.text).is_some();
        // Only the server knows whether it still answers.
        client.reach().await?;
        if held {
            return Ok(None);
        }
        // Another claim of this client asks for the lock or gives it back: its outcome decides.
    };
    let holder = holder(claim);
    let mut first = true;
    loop {
        let connection = client.pool.holding(claim.ttl()).await?;
        let sent = claim.runtime.clock().now();
        match connection.try_lock(key, &holder).await {
            Ok(None) => return Ok(None),
            Ok(Some(token)) => {
                let (runtime, key_use) = (claim.runtime.clone(), Some(key_use));
                return Ok(Some(FreshGrant { connection, token, sent, key: key.clone(), runtime, key_use }));
            }
            Err(failure) if failure.is_closed() && first => first = false,
            Err(failure) => {
                connection.undo(key).await;
                return Err(failure);
            }
        }
    }
}

/// Describes the holder, without the claim's id, which is a secret.
pub(crate) fn holder(claim: &Claim) -> Vec<u8> {
    ClaimRecord { id: None, ..ClaimRecord::of(claim) }.to_bytes()
}
