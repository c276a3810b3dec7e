//! The rows of the table `line`.
//!
//! One table holds everything, so that a transaction changes one page. Row 0 of a resource has its last token. It is also the
//! row of an uncontended claim: a claim that finds the resource free and the queue empty takes it by one statement, and
//! releases it by another. The other rows are all other claims in order of arrival. Token 0 means that the claim waits. In row 0
//! it means that the row is free.

use std::collections::HashSet;

use fencepost_core::Mode;
use rusqlite::types::{FromSql, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension, params};

use crate::process::heartbeat_file::{BootId, ClientKey};

const PINNED: i64 = 1;
const EVICTED: i64 = 2;
const FIXED: i64 = 4;
/// A reader that waits to be the only holder. Its mode is the exclusive one meanwhile.
const UPGRADING: i64 = 8;

/// The length of the lease of a grant that its claim has not learned of.
pub(crate) const NO_LEASE: u64 = 0;

/// A claim's row, as far as admission needs it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Row {
    pub(crate) seq: i64,
    pub(crate) token: u64,
    pub(crate) id: [u8; 16],
    pub(crate) mode: Mode,
    pub(crate) process: Option<ClientKey>,
    pub(crate) ttl: u64,
    pub(crate) flags: i64,
    pub(crate) until: Option<u64>,
    pub(crate) boot: Option<BootId>,
    pub(crate) wall: Option<u64>,
    pub(crate) missing: Option<u64>,
}

impl Row {
    pub(crate) fn holds(&self) -> bool {
        self.token != 0
    }

    /// Returns whether it holds, and its claim has learned of that.
    pub(crate) fn has_lease(&self) -> bool {
        self.holds() && self.ttl != NO_LEASE
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.flags & PINNED != 0
    }

    pub(crate) fn is_evicted(&self) -> bool {
        self.flags & EVICTED != 0
    }

    pub(crate) fn is_fixed(&self) -> bool {
        self.flags & FIXED != 0
    }

    /// Returns whether it ends at `until`. A renewed lease may still have the end of a fixed one whose claim had its id.
    pub(crate) fn has_end(&self) -> bool {
        self.until.is_some() && (self.process.is_none() || self.is_fixed() || self.is_evicted())
    }

    pub(crate) fn is_upgrading(&self) -> bool {
        self.flags & UPGRADING != 0
    }

    pub(crate) fn is_exclusive(&self) -> bool {
        self.mode == Mode::Exclusive
    }

    /// Reads what `columns!` names. `None`: a free seat.
    pub(crate) fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Option<Row>> {
        let (seq, token): (i64, i64) = (row.get(0)?, row.get(1)?);
        if seq == 0 && token == 0 {
            return Ok(None);
        }
        Ok(Some(Row {
            seq,
            token: number(token),
            id: row.get(2)?,
            mode: Mode::from_number(row.get(3)?),
            process: row.get::<_, Option<ClientKey>>(4)?,
            ttl: number(row.get(5)?),
            flags: row.get(6)?,
            until: row.get::<_, Option<i64>>(7)?.map(number),
            boot: row.get::<_, Option<BootId>>(8)?,
            wall: row.get::<_, Option<i64>>(9)?.map(number),
            missing: row.get::<_, Option<i64>>(10)?.map(number),
        }))
    }

    /// The last token of the resource, which row 0 knows.
    pub(crate) fn last_token(row: &rusqlite::Row<'_>) -> rusqlite::Result<Option<u64>> {
        Ok(row.get::<_, Option<i64>>(11)?.map(number))
    }
}

/// The columns that [`Row::read`] reads.
macro_rules! columns {
    () => {
        "seq, token, id, mode, process, ttl, flags, until, boot, wall, missing, last"
    };
}
pub(crate) use columns;

/// The values of a new claim's row.
pub(crate) struct NewRow<'a> {
    pub(crate) resource: &'a str,
    pub(crate) seq: i64,
    pub(crate) token: u64,
    pub(crate) id: [u8; 16],
    pub(crate) mode: Mode,
    pub(crate) process: ClientKey,
    pub(crate) ttl: u64,
    pub(crate) pinned: bool,
    /// The end of a lease that nobody renews.
    pub(crate) until: Option<u64>,
    pub(crate) fixed: bool,
    pub(crate) since: u64,
    pub(crate) record: &'a str,
}

impl NewRow<'_> {
    fn flags(&self) -> i64 {
        i64::from(self.pinned) * PINNED + i64::from(self.fixed) * FIXED
    }
}

