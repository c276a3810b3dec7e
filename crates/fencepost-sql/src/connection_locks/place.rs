//! Implements core's [`Place`]: what is asked of the server for one claim.

use std::sync::Arc;
use std::task::{Context, Poll};

use fencepost_core::sync::Mutex;
use fencepost_core::{Attempt, Claim, Error, Finish, Found, Leave, Left, Place, Removed, Request, Result};

use crate::connection_locks::attempt::{FreshGrant, try_lock};
use crate::connection_locks::held::{Held, Why};
use crate::connection_locks::renewal::ConnectionRenewal;
use crate::connection_locks::wait::{self, Grant, Wait};
use crate::connection_locks::{ConnectionLocks, Locked, Server, Session};
use crate::failure::Failure;

pub(super) struct LockPlace<S: Server>(Arc<LockClaim<S>>);

/// What the requests of a claim share.
struct LockClaim<S: Server> {
    locks: Arc<ConnectionLocks<S>>,
    claim: Arc<Claim>,
    keys: <S::Session as Session>::Keys,
    phase: Mutex<Phase<S>>,
}

enum Phase<S: Server> {
    /// Nothing of the claim is at the server.
    Away,
    Waiting(Arc<Wait<S>>),
    Holding(Arc<Held<S>>),
    /// Its grant was taken back.
    Gone,
}

impl<S: Server> Clone for Phase<S> {
    fn clone(&self) -> Phase<S> {
        match self {
            Phase::Away => Phase::Away,
            Phase::Waiting(wait) => Phase::Waiting(Arc::clone(wait)),
            Phase::Holding(held) => Phase::Holding(Arc::clone(held)),
            Phase::Gone => Phase::Gone,
        }
    }
}

impl<S: Server> LockPlace<S> {
    pub(super) fn new(locks: &Arc<ConnectionLocks<S>>, claim: Arc<Claim>) -> LockPlace<S> {
        let keys = locks.server.keys(claim.want());
        LockPlace(Arc::new(LockClaim {
            locks: Arc::clone(locks),
            claim,
            keys,
            phase: Mutex::new(Phase::Away),
        }))
    }

    /// Makes the place of a detached lease, which is never there: a grant ends with its connection.
    pub(super) fn gone(locks: &Arc<ConnectionLocks<S>>, claim: Arc<Claim>) -> LockPlace<S> {
        let place = LockPlace::new(locks, claim);
        place.0.set(Phase::Gone);
        place
    }
}

impl<S: Server> LockClaim<S> {
    fn phase(&self) -> Phase<S> {
        self.phase.lock().clone()
    }

    fn set(&self, phase: Phase<S>) {
        let before = std::mem::replace(&mut *self.phase.lock(), phase);
        // A wait that ends frees its connection.
        drop(before);
    }

    /// Takes the lock if it is free. A grant that arrives after this was dropped, or too late, is released.
    async fn take_free(&self) -> Result<Option<FreshGrant<S>>, Failure> {
        let (locks, claim, keys) = (Arc::clone(&self.locks), Arc::clone(&self.claim), self.keys.clone());
        let runtime = self.locks.runtime.clone();
        let clock = runtime.clock().clone();
        let attempt = Finish::new(runtime, async move { try_lock(&locks, &claim, &keys).await });
        let outcome = clock.within(self.locks.connections.time_limit(), attempt).await;
        outcome.unwrap_or_else(|| Err(self.locks.connections.timeout()))
    }

    async fn ask(self: Arc<Self>) -> Result<Attempt> {
        self.enter().await.map_err(|error| error.on(S::ENGINE))
    }

