//! Implements core's [`Entry`]: one claim at the server.

use std::sync::Arc;
use std::task::{Context, Poll};

use fencepost_core::{
    Attempt, Claim, Entry, Error, ErrorKind, Mode, Moment, Removed, Renewal, Reply, Result, State, Token,
};
use futures_util::future::BoxFuture;

use crate::claim::held::Held;
use crate::claim::wait::{Grant, Wait};
use crate::client::PostgresClient;
use crate::conn::connection::{Connection, PostgresSession};
use crate::error::{ENGINE, Failure};
use crate::keys::KeyUse;

pub(crate) struct PostgresEntry {
    client: Arc<PostgresClient>,
    claim: Arc<Claim>,
    key: i64,
    shared: bool,
    phase: Phase,
    /// A statement that was sent and has no reply yet. It outlives the future of an attempt, because its effect must be known before
    /// the claim is withdrawn.
    trying: Option<BoxFuture<'static, Result<Tried, Failure>>>,
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

/// The outcome of the first statement.
struct Tried {
    /// The grant. `None`: another claim holds the lock.
    granted: Option<(Arc<Connection>, Token, KeyUse)>,
    sent: Moment,
}

impl PostgresEntry {
    pub(crate) fn new(client: &Arc<PostgresClient>, claim: Arc<Claim>) -> PostgresEntry {
        PostgresEntry {
            key: client.key(&claim.want().name),
            shared: claim.want().mode == Mode::Shared,
            client: Arc::clone(client),
            claim,
            phase: Phase::New,
            trying: None,
            removed: None,
            was_valid: None,
        }
    }

    /// Sends the first statement, or waits for the reply of the one that was sent.
    async fn tried(&mut self) -> Result<Tried, Failure> {
        let trying = self.trying.get_or_insert_with(|| {
            let (client, claim) = (Arc::clone(&self.client), Arc::clone(&self.claim));
            Box::pin(try_lock(client, claim, self.key, self.shared))
        });
        let connection_limit = self.client.pool.time_limit();
        let outcome = self.claim.runtime.clock().within(connection_limit, trying).await;
        let Some(outcome) = outcome else { return Err(self.client.pool.timeout()) };
        self.trying = None;
        outcome
    }

    async fn enter(&mut self) -> Result<Attempt> {
        if matches!(self.phase, Phase::New) {
            let tried = self.tried().await?;
            if self.hold(tried) {
                return self.answer().await;
            }
            if !self.claim.join {
                return Ok(Attempt::Blocked { again: None, ahead: None });
            }
            self.client.listed.waits(&self.claim);
            self.phase = Phase::Waiting(Wait::start(&self.client, &self.claim, self.key, self.shared));
        }
        if let Phase::Waiting(wait) = &self.phase {
            wait.queued().await;
            match wait.take() {
                None => return Ok(Attempt::Blocked { again: None, ahead: None }),
                Some(Err(failure)) => {
                    self.phase = Phase::New;
                    return Err(failure.into());
                }
                Some(Ok(Grant { exclusive, token, sent })) => {
                    let connection = Arc::clone(&exclusive.connection);
                    connection.hold(&self.claim, sent);
                    let lock = (self.key, self.shared);
                    let held = Held::new(connection, &self.claim, token, lock, Some(exclusive), None);
                    self.client.listed.holds(&self.claim, &held);
                    self.phase = Phase::Holding(held);
                }
            }
        }
        self.answer().await
    }

    /// Holds the lock if the first statement was granted it.
    fn hold(&mut self, Tried { granted, sent }: Tried) -> bool {
        let Some((connection, token, key_use)) = granted else { return false };
        connection.hold(&self.claim, sent);
        let lock = (self.key, self.shared);
        let held = Held::new(connection, &self.claim, token, lock, None, Some(key_use));
        self.client.listed.holds(&self.claim, &held);
        self.phase = Phase::Holding(held);
        true
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
                Ok(tried) => drop(self.hold(tried)),
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

/// Takes the lock if it is free. A connection that had ended is replaced once.
async fn try_lock(
    client: Arc<PostgresClient>,
    claim: Arc<Claim>,
    key: i64,
    shared: bool,
) -> Result<Tried, Failure> {
    let Some(key_use) = client.keys.take(key, shared) else {
        // Another claim of this client holds it or asks for it. Only the server knows whether it still answers.
        let sent = claim.runtime.clock().now();
        return if claim.join { Ok(()) } else { client.reach().await }
            .map(|()| Tried { granted: None, sent });
    };
    let mut first = true;
    loop {
        let connection = client.pool.holding(claim.ttl()).await?;
        let sent = claim.runtime.clock().now();
        match connection.try_lock(key, shared, key_use.again).await {
            Ok(token) => {
                let granted = token.map(|token| (connection, token, key_use));
                return Ok(Tried { granted, sent });
            }
            Err(failure) if failure.is_closed() && first => first = false,
            Err(failure) => {
                connection.undo(key, shared, key_use.again).await;
                return Err(failure);
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
            self.claim.runtime.spawn(async move {
                if let Ok(Tried { granted: Some((connection, ..)), .. }) = trying.await {
                    connection.end();
                }
            });
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
