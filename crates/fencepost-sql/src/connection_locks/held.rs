//! A lock that a connection holds for a claim.

use std::sync::{Arc, OnceLock, Weak};

use fencepost_core::sync::Mutex;
use fencepost_core::{Claim, Loss, Moment, State, Token, margin};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};

use crate::connection_locks::connection::Connection;
use crate::connection_locks::connections::Alone;
use crate::connection_locks::keys::KeyUse;
use crate::connection_locks::{ConnectionLocks, Locked, Server, Session};
use crate::failure::Failure;

/// A lock that a connection holds for a claim.
pub struct Held<S: Server> {
    pub(super) connection: Arc<Connection<S>>,
    /// Its token.
    pub token: Token,
    pub(super) claim: Arc<Claim>,
    /// The keys and the mode that are locked.
    pub locked: Locked<<S::Session as Session>::Keys>,
    why: Mutex<Option<Why<S>>>,
    unlocking: OnceLock<Unlocking>,
}

/// Why the claim may use the connection.
pub(super) enum Why<S: Server> {
    /// It waited for the lock, and the connection is its alone.
    Waited(Alone<S>),
    /// It uses the name until this is dropped, alone or with other claims that are shared.
    Free(KeyUse),
}

type Unlocking = Shared<BoxFuture<'static, Result<bool, Failure>>>;

impl<S: Server> Held<S> {
    pub(super) fn new(
        locks: &Arc<ConnectionLocks<S>>,
        claim: &Arc<Claim>,
        connection: Arc<Connection<S>>,
        token: Token,
        locked: Locked<<S::Session as Session>::Keys>,
        why: Why<S>,
    ) -> Arc<Held<S>> {
        let held = Arc::new(Held {
            connection,
            token,
            claim: Arc::clone(claim),
            locked,
            why: Mutex::new(Some(why)),
            unlocking: OnceLock::new(),
        });
        if !claim.renewed {
            let (locks, held) = (Arc::downgrade(locks), Arc::downgrade(&held));
            claim.runtime.spawn(keep_fixed(locks, Arc::clone(claim), held));
        }
        held
    }

    /// Ends the grant. Its lock is released when the holder releases it, or when its lease has expired. That is once the longest lease has
    /// expired that was confirmed, because the holder may count on it.
    pub fn evict(self: &Arc<Held<S>>, why: &str) {
        let (runtime, validity) = (self.claim.runtime.clone(), &self.claim.validity);
        if self.is_being_evicted() {
            // A validity that has ended does not tell any more how long the lease is.
            return;
        }
        let ttl = self.claim.ttl();
        let until = (runtime.clock().now() + ttl).max(validity.until() + margin(ttl));
        validity.end_with(Loss::Evicted, why.to_owned());
        let held = Arc::downgrade(self);
        self.claim.runtime.spawn(async move {
            runtime.clock().sleep_until(until).await;
            release(&held).await;
        });
    }

    /// Returns whether an eviction releases the lock later.
    fn is_being_evicted(&self) -> bool {
        self.claim.validity.ended() == Some(Loss::Evicted) && self.unlocking.get().is_none()
    }

    /// Ends the grant and releases its lock at once.
    ///
    /// # Errors
    /// Those of the statement.
    ///
    /// # Cancel safety
    /// May be dropped after its first poll; the lock is released.
    pub async fn evict_now(self: &Arc<Held<S>>, why: &str) -> Result<bool, Failure> {
        self.claim.validity.end_with(Loss::Evicted, why.to_owned());
        self.unlock().await
    }

    /// Returns whether the server has freed the lock.
    pub(super) fn is_free(&self) -> bool {
        let released = || self.unlocking.get().is_some_and(|unlocking| unlocking.peek().is_some());
        self.connection.has_ended() || released()
    }

    /// Returns whether its holder is lost because its lease was not renewed in time.
    pub(super) fn is_expired(&self) -> bool {
        self.claim.renewed && self.claim.validity.state(self.connection.now()) == State::Lost(Loss::Expired)
    }

    /// Releases the lock in the background when the margin of its lease has passed, which the work under a lost lock has to stop.
    pub(super) fn release_expired(self: &Arc<Held<S>>) {
        let (held, clock) = (Arc::downgrade(self), self.claim.runtime.clock().clone());
        let until = clock.now() + margin(self.claim.ttl());
        self.claim.runtime.spawn(async move {
            clock.sleep_until(until).await;
            release(&held).await;
        });
    }

