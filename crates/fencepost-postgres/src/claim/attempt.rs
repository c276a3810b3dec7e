//! The first statement of a claim, on a connection that holds for many.

use std::sync::Arc;

use fencepost_core::{Claim, Error, Mode, Moment, Token};

use crate::client::PostgresClient;
use crate::conn::connection::Connection;
use crate::error::{ENGINE, Failure};
use crate::keys::{KeyUse, Lock, Locked, MAX_PERMITS, Taken};

/// A lock that a connection was granted and that no claim holds yet. Dropping this releases it.
pub(crate) struct FreshGrant {
    pub(crate) connection: Arc<Connection>,
    pub(crate) token: Token,
    /// When the statement was sent from which the lease counts.
    pub(crate) sent: Moment,
    pub(crate) locked: Locked,
    client: Arc<PostgresClient>,
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
        let (connection, locked) = (Arc::clone(&self.connection), self.locked.clone());
        let client = Arc::clone(&self.client);
        self.client.runtime.spawn(async move {
            if connection.within(connection.unlock(&locked)).await.is_err() {
                connection.end();
            }
            drop(key_use);
            client.quiet.wake(locked.lock.keys.name);
        });
    }
}

/// Refuses more permits than a name can have.
pub(crate) fn check(mode: Mode) -> Result<(), Error> {
    match mode {
        Mode::Permits { of, .. } if of > MAX_PERMITS => {
            let message = format!(
                "a semaphore of advisory locks has at most {MAX_PERMITS} permits; ask for fewer, or use another engine"
            );
            Err(Error::invalid(message).on(ENGINE))
        }
        _ => Ok(()),
    }
}

/// Takes the lock if it is free. A connection that had ended is replaced once. `None`: another claim holds it.
///
/// Run this to its end: dropped after its first poll, it may leave a lock.
pub(crate) async fn try_lock(
    client: &Arc<PostgresClient>,
    claim: &Claim,
    lock: Lock,
) -> Result<Option<FreshGrant>, Failure> {
    let mut key_use = loop {
        let taken = client.keys.take(lock);
        if let Taken::Free(key_use) = taken {
            break key_use;
        }
        if claim.join {
            return Ok(None);
        }
        // Only the server knows whether it still answers. An undecided attempt of this client is decided meanwhile.
        client.reach().await?;
        if let Taken::Held = taken {
            return Ok(None);
        }
    };
    let _turn = key_use.turn().await;
    let free = key_use.free_permits();
    let mut first = true;
    loop {
        let connection = client.pool.holding(claim.ttl()).await?;
        let sent = claim.runtime.clock().now();
        let tried = match lock.mode {
            Mode::Permits { n, .. } => connection.try_permits(lock.keys, &free, n).await,
            Mode::Exclusive | Mode::Shared => {
                let token = connection.try_lock(lock, key_use.again).await;
                token.map(|token| token.map(|token| (token, Vec::new())))
            }
        };
        match tried {
            Ok(None) => return Ok(None),
            Ok(Some((token, permits))) => {
                key_use.grant(&permits);
                let (locked, client) = (Locked { lock, permits }, Arc::clone(client));
                return Ok(Some(FreshGrant {
                    connection,
                    token,
                    sent,
                    locked,
                    client,
                    key_use: Some(key_use),
                }));
            }
            Err(failure) if failure.is_closed() && first => first = false,
            Err(failure) => {
                connection.undo(&Locked { lock, permits: free }, key_use.again).await;
                return Err(failure);
            }
        }
    }
}
