//! The driver of an engine, and its connections: each is used for one statement or transaction at a time.

use std::sync::Arc;

use fencepost_core::{ErrorKind, Finish, Report, Runtime};
use tokio::sync::oneshot;

use crate::connection_locks::ConnectionTask;
use crate::database::{Answer, Results, Statement};
use crate::failure::Failure;
use crate::pool::{Kept, Lent, Permit, Pool};
use crate::url::ServerUrl;

/// How many connections that nobody uses are kept open.
const MAX_IDLE: usize = 16;

/// Opens connections to a server, and runs statements on them.
pub trait Connect: Send + Sync + 'static {
    /// The driver's side of a connection.
    type Client: Send + Sync + 'static;

    /// Returns where tasks run, and the clock.
    fn runtime(&self) -> &Runtime;

    /// Returns the server and the limits of a client.
    fn url(&self) -> &ServerUrl;

    /// Opens a connection to one of the URL's hosts, if it accepts writes. Runs on the client's own thread.
    fn open<'a>(&'a self, host: &'a (String, u16)) -> Answer<'a, Plain<Self::Client>>;

    /// Runs statements in order. Outside of a transaction each has its own. The first poll sends.
    ///
    /// # Errors
    /// The first statement that failed. Later ones may take effect, unless they are in a transaction that is not committed.
    ///
    /// # Cancel safety
    /// May be dropped: the statements take effect or not.
    fn run<'a>(&'a self, client: &'a Self::Client, statements: &'a [Statement]) -> Answer<'a, Results>;
}

/// A connection that no lock rests on. Dropping it closes it, and undoes a transaction that was not committed.
pub struct Plain<C> {
    /// The driver's side of it.
    pub client: Arc<C>,
    /// The driver's task.
    pub task: ConnectionTask,
}

impl<C> Plain<C> {
    /// Opens a connection to the first host that accepts writes. Runs on the client's own thread.
    ///
    /// # Errors
    /// Those of the last host; or the time is over.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn open(connector: &impl Connect<Client = C>) -> Result<Plain<C>, Failure> {
        connector.url().first(connector.runtime(), |host| connector.open(host)).await
    }
}

impl<C: Send + Sync + 'static> Kept for Plain<C> {
    fn has_ended(&self) -> bool {
        self.task.has_ended()
    }

    fn end(self) {}
}

/// The lease table's statements on a driver.
pub trait Driver: Send + Sync + 'static {
    /// Its connections.
    type Connector: Connect;

    /// Returns what opens connections.
    fn connector(&self) -> &Arc<Self::Connector>;

    /// Returns the statements that begin a transaction (`READ COMMITTED`). The server ends it if its client falls silent.
    fn begin(&self) -> Vec<Statement>;

    /// Returns the statements that commit it.
    fn commit(&self) -> Vec<Statement>;

    /// Returns whether a statement that fails ends its transaction, so that the statements behind it have no effect either.
    fn ends_failed_transactions(&self) -> bool;

    /// Makes sure that messages to this client arrive. Returns `false` where none do.
    fn listen(self: Arc<Self>, connections: Arc<Connections<Self::Connector>>) -> Answer<'static, bool>;

    /// Checks the server. `messages`: whether they arrive.
    fn examine<'a>(
        &'a self,
        client: &'a <Self::Connector as Connect>::Client,
        messages: bool,
    ) -> Answer<'a, Report>;

    /// Is called when the server must not be used any more. Closes what the driver keeps open to it beside the connections.
    fn leave(&self) {}

    /// Closes what the driver keeps beside the connections.
    fn close(&self);
}

/// Runs work on the client's own thread: work that others wait for must not depend on how often its caller polls. The result of work
/// whose caller has left is dropped.
///
/// # Errors
/// Those of the work; or the client was closed.
///
/// # Cancel safety
/// May be dropped: after its first poll the work goes on.
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

/// Connections of one kind, for statements and transactions.
pub struct Connections<C: Connect> {
    connector: Arc<C>,
    pool: Pool<Plain<C::Client>>,
    /// Where an idle connection is taken from before another one is opened, because the server may have none left.
    lender: Option<Pool<Plain<C::Client>>>,
}

/// A connection in use. Dropping it closes the connection, unless nothing is under way on it.
pub struct Used<C: Connect> {
    connector: Arc<C>,
    lent: Lent<Plain<C::Client>>,
}

impl<C: Connect> Used<C> {
    /// Returns the connection.
    pub fn connection(&self) -> &Plain<C::Client> {
        self.lent.connection()
    }

    /// Runs statements within the time limit.
    ///
    /// # Errors
    /// As [`Connect::run`]; or they took too long.
    ///
    /// # Cancel safety
    /// As [`Connect::run`].
    pub async fn run(&self, statements: &[Statement]) -> Result<Results, Failure> {
        self.within(self.connector.run(&self.connection().client, statements)).await
    }

