//! One transaction, on a connection of its own.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{ErrorKind, Moment};
use fencepost_sql::connection_locks::ConnectionTask;
use fencepost_sql::{Answer, Failure, Renewed, Results, Row, RowTransaction, Statement, Value};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use tokio::sync::OwnedSemaphorePermit;
use tokio_postgres::error::SqlState;
use tokio_postgres::{CancelToken, SimpleQueryMessage};

use crate::conn::connect::{Connector, DriverClient};
use crate::error;
use crate::row::database::explain;
use crate::row::home::Home;
use crate::table::connection::Plain;
use crate::table::statement;

/// How long the server may take to cancel a statement.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);

const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE";

/// Sets the limits of the transaction. The server ends it if its client is silent for `$1`; a limit of the server's own configuration
/// would end the wait. Draws the id of the transaction: others see by it whether the transaction is open.
const SETTINGS: &str = "SELECT pg_backend_pid(), pg_current_xact_id()::xid::text::int8, \
    set_config('client_connection_check_interval', '500ms', true), set_config('idle_in_transaction_session_timeout', $1, true), \
    set_config('lock_timeout', '0', true), set_config('statement_timeout', '0', true), \
    CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL THEN set_config('transaction_timeout', '0', true) END";

const RENEW: &str = "SELECT pg_current_xact_id_if_assigned()::xid::text::int8, \
    set_config('idle_in_transaction_session_timeout', $1, true)";

const CANCEL: &str = "SELECT pg_cancel_backend($1::int4)";

/// The savepoint behind the lock. Without it a statement that fails frees the lock at once.
const KEEP: &str = "SAVEPOINT fencepost";

/// An open transaction.
pub(crate) struct PostgresRow {
    client: Arc<DriverClient>,
    connector: Arc<Connector>,
    home: Arc<Home>,
    host: (String, u16),
    cancel: CancelToken,
    /// `None`: the connection is closed, or belongs to another transaction.
    open: Mutex<Option<Open>>,
    backend: i64,
    number: i64,
    idle: Mutex<Duration>,
    /// A statement waits, or the holder may have sent one.
    busy: AtomicBool,
    /// The holder has the client. It may have changed the session, so the connection is not used again.
    lent: AtomicBool,
}

struct Open {
    running: ConnectionTask,
    _permit: OwnedSemaphorePermit,
}

fn text(text: &str, values: Vec<Value>) -> Statement {
    Statement { text: text.into(), values }
}

fn millis(idle: Duration) -> Value {
    Value::from(&*idle.as_millis().to_string())
}

impl PostgresRow {
    /// Begins a transaction. Dropped midway, the connection closes.
    pub(crate) async fn begin(
        connector: &Arc<Connector>,
        home: &Arc<Home>,
        permit: OwnedSemaphorePermit,
        Plain { client, running, host }: Plain,
        idle: Duration,
        first: Vec<Statement>,
    ) -> Result<(Arc<PostgresRow>, Results), Failure> {
        let mut row = PostgresRow {
            connector: Arc::clone(connector),
            home: Arc::clone(home),
            host,
            cancel: client.cancel_token(),
            client,
            open: Mutex::new(Some(Open { running, _permit: permit })),
            backend: 0,
            number: 0,
            idle: Mutex::new(idle),
            busy: AtomicBool::new(false),
            lent: AtomicBool::new(false),
        };
        let begin = [text(BEGIN, Vec::new()), text(SETTINGS, vec![millis(idle)])];
        let all = begin.into_iter().chain(first).chain([text(KEEP, Vec::new())]).collect();
        let mut results = row.statements(all).await?.split_off(1);
        results.pop();
        let settings = results.remove(0);
        let numbers = settings.first();
        (row.backend, row.number) = numbers.map_or((0, 0), |numbers| (numbers.int(0), numbers.int(1)));
        Ok((Arc::new(row), results))
    }

    #[cfg(feature = "tokio-postgres")]
    pub(crate) fn client(&self) -> &DriverClient {
        &self.client
    }

    fn limit(&self) -> Moment {
        self.connector.runtime.clock().now() + self.connector.config.server.timeout
    }

    fn is_open(&self) -> bool {
        self.open.lock().is_some()
    }

    fn over(&self) -> Failure {
        Failure::ended(&self.connector.server)
    }

