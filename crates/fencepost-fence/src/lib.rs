//! Checks fencing tokens where the data is, and locks names inside of your own transactions.
//!
//! A lock is advice. A holder that is paused for longer than its lease writes late, beside its successor. Only the place of the
//! write can refuse that. So each row keeps the greatest token that it has seen, and a statement with a smaller one changes nothing.
//!
//! [`Table`] names a table and writes its statements for PostgreSQL, MySQL and SQLite. The features `tokio-postgres`, `sqlx` and
//! `rusqlite` add modules that run them. [`redis`] has scripts, [`object`] the rule for object stores. [`Table::triggers`] is for
//! programs whose statements cannot be changed. Without features the crate needs no driver.
//!
//! The token comes from `guard.token()`, from `lock.token()` in `run`, or from the variable `FENCEPOST_TOKEN`. Show it at the first
//! read, too: otherwise an earlier holder can still write between the read and the write of the present one.
//!
//! ```
//! # fn main() -> Result<(), fencepost_fence::InvalidName> {
//! use fencepost_fence::{Dialect, Table};
//!
//! let stock = Table::new("stock", "id")?;
//! assert_eq!(
//!     stock.write(Dialect::Postgres, &["pieces"])?,
//!     r#"UPDATE "stock" SET "pieces" = $3, "token" = $2 WHERE "id" = $1 AND "token" <= $2"#
//! );
//! # Ok(())
//! # }
//! ```
//!
//! A lock that has to commit with a change belongs into the transaction of that change. [`RowLocks`] describes `lock_row`, which takes
//! such a lock and returns its token. It needs no other part of fencepost.
//!
//! The crate does not stop a writer whose statements have no token and whose table has no
//! trigger. Tokens of two engines cannot be compared.

#![forbid(unsafe_code)]
// docs.rs names the feature of each item.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod dialect;
mod error;
#[cfg_attr(
    not(any(feature = "mysql_async", feature = "sqlx", feature = "tokio-postgres")),
    expect(dead_code, reason = "the drivers use it")
)]
mod lock_row;
#[cfg(feature = "mysql_async")]
pub mod mysql_async;
pub mod object;
pub mod redis;
#[cfg(feature = "rusqlite")]
pub mod rusqlite;
#[cfg(feature = "sqlx")]
pub mod sqlx;
mod statements;
mod table;
#[cfg(feature = "tokio-postgres")]
pub mod tokio_postgres;
mod trigger;

pub use dialect::Dialect;
pub use error::{Error, InvalidName};
pub use lock_row::RowLocks;
pub use table::Table;
