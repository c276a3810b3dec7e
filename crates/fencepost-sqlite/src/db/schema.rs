//! The layout of the database: the table of the lines, and one of [limits]. Another one is made where it is wanted: see
//! [`crate::db::records`].

use std::path::Path;

use fencepost_core::ErrorKind;
use rusqlite::Connection;

use crate::db::{failure, limits, transaction};
use crate::error::Failure;

/// The layout that this code reads and writes, as `PRAGMA user_version`.
const VERSION: i64 = 2;

/// `PRAGMA application_id`: "fnce".
const APPLICATION: i64 = 0x666e_6365;

const SCHEMA: &str = "
CREATE TABLE line (
    resource TEXT NOT NULL,
    seq      INTEGER NOT NULL,   -- 0: history and seat of the resource; above: its claims in order of arrival
    token    INTEGER NOT NULL,   -- of the grant; 0 while the claim waits, or nobody has the seat
    id       BLOB,               -- the claim's id, a secret
    mode     INTEGER,            -- 0 exclusive, 1 shared, else permits: n * 2^32 + of
    process  BLOB,               -- names a side file; NULL: a detached lease
    ttl      INTEGER,            -- length of the lease in nanoseconds; 0 if the claim has not learned of its grant
    flags    INTEGER,            -- 1 pinned, 2 evicted, 4 fixed lease
    since    INTEGER,            -- wall clock, microseconds: when it was granted, or began to wait
    holder   TEXT,               -- the claim's record: who, and why
    until    INTEGER,            -- a fixed end, CLOCK_BOOTTIME in nanoseconds
    boot     BLOB,               -- detached: the boot that `until` belongs to
    wall     INTEGER,            -- detached: the same end on the wall clock, for after a restart of the machine
    missing  INTEGER,            -- since when (CLOCK_BOOTTIME) the side file is not to be found
    last     INTEGER,            -- row 0: the last token that was granted; of the empty name: the greatest one of removed names
    PRIMARY KEY (resource, seq)
) WITHOUT ROWID;
";

/// Makes the table in an empty file, and checks that it is ours in any other.
pub(crate) fn install(db: &Connection, path: &Path) -> Result<(), Failure> {
    // One state of the file: between two looks another process could make the table.
    if transaction(db, "BEGIN", |db| is_ours(db, path))? {
        return Ok(());
    }
    // Small pages: a transaction writes one or two of them, and half of its time goes with their size.
    db.pragma_update(None, "page_size", 1024)?;
    let mode: String = db.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if !mode.eq_ignore_ascii_case("wal") {
        return Err(failure(
            ErrorKind::Configuration,
            format!(
                "{} cannot be put into WAL mode; its disk cannot share memory between processes",
                path.display()
            ),
        ));
    }
    transaction(db, "BEGIN IMMEDIATE", |db| {
        // Somebody else may have been faster.
        if !is_ours(db, path)? {
            db.execute_batch(SCHEMA)?;
            db.execute_batch(limits::SCHEMA)?;
            db.pragma_update(None, "application_id", APPLICATION)?;
            db.pragma_update(None, "user_version", VERSION)?;
        }
        Ok(())
    })
}

/// `false`: the file is empty.
fn is_ours(db: &Connection, path: &Path) -> Result<bool, Failure> {
    let get = |pragma: &str| db.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let (application, version) = (get("application_id")?, get("user_version")?);
    if application == APPLICATION && version == VERSION {
        let mode: String = db.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
        return Ok(mode.eq_ignore_ascii_case("wal"));
    }
    if application == APPLICATION {
        return Err(failure(
            ErrorKind::Configuration,
            format!(
                "{} has layout {version}, this program knows {VERSION}; use one version of fencepost for all who share it",
                path.display()
            ),
        ));
    }
    let tables: i64 = db.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
    if tables == 0 && application == 0 {
        return Ok(false);
    }
    Err(failure(
        ErrorKind::Configuration,
        format!("{} is the database of another program; give the locks a file of their own", path.display()),
    ))
}