    /// Waits for work on the connection within the time limit of a statement.
    pub(crate) async fn within<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let (clock, url) = (self.connector.runtime().clock(), self.connector.url());
        let done = clock.within(clock.now() + url.timeout, work).await;
        done.unwrap_or_else(|| Err(Failure::timeout(&url.to_string())))
    }

    /// Closes the connections to the server of this one, which must not be used any more: those in use when they come back. Returns `false`
    /// if this was done before.
    pub(crate) fn leave(&self) -> bool {
        self.lent.leave()
    }

    /// Notes whether nothing is under way on the connection.
    pub fn set_clean(&mut self, clean: bool) {
        self.lent.set_clean(clean);
    }
}

impl<C: Connect> Connections<C> {
    /// At most `most` connections at a time.
    pub(crate) fn new(connector: &Arc<C>, most: usize) -> Connections<C> {
        Connections { connector: Arc::clone(connector), pool: Pool::new(most, MAX_IDLE), lender: None }
    }

    /// One connection at a time. An idle connection of `lender` is taken over before one is opened.
    pub(crate) fn one_beside(lender: &Connections<C>) -> Connections<C> {
        let (connector, pool) = (Arc::clone(&lender.connector), lender.pool.beside(1, MAX_IDLE));
        Connections { connector, pool, lender: Some(lender.pool.clone()) }
    }

    /// Returns whether one of the connections is open.
    pub(crate) fn is_open(&self) -> bool {
        self.pool.is_open()
    }

    /// Returns a connection, first come, first served. Opens one if none is idle.
    ///
    /// # Errors
    /// All connections are busy, the client was closed, or the server cannot be reached.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn get(&self) -> Result<Used<C>, Failure> {
        let (clock, url) = (self.connector.runtime().clock(), self.connector.url());
        let until = clock.now() + url.timeout + url.connect_timeout;
        let permit = clock.within(until, self.pool.permit()).await;
        let busy = || {
            let message = "all connections of this client are busy; raise connections= in the URL, and check the server's load";
            Failure::new(ErrorKind::Unreachable, message)
        };
        self.open(permit.ok_or_else(busy)??).await
    }

    /// Returns whether all connections are in use.
    pub(crate) fn is_busy(&self) -> bool {
        self.pool.try_permit().is_none()
    }

    /// Returns an open connection that nobody uses.
    pub(crate) fn idle(&self) -> Option<Used<C>> {
        let mut permit = self.pool.try_permit()?;
        let connection = self.pool.take(&mut permit).ok()??;
        let mut lent = self.pool.lend(connection, permit);
        lent.set_clean(false);
        Some(Used { connector: Arc::clone(&self.connector), lent })
    }

    /// Runs statements in order, each in a transaction of its own. They go on if this is dropped. `leave` is called if the server must not be
    /// used any more.
    pub(crate) async fn run(
        &self,
        statements: Vec<Statement>,
        leave: impl FnOnce() + Send + 'static,
    ) -> Result<Results, Failure> {
        self.run_on(self.get().await?, statements, leave).await
    }

    /// The same on this connection.
    pub(crate) async fn run_on(
        &self,
        mut used: Used<C>,
        statements: Vec<Statement>,
        leave: impl FnOnce() + Send + 'static,
    ) -> Result<Results, Failure> {
        let running = async move {
            let results = used.run(&statements).await;
            let failure = results.as_ref().err();
            // After an error of the server the connection is as good as before. One that ended is not used again.
            used.set_clean(
                failure.is_none_or(|failure| !(failure.uncertain || failure.closed || failure.unusable)),
            );
            // Statements that only read would not find that the server accepts no writes.
            if failure.is_some_and(|failure| failure.unusable) && used.leave() {
                leave();
            }
            results
        };
        Finish::new(self.connector.runtime().clone(), running).await
    }

    async fn open(&self, mut permit: Permit) -> Result<Used<C>, Failure> {
        let mut connection = self.pool.take(&mut permit)?;
        if let (None, Some(lender)) = (&connection, &self.lender) {
            connection = lender.take(&mut permit)?;
        }
        let mut lent = match connection {
            Some(connection) => self.pool.lend(connection, permit),
            None => {
                let (connector, pool) = (Arc::clone(&self.connector), self.pool.clone());
                let opening = async move {
                    pool.note_opening(&mut permit);
                    let mut lent = pool.lend(Plain::open(&*connector).await?, permit);
                    // Clean until the caller has it: the connection of a caller that has left is for the next one.
                    lent.set_clean(true);
                    Ok(lent)
                };
                on_own_thread(self.connector.runtime(), opening).await?
            }
        };
        lent.set_clean(false);
        Ok(Used { connector: Arc::clone(&self.connector), lent })
    }

    /// Closes idle connections, and those in use when their statements end.
    pub(crate) fn close(&self) {
        self.pool.close();
    }
}
