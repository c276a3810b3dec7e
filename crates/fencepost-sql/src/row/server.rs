//! The engine's part of row locks, and the connections of a client.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use fencepost_core::{ErrorKind, Finish, Moment, Report};
use futures_util::future::BoxFuture;

use crate::database::{Answer, Results, Row, Statement};
use crate::driver::{Connect, Connections};
use crate::failure::Failure;
use crate::row::transaction::OpenTransaction;

/// How many connections a client opens beside those that hold or wait: for notes, tokens and operators.
const SHARED: usize = 2;

/// The outcome of a transaction's renewal.
#[derive(Debug)]
pub enum Renewed {
    /// The transaction is open. The rows of the statement.
    Open(Vec<Row>),
    /// A statement of its user failed. It can only be rolled back, and keeps its locks until then.
    Failed,
    /// A statement of its user ended it. Its locks are free.
    Over,
}

/// A server whose transactions lock rows.
pub trait RowServer: Connect + Sized {
    /// Returns the statements that begin a transaction (`READ COMMITTED`), which the server ends after `idle` without a statement. The
    /// last one returns the numbers of the connection and of the transaction, and the server's start if that is needed. `number` is one that no other transaction has.
    fn begin(&self, idle: Duration, number: i64) -> Vec<Statement>;

    /// Returns the statements that make the locks so far last: a statement that fails later does not free them.
    fn keep(&self) -> Vec<Statement>;

    /// Returns the statements that come before one that waits for a lock.
    fn before_wait(&self) -> Vec<Statement>;

    /// Returns the statement that makes the server end the transaction after `idle` without a statement.
    fn set_idle(&self, idle: Duration) -> Statement;

    /// Returns the statement that interrupts the one that a connection runs.
    fn interrupt(&self, connection: i64) -> Statement;

    /// Renews a transaction, as [`OpenTransaction::renew`] says.
    fn renew(open: &OpenTransaction<Self>, idle: Duration, look: Statement) -> Answer<'_, Renewed>;

    /// Commits a transaction if it is still the one with the lock, and runs the statement `last`, until `limit`.
    ///
    /// # Errors
    /// A failure that is not uncertain: nothing was committed.
    fn commit(open: &OpenTransaction<Self>, last: String, limit: Moment) -> Answer<'_, ()>;

    /// Undoes a transaction and runs the statement `then`, until `limit`.
    fn roll_back(open: &OpenTransaction<Self>, then: String, limit: Moment) -> Answer<'_, ()>;

    /// Makes the server end what runs on a connection that is about to be closed.
    fn kill(open: &OpenTransaction<Self>) -> BoxFuture<'static, ()>;

    /// Returns the holder's view of the transaction: a type of the engine's crate.
    fn native(open: &Arc<OpenTransaction<Self>>) -> Option<Box<dyn Any + Send>>;

    /// Names the tables and rights of row locks in a failure of a statement, whose message is about a lease table.
    fn explain(&self, mut failure: Failure) -> Failure {
        match failure.kind {
            ErrorKind::Denied if failure.message.contains("denied a statement") => {
                failure.message = format!(
                    "{} denied a statement; grant the user the rights that `fencepost schema` with this URL names in its comments",
                    self.url()
                );
            }
            ErrorKind::Configuration if failure.message.starts_with("a lease table") => {
                failure.message =
                    "a table of mode=row is missing; run fencepost schema --apply with this URL, as a user who may create tables".to_owned();
            }
            _ => {}
        }
        failure
    }

    /// Checks the server. Nothing is changed.
    fn examine<'a>(&'a self, client: &'a Self::Client) -> Answer<'a, Report>;
}

/// The connections of a client.
pub(crate) struct Rows<S: RowServer> {
    pub(crate) server: Arc<S>,
    /// Those that hold or wait.
    claims: Arc<Connections<S>>,
    shared: Arc<Connections<S>>,
    begun: Arc<AtomicU64>,
}

impl<S: RowServer> Clone for Rows<S> {
    fn clone(&self) -> Rows<S> {
        Rows {
            server: Arc::clone(&self.server),
            claims: Arc::clone(&self.claims),
            shared: Arc::clone(&self.shared),
            begun: Arc::clone(&self.begun),
        }
    }
}

impl<S: RowServer> Rows<S> {
    pub(crate) fn new(server: Arc<S>) -> Rows<S> {
        Rows {
            claims: Arc::new(Connections::new(&server, server.url().connections)),
            shared: Arc::new(Connections::new(&server, SHARED)),
            begun: Arc::default(),
            server,
        }
    }
}

impl<S: RowServer> Rows<S> {
    /// Runs statements in order, each in a transaction of its own, on a connection that has no lock.
    ///
    /// # Errors
    /// The first statement that failed. Those before it have taken effect.
    ///
    /// # Cancel safety
    /// May be dropped: statements that were sent run to their end in the background, and a connection that is being opened stays for
    /// later callers.
    pub(crate) async fn run(&self, statements: Vec<Statement>) -> Result<Results, Failure> {
        let mut used = self.shared.get().await?;
        let server = Arc::clone(&self.server);
        let running = async move {
            let mut results = Results::with_capacity(statements.len());
            // One by one: those behind one that fails must have no effect.
            for statement in &statements {
                match used.run(std::slice::from_ref(statement)).await {
                    Ok(mut rows) => results.append(&mut rows),
                    Err(failure) => {
                        // After an error of the server the connection is as good as before. One that ended is not used again.
                        used.set_clean(!failure.uncertain);
                        return Err(server.explain(failure));
                    }
                }
            }
            used.set_clean(true);
            Ok(results)
        };
        Finish::new(self.server.runtime().clone(), running).await
    }

    /// Begins a transaction on a connection of its own, in which each statement sees what others have committed before it. The server
    /// ends it after `idle` without a statement. Runs `first` in it, and [keeps](OpenTransaction::keep) the locks of these statements.
    ///
    /// # Errors
    /// A refusal if the client has no connection left.
    ///
    /// # Cancel safety
    /// May be dropped: the connection is closed.
    pub(crate) async fn begin(
        &self,
        idle: Duration,
        first: Vec<Statement>,
    ) -> Result<(Arc<OpenTransaction<S>>, Results), Failure> {
        let connections = self.server.url().connections;
        let used = self.claims.try_get().await?.ok_or_else(|| {
            let message = format!(
                "all {connections} connections of this client hold locks or wait for them, and mode=row needs one for each; \
                 raise connections= in the URL"
            );
            Failure { transient: false, ..Failure::new(ErrorKind::Unreachable, message) }
        })?;
        // The client's number is random: those of its transactions are.
        let number = mix(self.server.runtime().client(), self.begun.fetch_add(1, Relaxed));
        OpenTransaction::begin(self, used, idle, number, first).await
    }

    /// Checks the server. Nothing is changed.
    pub(crate) async fn examine(&self) -> Result<Report, Failure> {
        let mut used = self.shared.get().await?;
        let report = used.within(self.server.examine(&used.connection().client)).await;
        used.set_clean(report.is_ok());
        report
    }

    /// Closes the connections that have no lock, and opens none any more.
    pub(crate) fn close(&self) {
        self.claims.close();
        self.shared.close();
    }
}

/// Returns the number of a client's `count`th item. It is no secret.
pub(crate) fn mix(client: u64, count: u64) -> i64 {
    let number = client.wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    i64::try_from(number >> 1).unwrap_or(i64::MAX)
}
