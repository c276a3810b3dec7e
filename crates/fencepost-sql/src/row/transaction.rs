//! One transaction, on a connection of its own.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{ErrorKind, Moment};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};

use crate::database::{Answer, Results, Row, Statement};
use crate::driver::Used;
use crate::failure::Failure;
use crate::row::server::{Renewed, RowServer, Rows};
use crate::turns::WAIT_IDLE;

/// How long the server may take to end a statement.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);

/// An open transaction.
pub struct OpenTransaction<S: RowServer> {
    /// The engine's part.
    pub server: Arc<S>,
    /// The driver's side of the connection.
    pub client: Arc<S::Client>,
    rows: Rows<S>,
    /// `None`: the connection is closed, or belongs to another transaction.
    open: Mutex<Option<Used<S>>>,
    numbers: (i64, i64),
    /// The start of the server on which the transaction began, if the engine reads it.
    pub server_start: Option<i64>,
    idle: Mutex<Duration>,
    /// A statement waits for a lock.
    busy: AtomicBool,
    /// The holder has the transaction. It may have changed the session, so the connection is not used again.
    lent: AtomicBool,
    /// The transaction is being committed or undone: the holder sends nothing any more.
    ending: Mutex<bool>,
}

impl<S: RowServer> OpenTransaction<S> {
    /// Begins a transaction. Dropped midway, the connection closes.
    pub(crate) async fn begin(
        rows: &Rows<S>,
        used: Used<S>,
        idle: Duration,
        number: i64,
        first: Vec<Statement>,
    ) -> Result<(Arc<OpenTransaction<S>>, Results), Failure> {
        let mut row = OpenTransaction {
            server: Arc::clone(&rows.server),
            client: Arc::clone(&used.connection().client),
            rows: rows.clone(),
            open: Mutex::new(Some(used)),
            numbers: (0, 0),
            server_start: None,
            idle: Mutex::new(idle),
            busy: AtomicBool::new(false),
            lent: AtomicBool::new(false),
            ending: Mutex::new(false),
        };
        let (begin, keep) = (row.server.begin(idle, number), row.server.keep());
        let (begun, count) = (begin.len(), first.len());
        let all = begin.into_iter().chain(first).chain(keep).collect();
        let mut results = row.run(all).await?.split_off(begun - 1);
        results.truncate(count + 1);
        let numbers = results.remove(0);
        if let Some(numbers) = numbers.first() {
            (row.numbers, row.server_start) = ((numbers.int(0), numbers.int(1)), numbers.optional(2));
        }
        Ok((Arc::new(row), results))
    }

    /// Returns when a statement that is sent now takes too long.
    #[must_use]
    pub fn limit(&self) -> Moment {
        self.server.runtime().clock().now() + self.server.url().timeout
    }

    /// Returns after what time without a statement the server ends the transaction.
    pub fn idle(&self) -> Duration {
        *self.idle.lock()
    }

    /// Returns whether the holder has the transaction.
    pub fn is_lent(&self) -> bool {
        self.lent.load(Ordering::SeqCst)
    }

    /// Runs statements within the time limit.
    ///
    /// # Errors
    /// As [`Connect::run`](crate::Connect::run); or the connection has ended, or they took too long.
    ///
    /// # Cancel safety
    /// May be dropped: the statements take effect or not.
    pub async fn run(&self, statements: Vec<Statement>) -> Result<Results, Failure> {
        self.run_until(self.limit(), statements).await
    }

    /// Runs statements until `limit`.
    ///
    /// # Errors
    /// As [`run`](OpenTransaction::run).
    ///
    /// # Cancel safety
    /// As [`run`](OpenTransaction::run).
    pub async fn run_until(&self, limit: Moment, statements: Vec<Statement>) -> Result<Results, Failure> {
        let running = self.server.run(&self.client, &statements);
        self.within(limit, running).await.map_err(|failure| self.server.explain(failure))
    }

    /// Waits for work on the connection until `limit`.
    ///
    /// # Errors
    /// Those of the work; or the connection has ended, or the time is over.
    ///
    /// # Cancel safety
    /// That of the work.
    pub async fn within<T>(
        &self,
        limit: Moment,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let server = || self.server.url().to_string();
        if self.open.lock().is_none() {
            return Err(Failure::ended(&server()));
        }
        let done = self.server.runtime().clock().within(limit, work).await;
        done.unwrap_or_else(|| Err(Failure::timeout(&server())))
    }

    /// Lets the holder send a statement. `None`: the transaction is over, or is being ended.
    pub fn lend<T>(&self, send: impl FnOnce(&S::Client) -> T) -> Option<T> {
        let ending = self.ending.lock();
        if *ending || self.has_ended() { None } else { Some(send(&self.client)) }
    }

    /// Gives the connection back, if nothing of its transaction is left on it.
    fn give_back(&self) {
        let used = self.open.lock().take();
        if let Some(mut used) = used {
            used.set_clean(!self.is_lent());
        }
    }
}

impl<S: RowServer> OpenTransaction<S> {
    /// Returns the number of its connection and its own number, as the server knows them.
    pub fn numbers(&self) -> (i64, i64) {
        self.numbers
    }