/// Sits down with this token, if the seat is free, nobody else is in the queue and the token is a new one.
pub(crate) fn grant_if_free(db: &Connection, a: &NewRow<'_>) -> rusqlite::Result<bool> {
    macro_rules! take {
        ($unless:literal) => {
            concat!(
                "UPDATE line SET last = ?2, token = ?2, id = ?3, mode = ?4, process = ?5, ttl = ?6, flags = ?7, since = ?8, ",
                "holder = ?9, until = ?10, boot = NULL, wall = NULL, missing = NULL ",
                "WHERE resource = ?1 AND seq = 0 AND token = 0 AND last < ?2 ",
                "AND NOT EXISTS (SELECT 1 FROM line WHERE resource = ?1 AND seq > 0)",
                $unless
            )
        };
    }
    // A stored limit of permits is read with the line.
    let mut statement = db.prepare_cached(match a.mode {
        Mode::Permits { .. } => take!(" AND NOT EXISTS (SELECT 1 FROM limits WHERE resource = ?1)"),
        _ => take!(""),
    })?;
    let values = params![
        a.resource,
        integer(a.token),
        a.id,
        a.mode.to_number(),
        a.process,
        integer(a.ttl),
        a.flags(),
        integer(a.since),
        a.record,
        a.until.map(integer),
    ];
    Ok(statement.execute(values)? > 0)
}

/// Releases the grant if the queue is empty, so that no waiter has to be told.
pub(crate) fn release_if_alone(db: &Connection, resource: &str, id: &[u8; 16]) -> rusqlite::Result<bool> {
    let sql = "UPDATE line SET token = 0, id = NULL, process = NULL WHERE resource = ?1 AND seq = 0 AND id = ?2 \
               AND NOT EXISTS (SELECT 1 FROM line WHERE resource = ?1 AND seq > 0)";
    Ok(db.prepare_cached(sql)?.execute(params![resource, id])? > 0)
}

