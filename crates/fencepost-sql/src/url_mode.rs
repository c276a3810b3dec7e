//! The options `mode` and `table` of a URL.

use fencepost_core::{BackendUrl, Error, Result};

use crate::names::TableName;

/// How a lock is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UrlMode {
    /// By a lock of the session, which is the default.
    Session,
    /// In a lease table.
    Table,
    /// By rows that open transactions lock.
    Row,
}

impl UrlMode {
    /// Reads both options. `session` is the server's word for [`Session`](UrlMode::Session), `rows` the default table of
    /// [`Row`](UrlMode::Row).
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid).
    pub fn read(address: &BackendUrl, session: &str, rows: &str) -> Result<(UrlMode, TableName)> {
        let table = address.option("table");
        let (mode, default) = match address.option("mode") {
            None => (UrlMode::Session, TableName::DEFAULT),
            Some(mode) if mode == session => (UrlMode::Session, TableName::DEFAULT),
            Some("table") => (UrlMode::Table, TableName::DEFAULT),
            Some("row") => (UrlMode::Row, rows),
            Some(_) => return Err(Error::invalid(format!("mode is {session}, table or row"))),
        };
        if mode == UrlMode::Session && table.is_some() {
            return Err(Error::invalid(
                "table names the table of mode=table or mode=row; add mode=table, or leave it out",
            ));
        }
        Ok((mode, TableName::parse(table.unwrap_or(default))?))
    }
}
