//! One connection, and the claims that it holds.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Claim, ClaimId, Loss, Moment, Token, Validity};
use mysql_common::row::Row;
use mysql_common::value::Value;

use crate::conn::channel::{Answer, Channel};
use crate::conn::connect::{self, Connector};
use crate::conn::statements::{self, Statements};
use crate::error::Failure;
use crate::keys::Key;

/// How long the server may take to cancel a statement.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection. The server ends it after its idle timeout without a statement.
pub(crate) struct Connection {
    id: u64,
    connector: Arc<Connector>,
    statements: Statements,
    /// The session's number at the server.
    session: u64,
    idle: Mutex<Duration>,
    state: Mutex<State>,
    forever: Arc<Validity>,
}

struct State {
    /// `None`: the connection has ended.
    channel: Option<Channel>,
    claims: HashMap<ClaimId, Arc<Claim>>,
    /// When the last statement was sent.
    sent: Moment,
}

/// Returns the idle timeout for a lease: the server counts whole seconds.
pub(crate) fn idle_for(ttl: Duration) -> Duration {
    Duration::from_secs(ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0))
}

impl Connection {
    pub(crate) fn new(
        connector: &Arc<Connector>,
        channel: Channel,
        statements: Statements,
        connect::Session { id, idle }: connect::Session,
    ) -> Arc<Connection> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let mut ended = channel.ended.clone();
        let connection = Arc::new(Connection {
            id: LAST.fetch_add(1, Relaxed) + 1,
            connector: Arc::clone(connector),
            statements,
            session: id,
            idle: Mutex::new(idle),
            state: Mutex::new(State {
                channel: Some(channel),
                claims: HashMap::new(),
                sent: connector.runtime.clock().now(),
            }),
            forever: Arc::new(Validity::forever()),
        });
        let weak = Arc::downgrade(&connection);
        connector.runtime.spawn(async move {
            let _ = ended.wait_for(|ended| *ended).await;
            if let Some(connection) = weak.upgrade() {
                connection.end();
            }
        });
        connection
    }

    fn now(&self) -> Moment {
        self.connector.runtime.clock().now()
    }

    /// Returns whether the connection has ended. The server frees its locks.
    pub(crate) fn has_ended(&self) -> bool {
        self.state.lock().channel.is_none()
    }

    /// Ends the connection and all claims that it holds.
    pub(crate) fn end(&self) {
        let (channel, claims) = {
            let mut state = self.state.lock();
            (state.channel.take(), std::mem::take(&mut state.claims))
        };
        // The holders are told before the server can hear that the connection ends.
        claims.values().for_each(|claim| claim.validity.end(Loss::SessionEnded));
        drop(channel);
    }

    /// Returns how long the server waits for a statement before it ends the connection.
    pub(crate) fn idle(&self) -> Duration {
        *self.idle.lock()
    }

    /// Returns when the last statement was sent, and whether the connection holds nothing.
    pub(crate) fn usage(&self) -> (Moment, bool) {
        let state = self.state.lock();
        (state.sent, state.claims.is_empty())
    }

    /// Adds a claim that was granted by a statement sent at `sent`. Returns whether it is valid.
    pub(crate) fn hold(&self, claim: &Arc<Claim>, sent: Moment) -> bool {
        let mut state = self.state.lock();
        if state.channel.is_none() {
            return false;
        }
        state.claims.insert(claim.id, Arc::clone(claim));
        drop(state);
        claim.confirm(sent, claim.ttl().min(self.idle()))
    }

    /// Returns the connection's number in this process.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns a validity that does not end: each claim has its own, because their lengths differ.
    pub(crate) fn forever(&self) -> &Arc<Validity> {
        &self.forever
    }

    /// Confirms those of the claims that the connection still holds.
    pub(crate) fn confirm(&self, due: &[Arc<Claim>], ttls: &[Duration], sent: Moment) {
        for (claim, ttl) in due.iter().zip(ttls) {
            if self.state.lock().claims.contains_key(&claim.id) {
                claim.confirm(sent, *ttl);
            }
        }
    }

    /// Forgets a claim that is released.
    pub(crate) fn forget(&self, claim: &Claim) {
        self.state.lock().claims.remove(&claim.id);
    }

    /// Sends a statement with its first poll.
    async fn execute(&self, statement: u32, values: &[Value]) -> Result<Answer, Failure> {
        let sent = {
            let mut state = self.state.lock();
            state.sent = self.now();
            state.channel.as_ref().map(|channel| channel.execute(statement, values))
        };
        match sent {
            Some(reply) => reply.await.map_err(|error| Failure::read(error, &self.connector.server)),
            None => Err(Failure::ended(&self.connector.server)),
        }
    }

    /// Sends a text without parameters with its first poll.
    async fn send(&self, text: &str) -> Result<Answer, Failure> {
        let sent = {
            let mut state = self.state.lock();
            state.sent = self.now();
            state.channel.as_ref().map(|channel| channel.query(text))
        };
        match sent {
            Some(reply) => reply.await.map_err(|error| Failure::read(error, &self.connector.server)),
            None => Err(Failure::ended(&self.connector.server)),
        }
    }

    /// Runs a text without parameters.
    pub(crate) async fn query(&self, text: &str) -> Result<Vec<Row>, Failure> {
        Ok(self.within(self.send(text)).await?.rows)
    }

    /// Prepares and runs a statement of an operator.
    pub(crate) async fn ask(&self, text: &str, values: &[Value]) -> Result<Vec<Row>, Failure> {
        let asking = async {
            let prepared = self.state.lock().channel.as_ref().map(|channel| channel.prepare(text));
            let Some(prepared) = prepared else { return Err(Failure::ended(&self.connector.server)) };
            let prepared = prepared.await.map_err(|error| Failure::read(error, &self.connector.server))?;
            let answer = self.execute(prepared.statement, values).await;
            if let Some(channel) = &self.state.lock().channel {
                channel.close(prepared.statement);
            }
            answer
        };
        Ok(self.within(asking).await?.rows)
    }

    /// Runs a statement that returns one number. `None`: it is `NULL`.
    async fn number(&self, statement: u32, values: &[Value]) -> Result<Option<i64>, Failure> {
        let answer = self.execute(statement, values).await?;
        Ok(answer.rows.into_iter().next().and_then(|mut row| row.take_opt::<i64, _>(0)?.ok()))
    }

    /// Limits the time of `work`. A connection that has not answered for its idle timeout is of no use.
    pub(crate) async fn within<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let until = self.now() + self.connector.config.timeout;
        match self.connector.runtime.clock().within(until, work).await {
            Some(result) => result,
            None => {
                let failure = Failure::timeout(&self.connector.server);
                if self.now() >= self.state.lock().sent + self.idle() {
                    self.end();
                }
                Err(failure)
            }
        }
    }

    /// Takes the lock if it is free. `holder` describes the claim. Returns its token, which is zero if there are none.
    pub(crate) async fn try_lock(&self, key: &Key, holder: &[u8]) -> Result<Option<Token>, Failure> {
        if self.statements.draw.is_none() {
            return match self.number(self.statements.try_lock, &[text(&key.text)]).await? {
                Some(1) => Ok(Some(Token::default())),
                Some(_) => Ok(None),
                None => Err(Failure::interrupted(&self.connector.server)),
            };
        }
        let values = [text(&key.text), text(&key.name), Value::Bytes(holder.to_vec()), text(&key.text)];
        let answer = self.execute(self.statements.try_lock, &values).await?;
        Ok((answer.affected > 0).then(|| Token::new(answer.insert_id)))
    }

    /// Releases what a statement may have been granted before it failed: an error does not release a lock.
    pub(crate) async fn undo(&self, key: &Key) {
        if self.within(self.unlock(key)).await.is_err() {
            self.end();
        }
    }

    /// Waits in the server's queue for the lock. There is no time limit: the caller [cancels](Connection::cancel) it.
    /// `holder` describes the claim to operators.
    pub(crate) async fn wait(&self, key: &Key, holder: &[u8]) -> Result<(), Failure> {
        let statement = statements::wait(&key.text, holder);
        match self
            .send(&statement)
            .await?
            .rows
            .into_iter()
            .next()
            .and_then(|mut row| row.take_opt::<i64, _>(0)?.ok())
        {
            Some(1) => Ok(()),
            _ => Err(Failure::interrupted(&self.connector.server)),
        }
    }

    /// Confirms a lock that was waited for, and draws its token. The idle timeout starts again.
    pub(crate) async fn draw(&self, key: &Key, holder: &[u8]) -> Result<Token, Failure> {
        let Some(draw) = self.statements.draw else {
            self.ping(self.idle()).await?;
            return Ok(Token::default());
        };
        let values = [text(&key.text), text(&key.name), Value::Bytes(holder.to_vec())];
        let answer = self.within(self.execute(draw, &values)).await?;
        Ok(Token::new(answer.insert_id))
    }

    /// Returns whether `other` stands in the queue of a lock.
    pub(crate) async fn is_queued(&self, other: &Connection) -> Result<bool, Failure> {
        let count = self.within(self.number(self.statements.is_queued, &[other.session.into()])).await?;
        Ok(count.is_some_and(|count| count > 0))
    }

    /// Releases the lock. Returns whether the connection held it.
    pub(crate) async fn unlock(&self, key: &Key) -> Result<bool, Failure> {
        Ok(self.number(self.statements.release, &[text(&key.text)]).await? == Some(1))
    }

    /// Ends the wait of `other`, and releases what it may have been granted meanwhile. Ends `other` if that fails.
    pub(crate) async fn cancel(
        &self,
        other: &Connection,
        key: &Key,
        waiting: impl Future<Output = Result<(), Failure>>,
    ) {
        let clock = self.connector.runtime.clock();
        let cancelled = async {
            self.query(&format!("KILL QUERY {}", other.session)).await?;
            match waiting.await {
                // A lock can be granted to a statement that fails.
                Err(failure) if failure.is_interrupted() => other.unlock(key).await.map(drop),
                // It was granted at the last moment, and the server could interrupt a later statement.
                Ok(()) => Err(Failure::ended(&self.connector.server)),
                Err(failure) => Err(failure),
            }
        };
        if !matches!(clock.within(clock.now() + CANCEL_TIMEOUT, cancelled).await, Some(Ok(()))) {
            other.end();
        }
    }

    /// Sends a statement so that the idle timeout starts again. It becomes that of `ttl` if that is longer.
    pub(crate) async fn ping(&self, ttl: Duration) -> Result<(), Failure> {
        self.set_idle(idle_for(ttl).max(self.idle())).await
    }

    /// Sets the idle timeout.
    pub(crate) async fn set_idle(&self, idle: Duration) -> Result<(), Failure> {
        self.within(self.execute(self.statements.set_idle, &[idle.as_secs().into()])).await?;
        *self.idle.lock() = idle;
        Ok(())
    }
}

/// Returns a text as a parameter.
pub(crate) fn text(text: &str) -> Value {
    Value::Bytes(text.as_bytes().to_vec())
}
