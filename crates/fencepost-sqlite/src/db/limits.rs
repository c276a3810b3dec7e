//! Stored limits of permits.

use rusqlite::{Connection, OptionalExtension, params};

pub(crate) const SCHEMA: &str = "
CREATE TABLE limits (
    resource TEXT PRIMARY KEY,
    permits  INTEGER NOT NULL
) WITHOUT ROWID;
";

/// Returns the limit of a resource.
pub(crate) fn find(db: &Connection, resource: &str) -> rusqlite::Result<Option<u32>> {
    let mut select = db.prepare_cached("SELECT permits FROM limits WHERE resource = ?1")?;
    select.query_row([resource], |row| row.get(0)).optional()
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