    fn timeout(&self) -> Failure {
        Failure::timeout(&self.connector.server)
    }

    /// Runs statements within the time limit.
    async fn statements(&self, statements: Vec<Statement>) -> Result<Results, Failure> {
        if !self.is_open() {
            return Err(self.over());
        }
        let running = statement::run(&self.client, &statements, &self.connector.server);
        let results = self.connector.runtime.clock().within(self.limit(), running).await;
        results.unwrap_or_else(|| Err(self.timeout())).map_err(|failure| explain(failure, &self.connector))
    }

    /// Runs statements without parameters in one message, until `limit`.
    async fn simple(&self, text: &str, limit: Moment) -> Result<Vec<SimpleQueryMessage>, Failed> {
        if !self.is_open() {
            return Err(Failed::Other(self.over()));
        }
        let running = self.client.simple_query(text);
        match self.connector.runtime.clock().within(limit, running).await {
            Some(Ok(replies)) => Ok(replies),
            Some(Err(error)) => Err(self.failed(&error)),
            None => Err(Failed::Other(self.timeout())),
        }
    }

    fn failed(&self, error: &tokio_postgres::Error) -> Failed {
        if error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION) {
            return Failed::Transaction;
        }
        let mut failure = error::read(error, &self.connector.server);
        // Without the server's word nobody knows what became of the statement.
        failure.uncertain |= error.code().is_none();
        Failed::Other(failure)
    }

    /// Gives the connection back, if nothing of its transaction is left on it.
    fn give_back(&self) {
        let Some(Open { running, .. }) = self.open.lock().take() else { return };
        let (lent, client) = (self.lent.load(Ordering::SeqCst), Arc::clone(&self.client));
        if !lent {
            self.home.keep(Plain { client, running, host: self.host.clone() });
        }
    }
}

/// A statement that failed.
enum Failed {
    /// An earlier statement failed, and the transaction can only be rolled back.
    Transaction,
    Other(Failure),
}

impl RowTransaction for PostgresRow {
    fn numbers(&self) -> (i64, i64) {
        (self.backend, self.number)
    }

