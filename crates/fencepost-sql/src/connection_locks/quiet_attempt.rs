//! The attempts of claims that wait without a statement at the server.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::{Claim, Mode};

use crate::connection_locks::attempt::{FreshGrant, try_lock};
use crate::connection_locks::quiet::QuietWaiter;
use crate::connection_locks::{ConnectionLocks, Server};
use crate::failure::Failure;

/// How often a mark is tried: a release tests it for a moment.
const MARK_ATTEMPTS: u32 = 20;

impl<S: Server> QuietWaiter<S> {
    /// Tries if this is the first claim. Run this to its end.
    pub(super) async fn attempt(
        &mut self,
        locks: &Arc<ConnectionLocks<S>>,
        claim: &Claim,
    ) -> Result<Option<FreshGrant<S>>, Failure> {
        let first = self.all.0.lock().get(&self.name).and_then(|queue| queue.waiting.keys().next().copied());
        if first != Some(self.number) {
            return Ok(None);
        }
        self.mark(locks, claim).await?;
        let grant = try_lock(locks, claim, &self.keys).await?;
        self.is_exclusive = grant.is_some() && claim.want().mode == Mode::Exclusive;
        Ok(grant)
    }

    /// Notes at the server that this client waits, before the claim tries: each later release sends a message.
    async fn mark(&self, locks: &Arc<ConnectionLocks<S>>, claim: &Claim) -> Result<(), Failure> {
        let known = {
            let all = self.all.0.lock();
            all.get(&self.name).and_then(|queue| queue.mark.as_ref()).and_then(Weak::upgrade)
        };
        if known.is_some_and(|connection| !connection.has_ended()) {
            return Ok(());
        }
        let connection = locks.pool.holding(claim.ttl()).await?;
        let clock = self.runtime.clock();
        for _ in 0..MARK_ATTEMPTS {
            match connection.mark(&self.keys).await {
                Ok(true) => {
                    if let Some(queue) = self.all.0.lock().get_mut(&self.name) {
                        queue.mark = Some(Arc::downgrade(&connection));
                    }
                    return Ok(());
                }
                Ok(false) => clock.sleep_until(clock.now() + Duration::from_millis(1)).await,
                Err(failure) => {
                    connection.unmark(&self.keys).await;
                    return Err(failure);
                }
            }
        }
        Ok(())
    }
}
