//! The first statement of a claim, on a connection that holds for many.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Claim, Moment, Runtime, Token};

use crate::connection_locks::connection::Connection;
use crate::connection_locks::keys::{InUseBy, KeyUse};
use crate::connection_locks::{ConnectionLocks, Locked, Server, Session};
use crate::failure::Failure;

/// How long a claim that does not wait for the lock waits for the outcome of an earlier claim of its client. That one's caller may never
/// poll it.
const UNDECIDED: Duration = Duration::from_secs(1);

type Keys<S> = <<S as Server>::Session as Session>::Keys;

/// A lock that a connection was granted and that no claim holds yet. Dropping this releases it.
pub(super) struct FreshGrant<S: Server> {
    pub(super) connection: Arc<Connection<S>>,
    pub(super) token: Token,
    /// When the statement was sent from which the lease counts.
    pub(super) sent: Moment,
    pub(super) locked: Locked<Keys<S>>,
    runtime: Runtime,
    /// `None`: a claim holds the lock.
    key_use: Option<KeyUse>,
}

impl<S: Server> FreshGrant<S> {
    /// Gives the lock to a claim, which releases it.
    pub(super) fn take(mut self) -> KeyUse {
        self.key_use.take().expect("it is taken once")
    }
}

impl<S: Server> Drop for FreshGrant<S> {
    fn drop(&mut self) {
        let Some(key_use) = self.key_use.take() else { return };
        let (connection, locked) = (Arc::clone(&self.connection), self.locked.clone());
        self.runtime.spawn(async move {
            if connection.within(connection.unlock(&locked)).await.is_err() {
                connection.end();
            }
            drop(key_use);
        });
    }
}

/// Takes the lock if it is free. A connection that had ended is replaced once. `None`: another claim holds it.
///
/// Run this to its end: dropped after its first poll, it may leave a lock.
pub(super) async fn try_lock<S: Server>(
    locks: &Arc<ConnectionLocks<S>>,
    claim: &Claim,
    keys: &Keys<S>,
) -> Result<Option<FreshGrant<S>>, Failure> {
    let clock = claim.runtime.clock();
    let mut until = None;
    let mut key_use = loop {
        let in_use = match locks.keys.take(claim.want()) {
            Ok(key_use) => break key_use,
            Err(_) if claim.waits => return Ok(None),
            Err(in_use) => in_use,
        };
        // Only the server knows whether it still answers. An undecided attempt of this client is decided meanwhile, if it is polled.
        locks.reach().await?;
        // The time begins with the first reply: to connect may take longer.
        if in_use == InUseBy::Holder || clock.now() >= *until.get_or_insert_with(|| clock.now() + UNDECIDED) {
            return Ok(None);
        }
    };
    let locked = Locked { keys: keys.clone(), mode: claim.want().mode };
    let (ttl, mut first) = (claim.ttl(), true);
    loop {
        let connection = locks.connections.holding(ttl).await?;
        if connection.idle() < S::idle_for(ttl) {
            // The client may open no other connection, and the server would end this one before the lease. No renewal raises the timeout if
            // the lease is fixed.
            match connection.ping(ttl).await {
                Err(failure) if failure.closed && first => {
                    first = false;
                    continue;
                }
                raised => raised.map_err(Failure::certain)?,
            }
        }
        let sent = claim.runtime.clock().now();
        match connection.try_lock(claim, keys, key_use.reused).await {
            Ok(None) => return Ok(None),
            Ok(Some(token)) => {
                key_use.grant(Arc::clone(&connection.ended));
                let (runtime, key_use) = (locks.runtime.clone(), Some(key_use));
                return Ok(Some(FreshGrant { connection, token, sent, locked, runtime, key_use }));
            }
            Err(failure) if failure.closed && first => first = false,
            Err(failure) => {
                connection.undo(&locked, key_use.is_shared()).await;
                return Err(failure);
            }
        }
    }
}
