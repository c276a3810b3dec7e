//! Implements core's [`Entry`]: one claim at the server.

use std::sync::Arc;
use std::task::{Context, Poll};

use fencepost_core::{
    Attempt, Claim, Entry, Error, ErrorKind, Mode, Moment, Removed, Renewal, Reply, Result, State, Token,
};
use futures_util::future::BoxFuture;

use crate::claim::held::Held;
use crate::claim::wait::Wait;
use crate::client::PostgresClient;
use crate::conn::connection::{Connection, PostgresSession};
use crate::error::{ENGINE, Failure};

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
    connection: Arc<Connection>,
    token: Option<Token>,
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
            match tried.token {
                Some(token) => self.hold_on(tried.connection, token, tried.sent),
                None if self.claim.join => {
                    self.phase =
                        Phase::Waiting(Wait::start(&self.client, &self.claim, self.key, self.shared));
                }
                None => return Ok(Attempt::Blocked { again: None, ahead: None }),
            }
        }
        self.collect()
    }

    /// Holds a lock that the shared connection was granted.
    fn hold_on(&mut self, connection: Arc<Connection>, token: Token, sent: Moment) {
        let holder = self.shared.then(|| self.client.count_shared(self.key));
        let lock = (self.key, self.shared);
        let valid = connection.hold(&self.claim, sent);
        let held = Held::new(connection, &self.claim, token, lock, None, holder);
        self.phase = if valid { Phase::Holding(held) } else { Phase::Gone };
    }

    /// Collects what the claim waited for.
    fn collect(&mut self) -> Result<Attempt> {
        if let Phase::Waiting(wait) = &self.phase {
            match wait.take() {
                None => return Ok(Attempt::Blocked { again: None, ahead: None }),
                Some(Err(failure)) => {
                    self.phase = Phase::New;
                    return Err(failure.into());
                }
                Some(Ok(grant)) => {
                    let connection = Arc::clone(&grant.exclusive.connection);
                    let valid = connection.hold(&self.claim, grant.sent);
                    let lock = (self.key, self.shared);
                    let held =
                        Held::new(connection, &self.claim, grant.token, lock, Some(grant.exclusive), None);
                    self.phase = if valid { Phase::Holding(held) } else { Phase::Gone };
                }
            }
        }
        Ok(match &self.phase {
            Phase::Holding(held) if !held.connection.has_ended() => Attempt::Granted(held.token),
            _ => Attempt::Gone,
        })
    }

    async fn remove(&mut self) -> Result<Removed> {
        let valid = !matches!(self.claim.validity.state(self.claim.runtime.clock().now()), State::Lost(_));
        let was_valid = *self.was_valid.get_or_insert(valid);
        // The statement that was sent may be granted: its reply comes first. A failed one has left nothing, because statements fail
        // as a whole.
        if self.trying.is_some() {
            match self.tried().await {
                Ok(Tried { connection, token: Some(token), sent }) => self.hold_on(connection, token, sent),
                Ok(_) => {}
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
    let mut first = true;
    loop {
        let connection = client.pool.holding(claim.ttl()).await?;
        let sent = claim.runtime.clock().now();
        match connection.try_lock(key, shared, shared && client.is_shared(key)).await {
            Ok(token) => return Ok(Tried { connection, token, sent }),
            Err(failure) if failure.is_closed() && first => first = false,
            Err(failure) => return Err(failure),
        }
    }
}

impl Drop for PostgresEntry {
    fn drop(&mut self) {
        if self.removed.is_some() {
            return;
        }
        // Core gave up. What the connection holds would stay as long as other claims keep it alive.
        let (trying, phase) = (self.trying.take(), std::mem::replace(&mut self.phase, Phase::Gone));
        if let Phase::Holding(held) = phase {
            held.connection.end();
        } else if let Some(trying) = trying {
            self.claim.runtime.spawn(async move {
                if let Ok(Tried { connection, token: Some(_), .. }) = trying.await {
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
        match self.phase {
            Phase::New => Reply::coming(self.enter()),
            Phase::Waiting(_) | Phase::Holding(_) | Phase::Gone => Reply::ready(self.collect()),
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