    /// Releases the lock in the background.
    pub(super) fn release_lost(self: &Arc<Held<S>>) {
        let held = Arc::downgrade(self);
        self.claim.runtime.spawn(async move { release(&held).await });
    }

    /// Returns whether another claim has the name, too. If none has, none will until this lock is released.
    fn is_name_shared(&self) -> bool {
        match &mut *self.why.lock() {
            Some(Why::Free(key_use)) => key_use.is_shared(),
            Some(Why::Waited(_)) | None => false,
        }
    }

    /// Releases the lock, once for all callers. Returns whether the connection held it; `false` also if the connection has ended.
    ///
    /// The first poll sends. Dropped later, it takes effect. A statement that was interrupted is sent once more, unless another claim shares the
    /// name: that one may hold by the same connection, and a second release would take its lock.
    pub(super) async fn unlock(self: &Arc<Held<S>>) -> Result<bool, Failure> {
        let unlocking = self.unlocking.get_or_init(|| {
            let held = Arc::clone(self);
            held.connection.forget(&held.claim);
            let work = async move {
                let mut released = held.connection.unlock(&held.locked).await;
                if released.as_ref().is_err_and(|failure| failure.interrupted) && !held.is_name_shared() {
                    // An administrator has cancelled a statement, or an interruption was meant for an earlier one. It is not known which of the
                    // two has released the lock.
                    released = held.connection.unlock(&held.locked).await.map(|_| true);
                }
                if released.as_ref().is_err_and(|failure| failure.closed) {
                    released = Ok(false);
                }
                let mut why = held.why.lock().take();
                match &mut why {
                    Some(Why::Waited(alone)) => alone.set_clean(released.is_ok()),
                    // The session may still hold the lock, and would grant it to another claim of this client, too.
                    Some(Why::Free(_)) if released.is_err() => *held.why.lock() = why.take(),
                    _ => {}
                }
                drop(why);
                released
            };
            work.boxed().shared()
        });
        self.connection.within(unlocking.clone()).await
    }
}

/// Releases a lock whose holder is gone. Ends its connection if that fails.
async fn release<S: Server>(held: &Weak<Held<S>>) {
    if let Some(held) = held.upgrade()
        && held.unlock().await.is_err()
    {
        held.connection.end();
    }
}

/// Pings the server for a lease that is not renewed, after each third of it, so that its holder learns what a renewal learns: a MySQL server
/// that was demoted ends no connection, and tells it in its answer. Releases the lock when the lease ends, because the connection stays open
/// for others.
async fn keep_fixed<S: Server>(locks: Weak<ConnectionLocks<S>>, claim: Arc<Claim>, held: Weak<Held<S>>) {
    let (clock, mut until) = (claim.runtime.clock(), Moment::ZERO);
    loop {
        // A part of the lease is kept as a margin for the holder. Another claim may hold the lock only after the whole, also if the holder is
        // lost before.
        until = until.max(claim.validity.until() + margin(claim.ttl()));
        let now = clock.now();
        if until <= now {
            break;
        }
        let Some(connection) = held.upgrade().map(|held| Arc::clone(&held.connection)) else { return };
        match connection.next_look(&claim) {
            // If it fails often enough the connection ends.
            Some(next) if next <= now => {
                let _ = clock.within(until, ping_for_holder(&locks, &connection)).await;
            }
            next => {
                drop(connection);
                clock.sleep_until(next.unwrap_or(until).min(until)).await;
            }
        }
        if clock.is_stopped() {
            return;
        }
    }
    // An eviction may know of an extension that this task has not seen.
    if !held.upgrade().is_some_and(|held| held.is_being_evicted()) {
        release(&held).await;
    }
}

/// Pings for a holder whose lease is not renewed, and learns what a renewal learns.
async fn ping_for_holder<S: Server>(
    locks: &Weak<ConnectionLocks<S>>,
    connection: &Connection<S>,
) -> Result<(), Failure> {
    connection.note_look();
    connection.ping(connection.idle()).await?;
    match locks.upgrade() {
        Some(locks) => locks.look_after(connection).await,
        None => Ok(()),
    }
}
