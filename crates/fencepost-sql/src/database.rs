//! The database as the lease table needs it: statements with parameters, and transactions. This module knows no driver.

use std::pin::Pin;
use std::sync::Arc;

use fencepost_core::Report;

use crate::failure::Failure;

/// A value of a parameter or a column.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A 64-bit integer, or `NULL`.
    Int(Option<i64>),
    /// A text, or `NULL`.
    Text(Option<Arc<str>>),
}

impl From<i64> for Value {
    fn from(value: i64) -> Value {
        Value::Int(Some(value))
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Value {
        Value::Text(Some(value.into()))
    }
}

impl From<Arc<str>> for Value {
    fn from(value: Arc<str>) -> Value {
        Value::Text(Some(value))
    }
}

/// A statement with the values of its parameters `$1`, `$2`, …
#[derive(Clone, Debug)]
pub struct Statement {
    /// The text. It never contains a value.
    pub text: Arc<str>,
    /// The values of the parameters.
    pub values: Vec<Value>,
    /// It runs often, and only in a transaction of its own. So the server may keep its plan.
    pub frequent: bool,
}

impl Statement {
    /// Makes a statement that is not frequent.
    pub fn new(text: impl Into<Arc<str>>, values: Vec<Value>) -> Statement {
        Statement { text: text.into(), values, frequent: false }
    }
}

/// Makes a statement.
pub(crate) fn with(text: &Arc<str>, values: Vec<Value>) -> Statement {
    Statement::new(Arc::clone(text), values)
}

/// Returns statements without parameters.
#[must_use]
pub fn texts(texts: &[&str]) -> Vec<Statement> {
    texts.iter().map(|text| Statement::new(*text, Vec::new())).collect()
}

/// A row of a result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row(pub Vec<Value>);

impl Row {
    /// Returns an integer; 0 where the column is `NULL`, missing or a text.
    pub fn int(&self, column: usize) -> i64 {
        self.optional(column).unwrap_or(0)
    }

    /// Returns an integer, `None` where the column is `NULL`.
    pub fn optional(&self, column: usize) -> Option<i64> {
        match self.0.get(column) {
            Some(Value::Int(value)) => *value,
            _ => None,
        }
    }

    /// Returns a text, `None` where the column is `NULL`.
    pub fn text(&self, column: usize) -> Option<&Arc<str>> {
        match self.0.get(column) {
            Some(Value::Text(value)) => value.as_ref(),
            _ => None,
        }
    }
}

/// The rows of each statement, in the order of the statements.
pub type Results = Vec<Vec<Row>>;

/// The future of a statement's reply. Its first poll sends the statement.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// The importance of a statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lane {
    /// A claim's statement. It may wait for a connection.
    Claims,
    /// A renewal. It never waits behind claims.
    Renewals,
}

/// A database with a lease table: the statements of [`Pooled`](crate::pooled::Pooled), of whichever driver. Each statement has a time limit.
pub(crate) trait Database: Send + Sync + 'static {
    /// Runs statements in order, each in a transaction of its own. The first poll sends, if a connection is idle.
    ///
    /// # Errors
    /// The first statement that failed. Those before it have taken effect.
    ///
    /// # Cancel safety
    /// May be dropped: statements that were sent run to their end in the background, and a connection that is being opened stays for
    /// later callers.
    fn run(&self, statements: Vec<Statement>, lane: Lane) -> Answer<'_, Results>;

    /// Makes sure that the connection for renewals is open. A grant that is reported before that would be lost if the server accepted no
    /// more connections.
    ///
    /// # Errors
    /// The server cannot be reached, or accepts no more connections.
    ///
    /// # Cancel safety
    /// May be dropped: a connection that is being opened stays for later callers.
    fn ready_to_renew(&self) -> Answer<'_, ()>;

    /// Makes a transaction. Nothing is sent yet.
    fn begin(&self) -> Answer<'_, Box<dyn Transaction>>;

    /// Makes sure that messages to this client arrive. Returns `false` where the database or a pooler delivers none: waiters poll then.
    fn listen(&self) -> Answer<'_, bool>;

    /// Checks the server. Nothing is changed.
    fn examine(&self) -> Answer<'_, Report>;

    /// Closes the connections.
    fn close(&self);
}

/// A transaction in which each statement sees what others have committed before it (`READ COMMITTED`). Dropping it without a commit
/// undoes it. The server ends it if its client falls silent.
pub(crate) trait Transaction: Send {
    /// Runs statements in order.
    fn run(&mut self, statements: Vec<Statement>) -> Answer<'_, Results>;

    /// Runs statements in order and commits.
    fn commit(self: Box<Self>, statements: Vec<Statement>) -> Answer<'static, Results>;
}