    /// Runs a statement that waits for a lock. It has no time limit: [`end`](OpenTransaction::end) ends it. The first poll sends.
    pub(crate) fn wait(&self, statement: Statement) -> Answer<'_, Vec<Row>> {
        self.busy.store(true, Ordering::SeqCst);
        async move {
            let mut statements = self.server.before_wait();
            // The first statement after the grant raises it again.
            statements.extend([self.server.set_idle(self.idle().min(WAIT_IDLE)), statement]);
            let results = self.server.run(&self.client, &statements).await;
            self.busy.store(false, Ordering::SeqCst);
            Ok(results.map_err(|failure| self.server.explain(failure))?.pop().unwrap_or_default())
        }
        .boxed()
    }

    /// Ends a wait and undoes the transaction. `false`: what is left of it is not known, and the connection has to be closed.
    pub(crate) async fn cancel(&self, waiting: Answer<'_, Vec<Row>>) -> bool {
        let cancelled = async move {
            let interrupt = self.server.interrupt(self.numbers.0);
            self.rows.run(vec![interrupt]).await.is_ok()
                // Granted at the last moment: the request may still arrive, and hit a later statement.
                && waiting.await.is_err_and(|failure| failure.interrupted)
                && self.roll_back("SELECT 1".to_owned()).await.is_ok()
        };
        let clock = self.server.runtime().clock();
        clock.within(clock.now() + CANCEL_TIMEOUT, cancelled).await == Some(true)
    }

    /// Makes the locks so far last: a statement that fails from now on does not free them. The idle time starts again.
    pub(crate) async fn keep(&self) -> Result<(), Failure> {
        let set_idle = self.server.set_idle(self.idle());
        self.run(std::iter::once(set_idle).chain(self.server.keep()).collect()).await.map(drop)
    }

    /// Runs a statement, so that the idle time starts again. It becomes `idle` if that is longer: the lease that the holder has may end
    /// later than the new one.
    ///
    /// # Errors
    /// A refusal if the idle time cannot be changed any more.
    ///
    /// # Cancel safety
    /// May be dropped: the statement takes effect or not.
    pub async fn renew(&self, idle: Duration, look: Statement) -> Result<Renewed, Failure> {
        let idle = idle.max(self.idle());
        let renewed = S::renew(self, idle, look).await?;
        if let Renewed::Open(_) = renewed {
            *self.idle.lock() = idle;
        }
        Ok(renewed)
    }

    /// Runs a last statement and commits.
    ///
    /// # Errors
    /// A failure that is not uncertain: nothing was committed.
    pub(crate) async fn commit(&self, last: String) -> Result<(), Failure> {
        *self.ending.lock() = true;
        // The server frees the lock when the connection has been silent for that long.
        let limit = self.limit().max(self.server.runtime().clock().now() + self.idle());
        match S::commit(self, last, limit).await {
            Ok(()) => {
                self.give_back();
                Ok(())
            }
            Err(failure) => {
                self.end();
                // Nobody else repeats a transaction.
                Err(Failure { transient: false, conflict: false, ..failure })
            }
        }
    }

    /// Undoes the transaction, then runs a statement on its own.
    pub(crate) async fn roll_back(&self, then: String) -> Result<(), Failure> {
        *self.ending.lock() = true;
        // A statement of the holder may still run.
        let limit = match self.is_lent() {
            true => self.server.runtime().clock().now() + CANCEL_TIMEOUT,
            false => self.limit(),
        };
        S::roll_back(self, then, limit).await?;
        self.give_back();
        Ok(())
    }

    /// Closes the connection, and cancels a statement that runs on it.
    pub fn end(&self) {
        let Some(used) = self.open.lock().take() else { return };
        if !self.busy.load(Ordering::SeqCst) && !self.is_lent() {
            return;
        }
        let (runtime, kill) = (self.server.runtime().clone(), S::kill(self));
        self.server.runtime().spawn(async move {
            let clock = runtime.clock();
            clock.within(clock.now() + CANCEL_TIMEOUT, kill).await;
            drop(used);
        });
    }

    /// Returns whether the connection has ended, or belongs to another transaction.
    pub(crate) fn has_ended(&self) -> bool {
        self.open.lock().as_ref().is_none_or(|used| used.connection().task.has_ended())
    }

    /// Completes when the connection ends.
    pub(crate) fn ended(&self) -> BoxFuture<'static, ()> {
        match &*self.open.lock() {
            Some(used) => used.connection().task.ended().boxed(),
            None => ready(()).boxed(),
        }
    }

    /// Returns the driver's view of the transaction: a type of the engine's crate, to be downcast to.
    pub(crate) fn native(self: &Arc<Self>) -> Option<Box<dyn Any + Send>> {
        let native = S::native(self)?;
        self.lent.store(true, Ordering::SeqCst);
        Some(native)
    }
}

impl<S: RowServer> Drop for OpenTransaction<S> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Makes the failure of a release whose transaction had ended before.
#[must_use]
pub fn ended_early() -> Failure {
    let message = "a statement of the holder ended the transaction before the release, and with it the lock; leave COMMIT and ROLLBACK to \
                   the guard";
    Failure::new(ErrorKind::Lost, message)
}
