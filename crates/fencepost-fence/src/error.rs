//! Errors: a name that cannot be used, and a token that is refused.

/// A name of a table or column that a statement cannot contain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} cannot be a name in SQL: {why}; use 1 to 63 bytes without control characters")]
pub struct InvalidName {
    pub(crate) name: String,
    pub(crate) why: &'static str,
}

/// A read or a write that did not take place.
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
