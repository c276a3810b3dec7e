//! One connection, and the claims that it holds.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Claim, ClaimId, Loss, Mode, Moment, Token, Validity};
use tokio_postgres::types::ToSql;
use tokio_postgres::{CancelToken, Row};

use crate::conn::connect::{self, Connector, DriverClient, Running};
use crate::conn::statements::{NAMED, Sql, Statements, WRITE_NAMES};
use crate::error::Failure;
use crate::keys::{Keys, Lock, Locked};

/// How long the server may take to cancel a statement.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection. The server ends it after its idle timeout without a statement.
pub(crate) struct Connection {
    pub(crate) id: u64,
    connector: Arc<Connector>,
    client: DriverClient,
    statements: Statements,
    host: (String, u16),
    pid: i32,
    cancel: CancelToken,
    idle: Mutex<Duration>,
    state: Mutex<State>,
    pub(crate) forever: Arc<Validity>,
}

/// A backend that holds a key or waits for it.
pub(crate) struct Backend {
    /// The name of the client's sessions.
    pub(crate) session: String,
    pub(crate) pid: i32,
    pub(crate) holds: bool,
    pub(crate) shared: bool,
}

impl Backend {
    fn read(row: &Row) -> Backend {
        Backend { session: row.get(0), pid: row.get(1), holds: row.get(2), shared: row.get(3) }
    }
}

struct State {
    /// `None`: the connection has ended.
    running: Option<Running>,
    claims: HashMap<ClaimId, Arc<Claim>>,
    /// When the last statement was sent.
    sent: Moment,
}

