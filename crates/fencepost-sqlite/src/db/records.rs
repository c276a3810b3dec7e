//! The records beside the locks. They have a table of their own, which the first record makes.
//!
//! A record expires as a detached lease does: by the clock of the boot in which it was written, and after a restart by the wall clock.

use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::db::rows::{integer, number};
use crate::process::heartbeat_file::BootId;
use crate::process::liveness::Now;

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS record (
    kind    TEXT NOT NULL,       -- what the record is for
    name    TEXT NOT NULL,
    version INTEGER NOT NULL,    -- another one with each write
    until   INTEGER NOT NULL,    -- until when it is kept, CLOCK_BOOTTIME in nanoseconds
    boot    BLOB NOT NULL,       -- the boot that `until` belongs to
    wall    INTEGER NOT NULL,    -- the same on the wall clock, in microseconds
    record  TEXT NOT NULL,       -- compact JSON
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS record_until ON record (boot, until);
";

/// How many records a sweep deletes at most, so that no claim waits for long.
pub(crate) const SWEPT: usize = 200;

/// When it is.
#[derive(Clone, Copy)]
pub(crate) struct Time {
    pub(crate) boot: BootId,
    pub(crate) now: Now,
}

/// A record as it is stored.
pub(crate) struct Kept {
    pub(crate) version: u64,
    pub(crate) text: String,
    /// For how many more nanoseconds it is kept. `None`: it has expired.
    pub(crate) left: Option<u64>,
}

impl Time {
    /// Returns how many nanoseconds remain until an end.
    fn left(self, until: u64, boot: BootId, wall: u64) -> Option<u64> {
        if boot == self.boot {
            until.checked_sub(self.now.boot)
        } else {
            wall.checked_sub(self.now.wall).map(|micros| micros.saturating_mul(1_000))
        }
    }
}

/// Returns whether the table was never made.
fn is_missing(error: &rusqlite::Error) -> bool {
    error.to_string().contains("no such table: record")
}

/// Reads a record.
pub(crate) fn read(db: &Connection, kind: &str, name: &str, time: Time) -> rusqlite::Result<Option<Kept>> {
    let sql = "SELECT version, record, until, boot, wall FROM record WHERE kind = ?1 AND name = ?2";
    let mut select = match db.prepare_cached(sql) {
        Err(error) if is_missing(&error) => return Ok(None),
        select => select?,
    };
    let kept = |row: &Row<'_>| {
        let left = time.left(number(row.get(2)?), row.get(3)?, number(row.get(4)?));
        Ok(Kept { version: number(row.get(0)?), text: row.get(1)?, left })
    };
    select.query_row([kind, name], kept).optional()
}

/// A record to be written: its version, its text, and for how many nanoseconds it is kept.
pub(crate) type New<'a> = (u64, &'a str, u64);

/// Writes a record, or deletes it, if its version is `version`. Returns whether it was.
pub(crate) fn write(
    db: &Connection,
    kind: &str,
    name: &str,
    new: Option<New<'_>>,
    version: u64,
    time: Time,
) -> rusqlite::Result<bool> {
    if new.is_some() {
        db.execute_batch(SCHEMA)?;
    }
    if read(db, kind, name, time)?.map_or(0, |kept| kept.version) != version {
        return Ok(false);
    }
    match new {
        Some((own, text, keep)) => {
            let until = integer(time.now.boot.saturating_add(keep));
            let wall = integer(time.now.wall.saturating_add(keep / 1_000));
            let sql = "INSERT OR REPLACE INTO record (kind, name, version, until, boot, wall, record) \
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
            let values = params![kind, name, integer(own), until, time.boot, wall, text];
            db.prepare_cached(sql)?.execute(values)?;
        }
        None if version == 0 => {}
        None => {
            db.prepare_cached("DELETE FROM record WHERE kind = ?1 AND name = ?2")?.execute([kind, name])?;
        }
    }
    Ok(true)
}

/// Deletes some of the expired records.
pub(crate) fn sweep(db: &Connection, time: Time) -> rusqlite::Result<()> {
    for (expired, now) in [
        ("boot = ?1 AND until < ?2", integer(time.now.boot)),
        ("boot <> ?1 AND wall < ?2", integer(time.now.wall)),
    ] {
        let sql = format!(
            "DELETE FROM record WHERE (kind, name) IN (SELECT kind, name FROM record WHERE {expired} LIMIT {SWEPT})"
        );
        db.prepare_cached(&sql)?.execute(params![time.boot, now])?;
    }
    Ok(())
}

/// Returns in how many nanoseconds the next record of this boot expires.
pub(crate) fn next(db: &Connection, time: Time) -> rusqlite::Result<Option<u64>> {
    let mut select = match db.prepare_cached("SELECT min(until) FROM record WHERE boot = ?1") {
        Err(error) if is_missing(&error) => return Ok(None),
        select => select?,
    };
    let until: Option<i64> = select.query_row([time.boot], |row| row.get(0))?;
    Ok(until.map(|until| number(until).saturating_sub(time.now.boot)))
}
