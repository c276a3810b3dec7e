//! The driver that the lease table needs, and its connections: each is used for one statement or transaction at a time.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{ErrorKind, Report, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::database::{Answer, Results, Statement};
use crate::failure::Failure;

/// A driver of one database.
pub trait Driver: Send + Sync + 'static {
    /// A connection. Dropping it closes it, and undoes a transaction that was not committed.
    type Connection: Send + Sync + 'static;

    /// Returns where tasks run, and the clock.
    fn runtime(&self) -> &Runtime;

    /// Returns the limits of a client.
    fn limits(&self) -> Limits;

    /// Opens a connection, within a time limit. Runs on the client's own thread.
    fn connect(self: Arc<Self>) -> Answer<'static, Self::Connection>;

    /// Returns whether a connection has ended.
    fn has_ended(&self, connection: &Self::Connection) -> bool;

    /// Runs statements in order. Outside of a transaction each has its own. The first poll sends.
    ///
    /// # Errors
    /// The first statement that failed. Later ones may take effect, unless they are in a transaction that is not committed.
    ///
    /// # Cancel safety
    /// May be dropped: the statements take effect or not.
    fn run<'a>(
        &'a self,
        connection: &'a Self::Connection,
        statements: &'a [Statement],
    ) -> Answer<'a, Results>;

    /// Returns the statements that begin a transaction (`READ COMMITTED`). The server ends it if its client falls silent.
    fn begin(&self) -> Vec<Statement>;

    /// Returns the statements that commit it.
    fn commit(&self) -> Vec<Statement>;

    /// Returns whether a statement that fails ends its transaction, so that the statements behind it have no effect either.
    fn ends_failed_transactions(&self) -> bool;

    /// Makes the failure of a statement that took too long.
    fn timeout(&self) -> Failure;

    /// Makes sure that messages to this client arrive. Returns `false` where none do.
    fn listen(self: Arc<Self>, connections: Arc<Connections<Self>>) -> Answer<'static, bool>
    where
        Self: Sized;

    /// Checks the server. `messages`: whether they arrive.
    fn examine<'a>(&'a self, connection: &'a Self::Connection, messages: bool) -> Answer<'a, Report>;

    /// Closes what the driver keeps beside the connections.
    fn close(&self);
}

/// The limits of a client.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How many connections it opens at most.
    pub connections: usize,
    /// The time limit of a statement.
    pub timeout: Duration,
    /// The time limit of an attempt to connect.
    pub connect_timeout: Duration,
}

/// Runs work on the client's own thread. The result of work whose caller has left is dropped.
///
/// # Errors
/// Those of the work; or the client was closed.
///
/// # Cancel safety
/// May be dropped: the work goes on.
pub async fn on_own_thread<T: Send + 'static>(
    runtime: &Runtime,
    work: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    let (sender, done) = oneshot::channel();
    runtime.spawn(async move {
        let _ = sender.send(work.await);
    });
    done.await.unwrap_or_else(|_| Err(Failure::closed()))
}

/// Connections of one kind. Each idle one is open.
pub struct Connections<D: Driver> {
    driver: Arc<D>,
    idle: Arc<Idle<D>>,
    permits: Arc<Semaphore>,
}

/// Connections that nobody uses. `None` once the client is closed.
type Idle<D> = Mutex<Option<Vec<<D as Driver>::Connection>>>;

/// A connection in use. Dropping it closes the connection, unless nothing is under way on it.
pub struct Used<D: Driver> {
    driver: Arc<D>,
    connection: Option<D::Connection>,
    idle: Arc<Idle<D>>,
    clean: bool,
    _permit: OwnedSemaphorePermit,
}

impl<D: Driver> Used<D> {
    /// Returns the connection.
    pub fn connection(&self) -> &D::Connection {
        self.connection.as_ref().expect("it is there until it is dropped")
    }

    /// Runs statements within the time limit.
    ///
    /// # Errors
    /// As [`Driver::run`]; or they took too long.
    ///
    /// # Cancel safety
    /// As [`Driver::run`].
    pub async fn run(&self, statements: &[Statement]) -> Result<Results, Failure> {
        let clock = self.driver.runtime().clock();
        let running = self.driver.run(self.connection(), statements);
        let limit = clock.now() + self.driver.limits().timeout;
        clock.within(limit, running).await.unwrap_or_else(|| Err(self.driver.timeout()))
    }

    /// Notes whether nothing is under way on the connection.
    pub fn set_clean(&mut self, clean: bool) {
        self.clean = clean;
    }
}

impl<D: Driver> Drop for Used<D> {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        if !self.clean || self.driver.has_ended(&connection) {
            return;
        }
        if let Some(idle) = self.idle.lock().as_mut() {
            idle.push(connection);
        }
    }
}

impl<D: Driver> Connections<D> {
    /// At most `most` connections at a time.
    pub(crate) fn new(driver: &Arc<D>, most: usize) -> Connections<D> {
        Connections {
            driver: Arc::clone(driver),
            idle: Arc::new(Mutex::new(Some(Vec::new()))),
            permits: Arc::new(Semaphore::new(most)),
        }
    }

    /// Returns a connection, first come, first served. Opens one if none is idle.
    ///
    /// # Errors
    /// All connections are busy, the client was closed, or the server cannot be reached.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn get(&self) -> Result<Used<D>, Failure> {
        let (clock, limits) = (self.driver.runtime().clock(), self.driver.limits());
        let until = clock.now() + limits.timeout + limits.connect_timeout;
        let permit = clock.within(until, Arc::clone(&self.permits).acquire_owned()).await;
        let busy = || {
            let message = "all connections of this client are busy; raise connections= in the URL, and check the server's load";
            Failure::new(ErrorKind::Unreachable, message)
        };
        let permit = permit.ok_or_else(busy)?.map_err(|_| Failure::closed())?;
        let connection = loop {
            match self.idle.lock().as_mut().ok_or_else(Failure::closed)?.pop() {
                Some(connection) if self.driver.has_ended(&connection) => {}
                other => break other,
            }
        };
        let connection = match connection {
            Some(connection) => connection,
            None => on_own_thread(self.driver.runtime(), Arc::clone(&self.driver).connect()).await?,
        };
        Ok(Used {
            driver: Arc::clone(&self.driver),
            connection: Some(connection),
            idle: Arc::clone(&self.idle),
            clean: false,
            _permit: permit,
        })
    }

    /// Closes idle connections, and those in use when their statements end.
    pub(crate) fn close(&self) {
        self.permits.close();
        let idle = self.idle.lock().take();
        drop(idle);
    }
}