impl Connection {
    pub(crate) fn new(
        connector: &Arc<Connector>,
        client: DriverClient,
        statements: Statements,
        running: Running,
        connect::Session { host, pid, idle }: connect::Session,
    ) -> Arc<Connection> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let mut ended = running.ended.clone();
        let connection = Arc::new(Connection {
            id: LAST.fetch_add(1, Relaxed) + 1,
            connector: Arc::clone(connector),
            cancel: client.cancel_token(),
            client,
            statements,
            host,
            pid,
            idle: Mutex::new(idle),
            state: Mutex::new(State {
                running: Some(running),
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

    pub(crate) fn now(&self) -> Moment {
        self.connector.runtime.clock().now()
    }

    /// Returns whether the connection has ended. The server frees its locks.
    pub(crate) fn has_ended(&self) -> bool {
        self.state.lock().running.is_none()
    }

    /// Ends the connection and all claims that it holds.
    pub(crate) fn end(&self) {
        let (running, claims) = {
            let mut state = self.state.lock();
            (state.running.take(), std::mem::take(&mut state.claims))
        };
        // The holders are told before the server can hear that the connection ends.
        claims.values().for_each(|claim| claim.validity.end(Loss::SessionEnded));
        drop(running);
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
        if state.running.is_none() {
            return false;
        }
        state.claims.insert(claim.id, Arc::clone(claim));
        drop(state);
        claim.confirm(sent, claim.ttl().min(self.idle()))
    }

    /// Returns whether the connection holds for the claim.
    pub(crate) fn holds(&self, claim: &Claim) -> bool {
        self.state.lock().claims.contains_key(&claim.id)
    }

    /// Forgets a claim that is released.
    pub(crate) fn forget(&self, claim: &Claim) {
        self.state.lock().claims.remove(&claim.id);
    }

    /// Listens to channels, whose names need no quotes.
    pub(crate) async fn listen(&self, channels: &[&str]) -> Result<(), Failure> {
        self.batch(&channels.iter().map(|channel| format!("LISTEN {channel};")).collect::<String>()).await
    }

    /// Runs statements without parameters.
    pub(crate) async fn batch(&self, text: &str) -> Result<(), Failure> {
        let running = async {
            let done = self.client.batch_execute(text).await;
            done.map_err(|error| Failure::read(&error, &self.connector.server))
        };
        self.within(running).await
    }

    /// Sends `text` to a channel.
    pub(crate) async fn notify(&self, channel: &str, text: &str) -> Result<(), Failure> {
        self.within(self.query(Sql::Notify, &[&channel, &text])).await.map(drop)
    }

    /// Returns the clients whose backends hold the key or wait for it: the name of the client's sessions, the backend, whether it
    /// holds, and whether shared.
    pub(crate) async fn backends(&self, keys: Keys) -> Result<Vec<Backend>, Failure> {
        let rows = self.within(self.rows(Sql::Backends, &[&keys.name, &keys.waiting])).await?;
        Ok(rows.iter().map(Backend::read).collect())
    }

    /// Returns the backends that hold keys whose names are in the table, with the names: those that begin with `begins` and follow
    /// `after`, in order.
    pub(crate) async fn named(
        &self,
        prefix: &str,
        begins: &str,
        after: &str,
    ) -> Result<Vec<(String, Backend)>, Failure> {
        let rows = self.within(self.once(NAMED, &[&prefix, &begins, &after])).await?;
        Ok(rows.iter().map(|row| (row.get(4), Backend::read(row))).collect())
    }

    /// Writes names to the table, if they are not there.
    pub(crate) async fn write_names(
        &self,
        prefix: &str,
        keys: &[i64],
        names: &[String],
    ) -> Result<(), Failure> {
        self.within(self.once(WRITE_NAMES, &[&prefix, &keys, &names])).await.map(drop)
    }

    /// Runs a statement that is used too rarely to be kept.
    async fn once(&self, text: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Failure> {
        self.client.query(text, values).await.map_err(|error| Failure::read(&error, &self.connector.server))
    }

    /// Returns the names of the sessions of all clients of the database.
    pub(crate) async fn sessions(&self) -> Result<Vec<String>, Failure> {
        let rows = self.within(self.rows(Sql::Sessions, &[])).await?;
        Ok(rows.into_iter().map(|row| row.get(0)).collect())
    }

    /// Runs a statement without parameters that returns one row.
    pub(crate) async fn one_row(&self, text: &str) -> Result<Row, Failure> {
        let rows = self.within(self.once(text, &[])).await?;
        rows.into_iter().next().ok_or_else(|| Failure::ended(&self.connector.server))
    }

    async fn rows(&self, sql: Sql, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Failure> {
        if self.has_ended() {
            return Err(Failure::ended(&self.connector.server));
        }
        let rows = self.client.query(self.statements.get(sql), values).await;
        rows.map_err(|error| Failure::read(&error, &self.connector.server))
    }

    /// Sends a statement with its first poll and checks which backend ran it.
    async fn query(&self, sql: Sql, values: &[&(dyn ToSql + Sync)]) -> Result<Row, Failure> {
        {
            let mut state = self.state.lock();
            if state.running.is_none() {
                return Err(Failure::ended(&self.connector.server));
            }
            state.sent = self.now();
        }
        match self.client.query_one(self.statements.get(sql), values).await {
            Ok(row) if row.get::<_, i32>(0) == self.pid => Ok(row),
            Ok(_) => {
                self.end();
                Err(Failure::pooled(&self.connector.server))
            }
            Err(error) => {
                let failure = Failure::read(&error, &self.connector.server);
                if failure.is_closed() {
                    self.end();
                }
                Err(failure)
            }
        }
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

    /// Takes an exclusive or shared lock if it is free. `again`: the client holds it on this connection. Returns its token.
    pub(crate) async fn try_lock(
        &self,
        Lock { keys, mode }: Lock,
        again: bool,
    ) -> Result<Option<Token>, Failure> {
        let row = if mode == Mode::Shared {
            let statement = if again { Sql::TrySharedAgain } else { Sql::TryShared };
            self.query(statement, &[&keys.name, &keys.permits]).await?
        } else {
            self.query(Sql::TryLock, &[&keys.name]).await?
        };
        Ok(row.get::<_, Option<i64>>(1).map(token))
    }

    /// Takes `n` of the permits whose keys are `free`, or none. Returns the token and their keys.
    pub(crate) async fn try_permits(
        &self,
        keys: Keys,
        free: &[i64],
        n: u32,
    ) -> Result<Option<(Token, Vec<i64>)>, Failure> {
        let count = i32::try_from(n).unwrap_or(i32::MAX);
        let row = self.query(Sql::TryPermits, &[&keys.name, &keys.permits, &free, &count]).await?;
        Ok(row.get::<_, Option<i64>>(1).map(|value| (token(value), row.get(2))))
    }

    /// Releases what a statement may have been granted before it failed: an error does not release an advisory lock. `again`: another
    /// claim holds the key on this connection, and only the end of the connection is certain to undo one of them.
    pub(crate) async fn undo(&self, locked: &Locked, again: bool) {
        if again || self.within(self.unlock(locked)).await.is_err() {
            self.end();
        }
    }

    /// Waits in the server's queue for the lock. There is no time limit: the caller [cancels](Connection::cancel) it. `None`: it is a
    /// reader, permits are held, and nothing is locked.
    pub(crate) async fn lock(&self, Lock { keys, mode }: Lock) -> Result<Option<Token>, Failure> {
        let row = if mode == Mode::Shared {
            self.query(Sql::LockShared, &[&keys.name, &keys.permits]).await?
        } else {
            self.query(Sql::Lock, &[&keys.name]).await?
        };
        Ok(row.get::<_, Option<i64>>(2).map(token))
    }

    /// Returns whether `other` stands in the queue of a lock.
    pub(crate) async fn is_queued(&self, other: &Connection) -> Result<bool, Failure> {
        Ok(self.within(self.query(Sql::IsQueued, &[&other.pid])).await?.get(1))
    }

    /// Sends a statement so that the idle timeout starts again. It becomes `idle`.
    pub(crate) async fn set_idle(&self, idle: Duration) -> Result<(), Failure> {
        self.within(self.query(Sql::Ping, &[&idle.as_millis().to_string()])).await?;
        *self.idle.lock() = idle;
        Ok(())
    }

    /// Releases the lock, and tells the clients that wait for a message. Returns whether the connection held it.
    pub(crate) async fn unlock(
        &self,
        Locked { lock: Lock { keys, mode }, permits }: &Locked,
    ) -> Result<bool, Failure> {
        let Keys { name, waiting, .. } = keys;
        Ok(match mode {
            Mode::Exclusive => self.query(Sql::Unlock, &[name, waiting]).await?.get(1),
            Mode::Shared => self.query(Sql::UnlockShared, &[name, waiting]).await?.get(1),
            Mode::Permits { .. } => {
                let row = self.query(Sql::UnlockPermits, &[name, waiting, permits, &keys.permits]).await?;
                row.get::<_, Option<bool>>(1).unwrap_or_default()
            }
        })
    }

    /// Notes at the server that a claim of this client waits for a message about the key. `false`: try again.
    pub(crate) async fn mark(&self, key: i64) -> Result<bool, Failure> {
        Ok(self.within(self.query(Sql::Mark, &[&key])).await?.get(1))
    }

    /// Takes a [mark](Connection::mark) back. Ends the connection if that fails.
    pub(crate) async fn unmark(&self, key: i64) {
        if self.within(self.query(Sql::Unmark, &[&key])).await.is_err() {
            self.end();
        }
    }

    /// Cancels the statement that waits, and releases what it may have been granted meanwhile. Ends the connection if that fails.
    pub(crate) async fn cancel(&self, waiting: impl Future<Output = Result<Option<Token>, Failure>>) {
        let clock = self.connector.runtime.clock();
        let cancelled = async {
            self.connector.cancel(&self.cancel, &self.host).await?;
            match waiting.await {
                // A lock can be granted to a statement that fails.
                Err(failure) if failure.is_cancelled() => self.query(Sql::UnlockAll, &[]).await.map(drop),
                // It was granted at the last moment. The request to cancel may still arrive, and hit a later statement.
                Ok(_) => Err(Failure::ended(&self.connector.server)),
                Err(failure) => Err(failure),
            }
        };
        if !matches!(clock.within(clock.now() + CANCEL_TIMEOUT, cancelled).await, Some(Ok(()))) {
            self.end();
        }
    }

    /// Sends a statement so that the idle timeout starts again. It becomes `idle` if that is longer.
    pub(crate) async fn ping(&self, idle: Duration) -> Result<(), Failure> {
        let idle = idle.max(self.idle());
        self.within(self.query(Sql::Ping, &[&idle.as_millis().to_string()])).await?;
        let mut known = self.idle.lock();
        *known = idle.max(*known);
        Ok(())
    }
}

fn token(value: i64) -> Token {
    Token::new(value.unsigned_abs())
}
