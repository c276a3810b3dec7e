//! The database as row locks need it. This module knows no driver.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::Report;
use futures_util::future::BoxFuture;

use crate::database::{Answer, Results, Row, Statement};

/// A database whose transactions lock rows. Each statement has a time limit, if nothing else is said.
pub(crate) trait RowDatabase: Send + Sync + 'static {
    /// Runs statements in order, each in a transaction of its own, on a connection that has no lock.
    ///
    /// # Errors
    /// The first statement that failed. Those before it have taken effect.
    ///
    /// # Cancel safety
    /// May be dropped: statements that were sent run to their end in the background, and a connection that is being opened stays for
    /// later callers.
    fn run(&self, statements: Vec<Statement>) -> Answer<'_, Results>;

    /// Begins a transaction on a connection of its own, in which each statement sees what others have committed before it. The server
    /// ends it after `idle` without a statement. Runs `first` in it, and [keeps](RowTransaction::keep) the locks of these statements.
    ///
    /// # Errors
    /// A refusal if the client has no connection left.
    ///
    /// # Cancel safety
    /// May be dropped: the connection is closed.
    fn begin(&self, idle: Duration, first: Vec<Statement>) -> Answer<'_, (Arc<dyn RowTransaction>, Results)>;

    /// Checks the server. Nothing is changed.
    fn examine(&self) -> Answer<'_, Report>;

    /// Closes the connections that have no lock, and opens none any more.
    fn close(&self);
}

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

/// An open transaction. Dropping it closes its connection, which undoes it.
pub trait RowTransaction: Send + Sync + 'static {
    /// Returns the number of its connection and its own number, as the server knows them.
    fn numbers(&self) -> (i64, i64);

    /// Runs a statement that waits for a lock. It has no time limit: [`end`](RowTransaction::end) ends it. The first poll sends.
    fn wait(&self, statement: Statement) -> Answer<'_, Vec<Row>>;

    /// Ends a wait and undoes the transaction. `false`: what is left of it is not known, and the connection has to be closed.
    fn cancel<'a>(&'a self, waiting: Answer<'a, Vec<Row>>) -> BoxFuture<'a, bool>;

    /// Makes the locks so far last: a statement that fails from now on does not free them. The idle time starts again.
    fn keep(&self) -> Answer<'_, ()>;

    /// Runs a statement, so that the idle time starts again. It becomes `idle` if that is longer.
    ///
    /// # Errors
    /// A refusal if the idle time cannot be changed any more.
    fn renew(&self, idle: Duration, look: Statement) -> Answer<'_, Renewed>;

    /// Runs a last statement and commits.
    ///
    /// # Errors
    /// A failure that is not uncertain: nothing was committed.
    fn commit(&self, last: String) -> Answer<'_, ()>;

    /// Undoes the transaction, then runs a statement on its own.
    fn roll_back(&self, then: String) -> Answer<'_, ()>;

    /// Closes the connection, and cancels a statement that runs on it.
    fn end(&self);

    /// Returns whether the connection has ended, or belongs to another transaction.
    fn has_ended(&self) -> bool;

    /// Completes when the connection ends.
    fn ended(&self) -> BoxFuture<'static, ()>;

    /// Returns the driver's view of the transaction: a type of the engine's crate, to be downcast to.
    fn native(self: Arc<Self>) -> Option<Box<dyn Any + Send>>;
}
