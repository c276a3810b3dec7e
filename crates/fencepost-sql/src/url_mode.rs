//! The options `mode` and `table` of a URL.

use fencepost_core::{BackendUrl, Error, Result};

use crate::names::TableName;

/// Why `mode=row` is refused.
const NO_ROWS: &str = "there is no mode=row, because a lock that must commit with a change belongs into the transaction of that change: \
     call lock_row() of the crate fencepost-fence there, or use mode=table";

/// How a lock is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UrlMode {
    /// By a lock of the session, which is the default.
    Session,
    /// In a lease table.
    Table,
}

impl UrlMode {
    /// Reads both options. `session` is the server's word for [`Session`](UrlMode::Session).
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid).
    pub fn read(address: &BackendUrl, session: &str) -> Result<(UrlMode, TableName)> {
        let table = address.option("table");
        let mode = match address.option("mode") {
            None => UrlMode::Session,
            Some(mode) if mode == session => UrlMode::Session,
            Some("table") => UrlMode::Table,
            Some("row") => return Err(Error::invalid(NO_ROWS)),
            Some(_) => return Err(Error::invalid(format!("mode is {session} or table"))),
        };
        if mode == UrlMode::Session && table.is_some() {
            return Err(Error::invalid(
                "table names the table of mode=table; add mode=table, or leave it out",
            ));
        }
        Ok((mode, TableName::parse(table.unwrap_or(TableName::DEFAULT))?))
    }
}