    fn wait(&self, statement: Statement) -> Answer<'_, Vec<Row>> {
        self.busy.store(true, Ordering::SeqCst);
        async move {
            let server = &self.connector.server;
            // A failure of the savepoint would free the lock.
            let statements = [text("RELEASE SAVEPOINT fencepost", Vec::new()), statement];
            let results = statement::run(&self.client, &statements, server).await;
            self.busy.store(false, Ordering::SeqCst);
            Ok(results.map_err(|failure| explain(failure, &self.connector))?.pop().unwrap_or_default())
        }
        .boxed()
    }

    fn cancel<'a>(&'a self, waiting: Answer<'a, Vec<Row>>) -> BoxFuture<'a, bool> {
        let cancelled = async move {
            let cancel = text(CANCEL, vec![self.backend.into()]);
            self.home.run(&self.connector, &[cancel]).await.is_ok()
                // Granted at the last moment: the request may still arrive, and hit a later statement.
                && waiting.await.is_err_and(|failure| failure.interrupted)
                && self.roll_back("SELECT 1".to_owned()).await.is_ok()
        };
        let clock = self.connector.runtime.clock();
        clock.within(clock.now() + CANCEL_TIMEOUT, cancelled).map(|done| done == Some(true)).boxed()
    }

    fn keep(&self) -> Answer<'_, ()> {
        async { self.simple(KEEP, self.limit()).await.map(drop).map_err(|failed| failed.failure()) }.boxed()
    }

    fn renew(&self, idle: Duration, look: Statement) -> Answer<'_, Renewed> {
        async move {
            let longer = idle > *self.idle.lock();
            if longer && self.lent.load(Ordering::SeqCst) {
                let message = "the lease of a row lock cannot become longer once its transaction is used: a rollback to a savepoint \
                               would shorten it again; choose the ttl when the lock is acquired";
                return Err(Failure::new(ErrorKind::Unsupported, message));
            }
            let renew = text(RENEW, vec![millis(idle)]);
            // The longer lease must not end with the savepoint.
            let release = longer.then(|| text("RELEASE SAVEPOINT fencepost", Vec::new()));
            let keep = longer.then(|| text(KEEP, Vec::new()));
            let number = usize::from(longer);
            let all = release.into_iter().chain([renew, look]).chain(keep).collect();
            let mut results = match self.statements(all).await {
                Err(failure) if is_failed(&failure) => return Ok(Renewed::Failed),
                results => results?,
            };
            let own = results.get(number).and_then(|rows| rows.first()).is_some_and(|row| row.int(0) == self.number);
            if !own {
                return Ok(Renewed::Over);
            }
            *self.idle.lock() = idle;
            Ok(Renewed::Open(results.swap_remove(number + 1)))
        }
        .boxed()
    }

    fn commit(&self, last: String) -> Answer<'_, ()> {
        async move {
            // If a statement of the holder failed, the first one of these fails, and nothing is committed.
            let text = format!("SELECT pg_current_xact_id_if_assigned()::xid::text; {last}; COMMIT");
            // The server frees the lock when the connection has been silent for that long.
            let limit = self.limit().max(self.connector.runtime.clock().now() + *self.idle.lock());
            let committed = self.simple(&text, limit).await;
            let own = |reply: &SimpleQueryMessage| match reply {
                SimpleQueryMessage::Row(row) => row.get(0).and_then(|id| id.parse().ok()) == Some(self.number),
                _ => false,
            };
            match committed {
                Ok(replies) if replies.iter().any(own) => {
                    self.give_back();
                    Ok(())
                }
                Ok(_) => {
                    self.end();
                    let message = "a statement of the holder ended the transaction before the release, and with it the lock; leave \
                                   COMMIT and ROLLBACK to the guard";
                    Err(Failure::new(ErrorKind::Lost, message))
                }
                Err(failed) => {
                    self.end();
                    let mut failure = failed.failure();
                    // Nobody else repeats a transaction.
                    failure.transient = false;
                    Err(failure)
                }
            }
        }
        .boxed()
    }

    fn roll_back(&self, then: String) -> Answer<'_, ()> {
        async move {
            // A statement of the holder may still run.
            let limit = if self.lent.load(Ordering::SeqCst) {
                self.connector.runtime.clock().now() + CANCEL_TIMEOUT
            } else {
                self.limit()
            };
            self.simple(&format!("ROLLBACK; {then}"), limit).await.map_err(|failed| failed.failure())?;
            self.give_back();
            Ok(())
        }
        .boxed()
    }

    fn end(&self) {
        let Some(open) = self.open.lock().take() else { return };
        if !self.busy.load(Ordering::SeqCst) && !self.lent.load(Ordering::SeqCst) {
            return;
        }
        let (connector, cancel, host) = (Arc::clone(&self.connector), self.cancel.clone(), self.host.clone());
        self.connector.runtime.spawn(async move {
            let clock = connector.runtime.clock();
            // If it fails the server notices within 500 ms that the connection has ended.
            let _ = clock.within(clock.now() + CANCEL_TIMEOUT, connector.cancel(&cancel, &host)).await;
            drop(open);
        });
    }

    fn has_ended(&self) -> bool {
        self.open.lock().as_ref().is_none_or(|open| open.running.has_ended())
    }

    fn ended(&self) -> BoxFuture<'static, ()> {
        match &*self.open.lock() {
            Some(open) => open.running.ended().boxed(),
            None => ready(()).boxed(),
        }
    }

    #[cfg(feature = "tokio-postgres")]
    fn native(self: Arc<Self>) -> Option<Box<dyn Any + Send>> {
        self.lent.store(true, Ordering::SeqCst);
        Some(Box::new(crate::row::native::RowTransaction::new(self)))
    }

    #[cfg(not(feature = "tokio-postgres"))]
    fn native(self: Arc<Self>) -> Option<Box<dyn Any + Send>> {
        None
    }
}

impl Drop for PostgresRow {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns whether an earlier statement of the transaction had failed.
fn is_failed(failure: &Failure) -> bool {
    failure.cause.as_deref().is_some_and(|cause| cause.contains("(25P02)"))
}

impl Failed {
    fn failure(self) -> Failure {
        match self {
            Failed::Transaction => Failure::new(
                ErrorKind::Mismatch,
                "a statement of the transaction failed, so nothing of it was committed; use a savepoint around a statement that may fail",
            ),
            Failed::Other(failure) => failure,
        }
    }
}
