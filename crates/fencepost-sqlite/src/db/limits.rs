//! Stored limits of permits.
//!
//! They have a table of their own. Clients of versions that do not know it share the file: they neither read nor change it.

use rusqlite::{Connection, OptionalExtension, params};

pub(crate) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS limits (
    resource TEXT PRIMARY KEY,
    permits  INTEGER NOT NULL
) WITHOUT ROWID;
";

/// Returns whether the table is there. A file of an older version lacks it.
pub(crate) fn is_made(db: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'limits'";
    db.query_row(sql, [], |row| row.get::<_, i64>(0)).map(|count| count > 0)
}

/// Returns the limit of a resource.
pub(crate) fn find(db: &Connection, resource: &str) -> rusqlite::Result<Option<u32>> {
    let sql = "SELECT permits FROM limits WHERE resource = ?1";
    db.prepare_cached(sql)?.query_row([resource], |row| row.get(0)).optional()
}

/// Stores the limit, or forgets it.
pub(crate) fn set(db: &Connection, resource: &str, limit: Option<u32>) -> rusqlite::Result<()> {
    match limit {
        Some(limit) => {
            let sql = "INSERT INTO limits (resource, permits) VALUES (?1, ?2) \
                       ON CONFLICT (resource) DO UPDATE SET permits = ?2";
            db.prepare_cached(sql)?.execute(params![resource, limit])?;
        }
        None => {
            db.prepare_cached("DELETE FROM limits WHERE resource = ?1")?.execute([resource])?;
        }
    }
    Ok(())
}
