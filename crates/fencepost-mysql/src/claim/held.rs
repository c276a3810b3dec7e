//! A lock that a connection holds for a claim.

use std::sync::{Arc, OnceLock, Weak};

use fencepost_core::sync::Mutex;
use fencepost_core::{Claim, Loss, Token, margin};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};

use crate::conn::connection::Connection;
use crate::conn::pool::Exclusive;
use crate::error::Failure;
use crate::keys::{Key, KeyUse};

/// A lock that a connection holds for a claim.
pub(crate) struct Held {
    pub(crate) connection: Arc<Connection>,
    pub(crate) token: Token,
    claim: Arc<Claim>,
    key: Key,
    /// The claim waited for the lock, and the connection is its alone.
    exclusive: Mutex<Option<Exclusive>>,
    key_use: Mutex<Option<KeyUse>>,
    unlocking: OnceLock<Unlocking>,
}

type Unlocking = Shared<BoxFuture<'static, Result<bool, Failure>>>;

impl Held {
    pub(crate) fn new(
        connection: Arc<Connection>,
        claim: &Arc<Claim>,
        token: Token,
        key: Key,
        exclusive: Option<Exclusive>,
        key_use: Option<KeyUse>,
    ) -> Arc<Held> {
        let held = Arc::new(Held {
            connection,
            token,
            claim: Arc::clone(claim),
            key,
            exclusive: Mutex::new(exclusive),
            key_use: Mutex::new(key_use),
            unlocking: OnceLock::new(),
        });
        if !claim.renewed {
            claim.runtime.spawn(release_at_end(Arc::clone(claim), Arc::downgrade(&held)));
        }
        held
    }

    /// Ends the grant. Its lock is released when the holder releases it, or when its lease is over.
    pub(crate) fn evict(self: &Arc<Held>, why: &str) {
        let clock = self.claim.runtime.clone();
        let until = clock.clock().now() + self.claim.ttl();
        self.claim.validity.end_with(Loss::Evicted, why.to_owned());
        let held = Arc::downgrade(self);
        self.claim.runtime.spawn(async move {
            clock.clock().sleep_until(until).await;
            if let Some(held) = held.upgrade()
                && held.unlock().await.is_err()
            {
                held.connection.end();
            }
        });
    }

    /// Ends the grant and releases its lock at once.
    pub(crate) async fn evict_now(self: &Arc<Held>, why: &str) -> Result<bool, Failure> {
        self.claim.validity.end_with(Loss::Evicted, why.to_owned());
        self.unlock().await
    }

    /// Releases the lock, once for all callers. Returns whether the connection held it; `false` also if the connection has ended.
    ///
    /// The first poll sends. Dropped later, it takes effect. A statement is never repeated: a later claim may hold the key on the same connection.
    pub(crate) async fn unlock(self: &Arc<Held>) -> Result<bool, Failure> {
        let unlocking = self.unlocking.get_or_init(|| {
            let held = Arc::clone(self);
            held.connection.forget(&held.claim);
            let work = async move {
                let released = match held.connection.unlock(&held.key).await {
                    Err(failure) if failure.is_closed() => Ok(false),
                    other => other,
                };
                held.key_use.lock().take();
                if let Some(mut exclusive) = held.exclusive.lock().take()
                    && released.is_ok()
                {
                    exclusive.set_clean();
                }
                released
            };
            work.boxed().shared()
        });
        self.connection.within(unlocking.clone()).await
    }
}

/// Releases a lock whose lease is not renewed when it ends: the connection stays open for others.
async fn release_at_end(claim: Arc<Claim>, held: Weak<Held>) {
    let clock = claim.runtime.clock();
    loop {
        // A part of the lease is kept as a margin for the holder. Another claim may hold the lock only after the whole.
        let until = claim.validity.until() + margin(claim.ttl());
        if until <= clock.now() {
            break;
        }
        clock.sleep_until(until).await;
        if clock.is_stopped() {
            return;
        }
    }
    if let Some(held) = held.upgrade()
        && held.unlock().await.is_err()
    {
        held.connection.end();
    }
}