    async fn enter(self: &Arc<Self>) -> Result<Attempt> {
        if let Phase::Away = self.phase() {
            if !self.claim.waits || !self.locks.turns.is_taken(&self.claim.want().name) {
                if let Some(grant) = self.take_free().await? {
                    self.hold_fresh(grant);
                    return self.answer().await;
                }
                if !self.claim.waits || self.claim.is_leaving() {
                    return Ok(Attempt::Blocked { next_attempt: None });
                }
            }
            self.locks.listed.note(&self.claim, None);
            self.set(Phase::Waiting(Arc::new(wait::start(&self.locks, &self.claim, &self.keys))));
        }
        if let Phase::Waiting(wait) = self.phase() {
            wait.queued(&self.claim).await;
            match wait.take() {
                None => return Ok(Attempt::Blocked { next_attempt: None }),
                Some(Err(failure)) => {
                    self.set(Phase::Away);
                    return Err(failure.into());
                }
                Some(Ok(Grant::Fresh(grant))) => self.hold_fresh(grant),
                Some(Ok(Grant::TakenBack)) => self.set(Phase::Gone),
                Some(Ok(Grant::Waited { alone, token, sent })) => {
                    let connection = Arc::clone(alone.connection());
                    let (keys, mode) = (self.keys.clone(), self.claim.want().mode);
                    let locked = Locked { keys, mode };
                    connection.hold(&self.claim, sent);
                    let why = Why::Waited(alone);
                    self.hold(Held::new(&self.locks, &self.claim, connection, token, locked, why));
                }
            }
        }
        self.answer().await
    }

    fn hold(&self, held: Arc<Held<S>>) {
        self.locks.listed.note(&self.claim, Some(&held));
        S::granted(&self.locks, &self.claim, &self.keys);
        self.set(Phase::Holding(held));
    }

    /// Holds the lock that a connection for many was granted.
    fn hold_fresh(&self, grant: FreshGrant<S>) {
        let (connection, token, locked) = (Arc::clone(&grant.connection), grant.token, grant.locked.clone());
        connection.hold(&self.claim, grant.sent);
        let why = Why::Free(grant.take());
        self.hold(Held::new(&self.locks, &self.claim, connection, token, locked, why));
    }

    /// Answers for a claim that was granted. A grant that is not valid any more is released.
    async fn answer(&self) -> Result<Attempt> {
        let Phase::Holding(held) = self.phase() else { return Ok(Attempt::Gone) };
        if self.claim.is_valid() && !held.connection.has_ended() {
            return Ok(Attempt::Granted(held.token));
        }
        held.unlock().await.map_err(|failure| Error::from(failure).unknown())?;
        self.set(Phase::Gone);
        Ok(Attempt::Gone)
    }
}

impl<S: Server> Place for LockPlace<S> {
    fn ask(&mut self) -> Request<'_, Attempt> {
        match self.0.phase() {
            Phase::Gone => Request::ready(Ok(Attempt::Gone)),
            // Its effect must be known before the claim leaves.
            Phase::Away | Phase::Waiting(_) | Phase::Holding(_) => Request::kept(Arc::clone(&self.0).ask()),
        }
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.0.phase() {
            Phase::Waiting(wait) => wait.poll(cx),
            Phase::Away | Phase::Holding(_) | Phase::Gone => Poll::Pending,
        }
    }

    fn leave(&mut self, _: Leave, _may_have_left: bool) -> Request<'_, Left> {
        let LockClaim { locks, claim, .. } = &*self.0;
        match self.0.phase() {
            Phase::Away | Phase::Gone => Request::ready(Ok(Found::Missing.into())),
            Phase::Waiting(_) => {
                self.0.set(Phase::Gone); // cancels
                locks.listed.remove(claim.id);
                Request::ready(Ok(Removed::Withdrawn.into()))
            }
            // The statement is sent once, whoever waits for its reply.
            Phase::Holding(held) => Request::drops(async move {
                let released = held.unlock().await.map_err(|failure| failure.on(S::ENGINE))?;
                locks.listed.remove(claim.id);
                let found = if released { Found::There } else { Found::Missing };
                Ok(Left { held: Some(true), ..found.into() })
            }),
        }
    }

    fn session(&self, _holds: bool) -> Option<Arc<dyn fencepost_core::Session>> {
        let Phase::Holding(held) = self.0.phase() else { return None };
        let (locks, connection) = (Arc::clone(&self.0.locks), Arc::clone(&held.connection));
        Some(Arc::new(ConnectionRenewal { locks, connection }))
    }

    fn abandon(&mut self, _asking: bool) {
        // A lock of the connection would stay as long as other claims keep the connection alive.
        if let Phase::Holding(held) = self.0.phase() {
            held.connection.end();
            // A release that is under way belongs to its lock, and nobody else polls it any more.
            held.release_lost();
        }
    }
}

impl<S: Server> Drop for LockPlace<S> {
    fn drop(&mut self) {
        self.0.locks.listed.remove(self.0.claim.id);
        self.0.set(Phase::Gone);
    }
}
