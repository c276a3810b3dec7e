//! The removal of names that nobody has used for long. A transaction looks at few names, so that it holds up nobody.
//!
//! The token of a grant is at least its time, so the last token of a name tells when the name was last granted. The row of the empty name
//! has the greatest token of all removed names, and new names start above it: tokens grow also if the clock was set back. As its record
//! it has the name behind which the next look begins.

use rusqlite::{Connection, OptionalExtension, params};

use crate::db::Database;
use crate::db::rows::{integer, number};
use crate::error::Failure;

/// How many names a transaction looks at.
pub(crate) const BATCH: i64 = 1_000;

/// Removes the names without claims, of the next [`BATCH`] names, whose last grant was before `before` (microseconds of the wall clock).
/// Returns whether names follow. Writes nothing if there is nothing to remove and no name follows.
pub(crate) fn remove(database: &Database, before: u64) -> Result<bool, Failure> {
    let (part, greatest) = database.read(|db| {
        let part = next_part(db)?;
        let greatest = greatest_idle(db, &part, before)?;
        Ok((part, greatest))
    })?;
    let follow = part.last.is_some();
    if greatest.is_some() || follow || !part.after.is_empty() {
        database.write(|db| Ok(remove_part(db, &part, before)?))?;
    }
    Ok(follow)
}

/// Returns the greatest token of all removed names.
pub(crate) fn greatest_removed(db: &Connection) -> rusqlite::Result<u64> {
    let sql = "SELECT last FROM line WHERE resource = '' AND seq = 0";
    let last: Option<i64> = db.prepare_cached(sql)?.query_row([], |row| row.get(0)).optional()?;
    Ok(last.map_or(0, number))
}

/// Names in order: those behind `after`, up to `last`, or all.
struct Part {
    after: String,
    last: Option<String>,
}

fn next_part(db: &Connection) -> rusqlite::Result<Part> {
    let sql = "SELECT coalesce(holder, '') FROM line WHERE resource = '' AND seq = 0";
    let after: Option<String> = db.prepare_cached(sql)?.query_row([], |row| row.get(0)).optional()?;
    let after = after.unwrap_or_default();
    let sql = "SELECT resource FROM line WHERE resource > ?1 AND seq = 0 ORDER BY resource LIMIT 1 OFFSET ?2";
    let last = db.prepare_cached(sql)?.query_row(params![after, BATCH - 1], |row| row.get(0)).optional()?;
    Ok(Part { after, last })
}

macro_rules! idle {
    ($statement:literal) => {
        concat!(
            $statement,
            " FROM line WHERE resource > ?1 AND (?2 IS NULL OR resource <= ?2) AND seq = 0 AND token = 0 AND last < ?3 ",
            "AND NOT EXISTS (SELECT 1 FROM line AS claim WHERE claim.resource = line.resource AND claim.seq > 0)"
        )
    };
}

/// Returns the greatest token of the names to remove.
fn greatest_idle(db: &Connection, part: &Part, before: u64) -> rusqlite::Result<Option<i64>> {
    let values = params![part.after, part.last, integer(before)];
    db.prepare_cached(idle!("SELECT max(last)"))?.query_row(values, |row| row.get(0))
}

fn remove_part(db: &Connection, part: &Part, before: u64) -> rusqlite::Result<()> {
    let greatest = greatest_idle(db, part, before)?;
    db.prepare_cached(idle!("DELETE"))?.execute(params![part.after, part.last, integer(before)])?;
    let sql = "INSERT INTO line (resource, seq, token, last, holder) VALUES ('', 0, 0, coalesce(?1, 0), ?2) \
               ON CONFLICT (resource, seq) DO UPDATE SET last = max(last, excluded.last), holder = excluded.holder";
    db.prepare_cached(sql)?.execute(params![greatest, part.last])?;
    Ok(())
}

#[cfg(test)]
mod tests;
