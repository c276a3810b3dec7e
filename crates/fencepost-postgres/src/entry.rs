//! Implements core's [`Entry`]: one claim at the server.

use std::sync::Arc;
use std::task::{Context, Poll};

use fencepost_core::{
    Attempt, Claim, Entry, Error, ErrorKind, Moment, Removed, Renewal, Reply, Result, State,
};
use futures_util::future::BoxFuture;

use crate::claim::attempt::{FreshGrant, check, try_lock};
use crate::claim::held::Held;
use crate::claim::wait::{Grant, Wait};
use crate::client::PostgresClient;
use crate::conn::session::PostgresSession;
use crate::error::{ENGINE, Failure};
use crate::keys::{Lock, Locked};

pub(crate) struct PostgresEntry {
    client: Arc<PostgresClient>,
    claim: Arc<Claim>,
    lock: Lock,
    phase: Phase,
    /// A statement that was sent and has no reply yet. It outlives the future of an attempt, because its effect must be known before
    /// the claim is withdrawn.
    trying: Option<BoxFuture<'static, Result<Option<FreshGrant>, Failure>>>,
    removed: Option<Removed>,
    /// The first request to withdraw was made: while the claim was valid, or not.
    was_valid: Option<bool>,
}

enum Phase {
    New,
    Waiting(Wait),
    Holding(Arc<Held>),
    Gone,
}

impl PostgresEntry {
    pub(crate) fn new(client: &Arc<PostgresClient>, claim: Arc<Claim>) -> PostgresEntry {
        PostgresEntry {
            lock: Lock { keys: client.keys_of(&claim.want().name), mode: claim.want().mode },
            client: Arc::clone(client),
            claim,
            phase: Phase::New,
            trying: None,
            removed: None,
            was_valid: None,
        }
    }

    /// Sends the first statement, or waits for the reply of the one that was sent.
    async fn tried(&mut self) -> Result<Option<FreshGrant>, Failure> {
        let trying = self.trying.get_or_insert_with(|| {
            let (client, claim, lock) = (Arc::clone(&self.client), Arc::clone(&self.claim), self.lock);
            Box::pin(async move { try_lock(&client, &claim, lock).await })
        });
        let connection_limit = self.client.pool.time_limit();
        let outcome = self.claim.runtime.clock().within(connection_limit, trying).await;
        let Some(outcome) = outcome else { return Err(self.client.pool.timeout()) };
        self.trying = None;
        outcome
    }

    async fn enter(&mut self) -> Result<Attempt> {
        if matches!(self.phase, Phase::New) {
            check(self.lock.mode)?;
            if let Some(grant) = self.tried().await? {
                self.hold(grant);
                return self.answer().await;
            }
            if !self.claim.join {
                return Ok(Attempt::Blocked { again: None, ahead: None });
            }
            self.client.listed.waits(&self.claim);
            self.phase = Phase::Waiting(Wait::start(&self.client, &self.claim, self.lock));
        }
        if let Phase::Waiting(wait) = &self.phase {
            wait.queued().await;
            match wait.take() {
                None => return Ok(Attempt::Blocked { again: None, ahead: None }),
                Some(Err(failure)) => {
                    self.phase = Phase::New;
                    return Err(failure.into());
                }
                Some(Ok(Grant::Fresh(grant))) => self.hold(grant),
                Some(Ok(Grant::Exclusive { exclusive, token, sent })) => {
                    let connection = Arc::clone(&exclusive.connection);
                    connection.hold(&self.claim, sent);
                    let locked = Locked { lock: self.lock, permits: Vec::new() };
                    let held = Held::new(
                        connection,
                        &self.claim,
                        token,
                        locked,
                        Some(exclusive),
                        None,
                        &self.client.quiet,
                    );
                    self.listed(&held);
                    self.phase = Phase::Holding(held);
                }
            }
        }
        self.answer().await
    }

    fn listed(&self, held: &Arc<Held>) {
        self.client.listed.holds(&self.claim, held);
        if self.client.names.note(self.lock.keys.name, &self.claim.want().name) {
            self.client.runtime.spawn(Arc::clone(&self.client).write_names());
        }
    }

    /// Holds the lock that a connection for many was granted.
    fn hold(&mut self, grant: FreshGrant) {
        let (connection, token, locked) = (Arc::clone(&grant.connection), grant.token, grant.locked.clone());
        connection.hold(&self.claim, grant.sent);
        let held =
            Held::new(connection, &self.claim, token, locked, None, Some(grant.take()), &self.client.quiet);
        self.listed(&held);
        self.phase = Phase::Holding(held);
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

impl Drop for PostgresEntry {
    fn drop(&mut self) {
        self.client.listed.remove(self.claim.id);
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

impl Entry for PostgresEntry {
    fn attempt(&mut self) -> Reply<'_, Result<Attempt>> {
        if self.removed.is_some() {
            return Reply::ready(Ok(Attempt::Gone));
        }
        match &self.phase {
            Phase::Gone => Reply::ready(Ok(Attempt::Gone)),
            Phase::New | Phase::Waiting(_) | Phase::Holding(_) => Reply::coming(self.enter()),
        }
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>, _: Moment) -> Poll<()> {
        match &self.phase {
            Phase::Waiting(wait) => wait.poll(cx),
            Phase::New | Phase::Holding(_) | Phase::Gone => Poll::Pending,
        }
    }

    fn renewal(&self) -> Option<Renewal> {
        let Phase::Holding(held) = &self.phase else { return None };
        let session = PostgresSession(Arc::clone(&held.connection));
        Some(Renewal { claim: Arc::clone(&self.claim), session: Arc::new(session) })
    }

    fn withdraw(&mut self) -> Reply<'_, Result<Removed>> {
        match self.removed {
            Some(removed) => Reply::ready(Ok(removed)),
            None => Reply::coming(async move {
                let removed = self.remove().await?;
                self.client.listed.remove(self.claim.id);
                self.removed = Some(removed);
                Ok(removed)
            }),
        }
    }

    fn detach(&mut self) -> Reply<'_, Result<()>> {
        let message = "an advisory lock ends with its connection and cannot be detached; use mode=table";
        Reply::ready(Err(Error::new(ErrorKind::Unsupported, message).on(ENGINE)))
    }
}
