//! Implements core's [`Entry`]: one claim at the server.

use std::sync::Arc;
use std::task::{Context, Poll};

use fencepost_core::{Attempt, Claim, Entry, Error, ErrorKind, Mode, Removed, Renewal, Reply, Result, State};
use futures_util::future::BoxFuture;

use crate::connection_locks::attempt::{FreshGrant, try_lock};
use crate::connection_locks::held::{Held, Why};
use crate::connection_locks::renewal::ConnectionRenewal;
use crate::connection_locks::wait::{Grant, Wait};
use crate::connection_locks::{ConnectionLocks, Locked, Server, Session};
use crate::driver::on_own_thread;
use crate::failure::{Failure, named};

pub(super) struct LockEntry<S: Server> {
    locks: Arc<ConnectionLocks<S>>,
    claim: Arc<Claim>,
    keys: <S::Session as Session>::Keys,
    phase: Phase<S>,
    /// A statement that was sent and has no reply yet. It outlives the future of an attempt, because its effect must be known before
    /// the claim is withdrawn.
    trying: Option<Trying<S>>,
    removed: Option<Removed>,
    /// The first request to withdraw was made: while the claim was valid, or not.
    was_valid: Option<bool>,
}

type Trying<S> = BoxFuture<'static, Result<Option<FreshGrant<S>>, Failure>>;

enum Phase<S: Server> {
    New,
    Waiting(Wait<S>),
    Holding(Arc<Held<S>>),
    Gone,
}

impl<S: Server> LockEntry<S> {
    pub(super) fn new(locks: &Arc<ConnectionLocks<S>>, claim: Arc<Claim>) -> LockEntry<S> {
        LockEntry {
            keys: locks.server.keys(claim.want()),
            locks: Arc::clone(locks),
            claim,
            phase: Phase::New,
            trying: None,
            removed: None,
            was_valid: None,
        }
    }

    /// Sends the first statement, or waits for the reply of the one that was sent.
    async fn tried(&mut self) -> Result<Option<FreshGrant<S>>, Failure> {
        let trying = self.trying.get_or_insert_with(|| -> Trying<S> {
            let (locks, claim, keys) = (Arc::clone(&self.locks), Arc::clone(&self.claim), self.keys.clone());
            let (runtime, mode) = (self.locks.runtime.clone(), claim.want().mode);
            let attempt = async move { try_lock(&locks, &claim, &keys).await };
            match mode {
                // Attempts for permits of a name wait for each other.
                Mode::Permits { .. } => Box::pin(async move { on_own_thread(&runtime, attempt).await }),
                Mode::Exclusive | Mode::Shared => Box::pin(attempt),
            }
        });
        let connection_limit = self.locks.pool.time_limit();
        let outcome = self.claim.runtime.clock().within(connection_limit, trying).await;
        let Some(outcome) = outcome else { return Err(self.locks.pool.timeout()) };
        self.trying = None;
        outcome
    }

    async fn enter(&mut self) -> Result<Attempt> {
        if matches!(self.phase, Phase::New) {
            self.locks.server.check(self.claim.want())?;
            // A try that was sent may have been granted, so its reply counts.
            let behind_others = self.claim.waits && self.locks.turns.is_taken(&self.claim.want().name);
            if self.trying.is_some() || !behind_others {
                if let Some(grant) = self.tried().await? {
                    self.hold(grant);
                    return self.answer().await;
                }
                if !self.claim.waits {
                    return Ok(Attempt::Blocked { again: None });
                }
            }
            self.locks.listed.note(&self.claim, None);
            self.phase = Phase::Waiting(Wait::start(&self.locks, &self.claim, &self.keys));
        }
        if let Phase::Waiting(wait) = &self.phase {
            wait.queued().await;
            match wait.take() {
                None => return Ok(Attempt::Blocked { again: None }),
                Some(Err(failure)) => {
                    self.phase = Phase::New;
                    return Err(failure.into());
                }
                Some(Ok(Grant::Fresh(grant))) => self.hold(grant),
                Some(Ok(Grant::TakenBack)) => {
                    self.phase = Phase::Gone;
                    return Ok(Attempt::Gone);
                }
                Some(Ok(Grant::Exclusive { exclusive, token, sent })) => {
                    let connection = Arc::clone(&exclusive.connection);
                    let (keys, mode) = (self.keys.clone(), self.claim.want().mode);
                    let locked = Locked { keys, mode, permits: Vec::new() };
                    connection.hold(&self.claim, sent);
                    let why = Why::Waited(exclusive);
                    self.holding(Held::new(&self.locks, &self.claim, connection, token, locked, why));
                }
            }
        }
        self.answer().await
    }

