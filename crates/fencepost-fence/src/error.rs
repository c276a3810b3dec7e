//! Errors: a name that cannot be used, a token that is refused, and a lock that is held.

use std::time::Duration;

/// A name of a table or column that a statement cannot contain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} cannot be a name in SQL: {why}; use 1 to 63 bytes without control characters")]
pub struct InvalidName {
    pub(crate) name: String,
    pub(crate) why: &'static str,
}

/// A read, a write or a lock that did not take place.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error<E> {
    /// A holder with a greater token was here.
    #[error(
        "the data refuses the fencing token {token}, because a later holder of the lock was here; stop, and take the lock again"
    )]
    Refused {
        /// The token that was refused.
        token: u64,
    },
    /// The table has no row with this key.
    #[error(
        "the table has no row with this key, so nothing was read or written; check the key, or insert the row first"
    )]
    Missing,
    /// The token is greater than a `BIGINT` can be. No engine of fencepost gives such a token.
    #[error(
        "the fencing token {token} does not fit into a BIGINT; pass the token that the lock was granted with"
    )]
    TooGreat {
        /// The token that does not fit.
        token: u64,
    },
    /// The name of a lock breaks a rule. Nothing was sent.
    #[error(
        "a lock cannot have this name: {why}; use 1 to 255 bytes of UTF-8 without control characters or white space at the ends"
    )]
    BadName {
        /// The rule that the name breaks.
        why: &'static str,
    },
    /// Another transaction had the lock for longer than [`RowLocks::wait`](crate::RowLocks::wait). This transaction goes on as it was.
    #[error(
        "the lock {name:?} is still held by another transaction after {wait:?}; try again later, or wait for longer"
    )]
    Busy {
        /// The name of the lock.
        name: String,
        /// How long it was waited for.
        wait: Duration,
    },
    /// The table of row locks is missing.
    #[error(
        "the table of row locks is missing; create it by the statement that RowLocks::create_table returns, and grant SELECT, INSERT and UPDATE on it"
    )]
    NoTable(#[source] E),
    /// The database has no row locks.
    #[error(
        "SQLite has no row locks; begin the transaction with BEGIN IMMEDIATE, which lets one writer in at a time"
    )]
    NoRowLocks,
    /// The driver failed. The write may have taken effect; repeating it with the same token is safe.
    #[error(transparent)]
    Driver(#[from] E),
}

impl<E> Error<E> {
    /// Whether a later holder was here.
    pub fn is_refused(&self) -> bool {
        matches!(self, Error::Refused { .. })
    }

    /// Whether the row does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, Error::Missing)
    }

    /// The error of a statement that found no row for this token; `exists`: the table has a row with the key.
    #[cfg(any(feature = "tokio-postgres", feature = "sqlx", feature = "rusqlite"))]
    pub(crate) fn no_row(exists: bool, token: u64) -> Error<E> {
        if exists { Error::Refused { token } } else { Error::Missing }
    }
}

/// The token as a database's `BIGINT`.
#[cfg(any(feature = "tokio-postgres", feature = "sqlx", feature = "rusqlite"))]
pub(crate) fn bigint<E>(token: u64) -> Result<i64, Error<E>> {
    i64::try_from(token).map_err(|_| Error::TooGreat { token })
}
