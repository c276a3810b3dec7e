//! How a lock in a transaction of the caller's own is taken.

use std::time::Duration;

use fencepost_core::{Name, Result, Token};

use crate::names::TableName;
use crate::row::statements::RowDialect;

/// How a lock in a transaction is taken.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct LockOptions {
    /// The table of the rows, as in the URL. `None`: the one that a URL without `table` means.
    pub table: Option<String>,
    /// The prefix of the name, as in the URL.
    pub prefix: String,
    /// Other shared holders may hold the lock, too.
    pub shared: bool,
    /// How long to wait for the lock. `None`: without a limit.
    pub wait: Option<Duration>,
}

impl LockOptions {
    /// Sets how long to wait for the lock.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> LockOptions {
        self.wait = Some(wait);
        self
    }

    /// Lets other shared holders hold the lock, too.
    #[must_use]
    pub fn shared(mut self) -> LockOptions {
        self.shared = true;
        self
    }

    /// Sets the table and the prefix, as in the URL.
    #[must_use]
    pub fn table(mut self, table: impl Into<String>, prefix: impl Into<String>) -> LockOptions {
        (self.table, self.prefix) = (Some(table.into()), prefix.into());
        self
    }

    /// Checks a lock's name. Returns it with the table and the name of its row.
    ///
    /// # Errors
    /// [`is_invalid`](fencepost_core::Error::is_invalid) for a bad name or table.
    pub fn row(&self, dialect: &RowDialect, name: &str) -> Result<(Name, TableName, String)> {
        let table = TableName::parse(self.table.as_deref().unwrap_or(dialect.table))?;
        let name = Name::new(name)?;
        let stored = format!("{}{name}", self.prefix);
        Ok((name, table, stored))
    }
}

/// A lock that a transaction of the caller holds: until the transaction ends, or goes back to a savepoint before the lock.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "the token has to reach what the lock protects"]
pub struct RowLock {
    name: Name,
    token: Token,
}

impl RowLock {
    /// Notes a lock that a transaction was granted.
    pub fn new(name: Name, token: u64) -> RowLock {
        RowLock { name, token: Token::new(token) }
    }

    /// The lock's name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The fencing token. It is durable when the transaction has committed: if the server crashes before that, a later lock may get the
    /// same token.
    pub fn token(&self) -> Token {
        self.token
    }
}