    fn holding(&mut self, held: Arc<Held<S>>) {
        self.locks.listed.note(&self.claim, Some(&held));
        S::granted(&self.locks, &self.claim, &self.keys);
        self.phase = Phase::Holding(held);
    }

    /// Holds the lock that a connection for many was granted.
    fn hold(&mut self, grant: FreshGrant<S>) {
        let (connection, token, locked) = (Arc::clone(&grant.connection), grant.token, grant.locked.clone());
        connection.hold(&self.claim, grant.sent);
        let why = Why::Free(grant.take());
        self.holding(Held::new(&self.locks, &self.claim, connection, token, locked, why));
    }

    /// Answers for a claim that was granted. A grant that is not valid any more is released.
    async fn answer(&mut self) -> Result<Attempt> {
        let Phase::Holding(held) = &self.phase else { return Ok(Attempt::Gone) };
        let lost = matches!(self.claim.validity.state(self.claim.runtime.clock().now()), State::Lost(_));
        if !lost && !held.connection.has_ended() {
            return Ok(Attempt::Granted(held.token));
        }
        held.unlock().await?;
        self.phase = Phase::Gone;
        Ok(Attempt::Gone)
    }

    async fn remove(&mut self) -> Result<Removed> {
        let valid = !matches!(self.claim.validity.state(self.claim.runtime.clock().now()), State::Lost(_));
        let was_valid = *self.was_valid.get_or_insert(valid);
        // The statement that was sent may be granted: its reply comes first. A failed one was undone.
        if self.trying.is_some() {
            match self.tried().await {
                Ok(Some(grant)) => self.hold(grant),
                Ok(None) => {}
                Err(failure) if self.trying.is_some() => return Err(failure.into()),
                Err(_) => {}
            }
        }
        match &self.phase {
            Phase::New | Phase::Gone => Ok(Removed::Nothing),
            Phase::Waiting(_) => {
                self.phase = Phase::Gone; // cancels
                Ok(Removed::Withdrawn)
            }
            Phase::Holding(held) => {
                let released = held.unlock().await?;
                Ok(if released && was_valid { Removed::Released } else { Removed::Nothing })
            }
        }
    }
}

impl<S: Server> Drop for LockEntry<S> {
    fn drop(&mut self) {
        self.locks.listed.remove(self.claim.id);
        if self.removed.is_some() {
            return;
        }
        // Core gave up. A lock of the connection would stay as long as other claims keep the connection alive.
        let (trying, phase) = (self.trying.take(), std::mem::replace(&mut self.phase, Phase::Gone));
        if let Phase::Holding(held) = phase {
            held.connection.end();
        } else if let Some(trying) = trying {
            // A grant that nobody takes is released.
            self.claim.runtime.spawn(async move { drop(trying.await) });
        }
    }
}

impl<S: Server> Entry for LockEntry<S> {
    fn attempt(&mut self) -> Reply<'_, Result<Attempt>> {
        if self.removed.is_some() {
            return Reply::ready(Ok(Attempt::Gone));
        }
        match &self.phase {
            Phase::Gone => Reply::ready(Ok(Attempt::Gone)),
            Phase::New | Phase::Waiting(_) | Phase::Holding(_) => named(S::ENGINE, self.enter()),
        }
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.phase {
            Phase::Waiting(wait) => wait.poll(cx),
            Phase::New | Phase::Holding(_) | Phase::Gone => Poll::Pending,
        }
    }

    fn renewal(&self) -> Option<Renewal> {
        let Phase::Holding(held) = &self.phase else { return None };
        let (locks, connection) = (Arc::clone(&self.locks), Arc::clone(&held.connection));
        let session = ConnectionRenewal { locks, connection };
        Some(Renewal { claim: Arc::clone(&self.claim), session: Arc::new(session) })
    }

    fn withdraw(&mut self) -> Reply<'_, Result<Removed>> {
        match self.removed {
            Some(removed) => Reply::ready(Ok(removed)),
            None => named(S::ENGINE, async move {
                let removed = self.remove().await?;
                self.locks.listed.remove(self.claim.id);
                self.removed = Some(removed);
                Ok(removed)
            }),
        }
    }

    fn detach(&mut self) -> Reply<'_, Result<()>> {
        Reply::ready(Err(Error::new(ErrorKind::Unsupported, S::CANNOT_DETACH).on(S::ENGINE)))
    }
}