pub(crate) fn insert(db: &Connection, a: &NewRow<'_>) -> rusqlite::Result<()> {
    db.prepare_cached(
        "INSERT INTO line (resource, seq, token, id, mode, process, ttl, flags, since, holder, until) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    )?
    .execute(params![
        a.resource,
        a.seq,
        integer(a.token),
        a.id,
        a.mode.to_number(),
        a.process,
        integer(a.ttl),
        a.flags(),
        integer(a.since),
        a.record,
        a.until.map(integer),
    ])?;
    Ok(())
}

/// A grant of a claim that has a row.
pub(crate) struct Grant {
    pub(crate) seq: i64,
    pub(crate) token: u64,
    pub(crate) ttl: u64,
    pub(crate) until: Option<u64>,
    pub(crate) pinned: bool,
    pub(crate) fixed: bool,
    pub(crate) since: u64,
}

/// Makes a waiting row a holding one, or changes the lease of one that holds.
pub(crate) fn grant(db: &Connection, resource: &str, grant: &Grant) -> rusqlite::Result<()> {
    let sql = "UPDATE line SET token = ?3, ttl = ?4, until = ?5, flags = (flags & ~5) | ?6, since = ?7, missing = NULL \
               WHERE resource = ?1 AND seq = ?2";
    let Grant { seq, token, ttl, until, pinned, fixed, since } = *grant;
    db.prepare_cached(sql)?.execute(params![
        resource,
        seq,
        integer(token),
        integer(ttl),
        until.map(integer),
        i64::from(pinned) * PINNED + i64::from(fixed) * FIXED,
        integer(since)
    ])?;
    Ok(())
}

/// Remembers the last token of a resource.
pub(crate) fn set_last_token(
    db: &Connection,
    resource: &str,
    token: u64,
    known: bool,
) -> rusqlite::Result<()> {
    let sql = if known {
        "UPDATE line SET last = max(last, ?2) WHERE resource = ?1 AND seq = 0"
    } else {
        "INSERT INTO line (resource, seq, token, last) VALUES (?1, 0, 0, ?2)"
    };
    db.prepare_cached(sql)?.execute(params![resource, integer(token)])?;
    Ok(())
}

/// Removes one claim. By its id, never by the name alone: that would free a successor.
pub(crate) fn delete(db: &Connection, resource: &str, seq: i64, id: &[u8; 16]) -> rusqlite::Result<bool> {
    let sql = match seq {
        0 => {
            "UPDATE line SET token = 0, id = NULL, process = NULL WHERE resource = ?1 AND seq = ?2 AND id = ?3"
        }
        _ => "DELETE FROM line WHERE resource = ?1 AND seq = ?2 AND id = ?3",
    };
    Ok(db.prepare_cached(sql)?.execute(params![resource, seq, id])? > 0)
}

/// Removes all claims of a dead process. Row 0 stays: it has the last token, and a later one must be greater.
pub(crate) fn delete_all_of(db: &Connection, resource: &str, process: ClientKey) -> rusqlite::Result<()> {
    for sql in [
        "UPDATE line SET token = 0, id = NULL, process = NULL WHERE resource = ?1 AND seq = 0 AND process = ?2",
        "DELETE FROM line WHERE resource = ?1 AND seq > 0 AND process = ?2",
    ] {
        db.prepare_cached(sql)?.execute(params![resource, process])?;
    }
    Ok(())
}

/// The row of a claim, wherever it stands in the line.
pub(crate) fn find(db: &Connection, resource: &str, id: &[u8; 16]) -> rusqlite::Result<Option<Row>> {
    let sql = concat!("SELECT ", columns!(), " FROM line WHERE resource = ?1 AND id = ?2");
    let row = db.prepare_cached(sql)?.query_row(params![resource, id], Row::read).optional()?;
    Ok(row.flatten())
}

/// Returns the ids of a process's claims, which hold or wait.
pub(crate) fn ids_of(
    db: &Connection,
    resource: &str,
    process: ClientKey,
) -> rusqlite::Result<HashSet<[u8; 16]>> {
    let sql = "SELECT id FROM line WHERE resource = ?1 AND process = ?2";
    db.prepare_cached(sql)?.query_map(params![resource, process], |row| row.get(0))?.collect()
}

/// The row of the grant with this token.
pub(crate) fn find_token(db: &Connection, resource: &str, token: u64) -> rusqlite::Result<Option<Row>> {
    let sql = concat!("SELECT ", columns!(), " FROM line WHERE resource = ?1 AND token = ?2 AND token > 0");
    let row = db.prepare_cached(sql)?.query_row(params![resource, integer(token)], Row::read).optional()?;
    Ok(row.flatten())
}

/// Marks a reader that waits to be the only holder: nobody else is admitted.
pub(crate) fn mark_upgrading(db: &Connection, resource: &str, seq: i64) -> rusqlite::Result<()> {
    let sql = "UPDATE line SET mode = 0, flags = flags | 8 WHERE resource = ?1 AND seq = ?2";
    db.prepare_cached(sql)?.execute(params![resource, seq])?;
    Ok(())
}

/// Makes the only holder a writer with this token.
pub(crate) fn make_exclusive(db: &Connection, resource: &str, seq: i64, token: u64) -> rusqlite::Result<()> {
    let sql = "UPDATE line SET mode = 0, flags = flags & ~8, token = ?3 WHERE resource = ?1 AND seq = ?2";
    db.prepare_cached(sql)?.execute(params![resource, seq, integer(token)])?;
    Ok(())
}

/// Makes a holder a reader with this token, without a mark.
pub(crate) fn make_shared(db: &Connection, resource: &str, seq: i64, token: u64) -> rusqlite::Result<()> {
    let sql = "UPDATE line SET mode = 1, flags = flags & ~8, token = ?3 WHERE resource = ?1 AND seq = ?2";
    db.prepare_cached(sql)?.execute(params![resource, seq, integer(token)])?;
    Ok(())
}

/// Notes that a row was evicted. Its mark of an upgrade ends. Unless it [has an end](Row::has_end), that is written in a second transaction,
/// see [`crate::operator::evict`].
pub(crate) fn mark_evicted(db: &Connection, resource: &str, seq: i64) -> rusqlite::Result<()> {
    let sql = "UPDATE line SET mode = CASE WHEN flags & 8 THEN 1 ELSE mode END, flags = (flags | 2) & ~8, \
               until = CASE WHEN flags & 6 OR process IS NULL THEN until END \
               WHERE resource = ?1 AND seq = ?2";
    db.prepare_cached(sql)?.execute(params![resource, seq])?;
    Ok(())
}

pub(crate) fn set_missing(
    db: &Connection,
    resource: &str,
    seq: i64,
    since: Option<u64>,
) -> rusqlite::Result<()> {
    let sql = "UPDATE line SET missing = ?3 WHERE resource = ?1 AND seq = ?2";
    db.prepare_cached(sql)?.execute(params![resource, seq, since.map(integer)])?;
    Ok(())
}

/// Removes the notes that the side file of a process is missing.
pub(crate) fn forget_missing(db: &Connection, process: ClientKey) -> rusqlite::Result<()> {
    let sql = "UPDATE line SET missing = NULL WHERE process = ?1 AND missing IS NOT NULL";
    db.prepare_cached(sql)?.execute([process])?;
    Ok(())
}

pub(crate) fn set_until(
    db: &Connection,
    resource: &str,
    seq: i64,
    until: u64,
    boot: BootId,
) -> rusqlite::Result<()> {
    let sql = "UPDATE line SET until = ?3, boot = ?4 WHERE resource = ?1 AND seq = ?2";
    db.prepare_cached(sql)?.execute(params![resource, seq, integer(until), boot])?;
    Ok(())
}

/// SQLite's integers are signed; times and tokens stay far below 2^63.
pub(crate) fn integer(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

pub(crate) fn number(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

impl ToSql for ClientKey {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        self.0.to_sql()
    }
}

impl FromSql for ClientKey {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<ClientKey> {
        <[u8; 16]>::column_result(value).map(ClientKey)
    }
}

impl ToSql for BootId {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        self.0.to_sql()
    }
}

impl FromSql for BootId {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<BootId> {
        <[u8; 16]>::column_result(value).map(BootId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_survive_the_table() {
        for mode in [
            Mode::Exclusive,
            Mode::Shared,
            Mode::Permits { n: 1, of: 1 },
            Mode::Permits { n: 3, of: 7 },
            Mode::Permits { n: u32::MAX, of: u32::MAX },
        ] {
            assert_eq!(Mode::from_number(mode.to_number()), mode);
        }
    }
}
