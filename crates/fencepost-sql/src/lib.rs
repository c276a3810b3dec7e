//! Parts that fencepost's SQL engines share: the URL of a server, failed statements, locks that a connection holds
//! ([`connection_locks`]), and a lease table.
//!
//! # The lease table
//! It has schema, admission, renewal, removal of the dead and listing. It knows no driver: an engine gives it a [`Driver`] and a
//! [`Dialect`].
//!
//! - A lock has a row. Its token grows with each grant, and the row stays when nobody holds the lock.
//! - An exclusive claim takes the row by one statement if the row has no owner and is not contended. One statement releases it while
//!   it is not contended. Contended: the queue has rows for this name, of waiters or of holders.
//! - Extending and detaching a claim are single statements. Other changes of a lock are transactions that lock the row of the name first.
//! - A client has a row for each length of a lease: its session. Claims refer to it, and one statement renews all of them.
//! - A claim whose row has `expires` is dead after that time. Any other claim is dead once its session's row is gone.
//! - The session of a dead client is removed under its row's lock. So a renewal comes before the removal, or finds nothing.
//! - Times are those of the database's clock. A client's own deadline counts from before its renewal was sent.

mod client_name;
pub mod connection_locks;
mod database;
mod dialect;
mod driver;
mod failure;
pub mod findings;
mod listing;
mod names;
mod pool;
mod pooled;
mod records;
mod table;
mod url;
mod url_mode;

pub use client_name::{client_name, connection_name};
pub use database::{Answer, Results, Row, Statement, Value, texts};
pub use dialect::{Dialect, fill};
pub use driver::{Connect, Connections, Driver, Plain, Used, on_own_thread};
pub use failure::{Failure, named};
pub use listing::{in_order, page_of};
pub use names::{Names, TableName};
pub use pool::{Kept, Lent};
pub use records::{TableOfRecords, records_beside};
pub use table::{LeaseTable, TableOptions};
pub use url::{Credentials, ServerUrl, UrlRules, dial};
pub use url_mode::UrlMode;

/// The layout of the tables that this code reads and writes.
pub const LAYOUT: i64 = 1;
