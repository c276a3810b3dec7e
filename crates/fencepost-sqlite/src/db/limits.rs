//! Stored limits of permits.
//!
//! They have a table of their own. A file of an older version gets it with its first limit. Clients of versions that do not know it share
//! the file: they neither read nor change it.

use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

pub(crate) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS limits (
    resource TEXT PRIMARY KEY,
    permits  INTEGER NOT NULL
) WITHOUT ROWID;
";

/// Returns a statement that reads the table. `None`: there is no table, so there are no limits.
pub(crate) fn if_made(
    prepared: rusqlite::Result<CachedStatement<'_>>,
) -> rusqlite::Result<Option<CachedStatement<'_>>> {
    match prepared {
        Err(error) if error.to_string().contains("no such table: limits") => Ok(None),
        prepared => prepared.map(Some),
    }
}

/// Returns the limit of a resource.
pub(crate) fn find(db: &Connection, resource: &str) -> rusqlite::Result<Option<u32>> {
    let sql = "SELECT permits FROM limits WHERE resource = ?1";
    match if_made(db.prepare_cached(sql))? {
        Some(mut select) => select.query_row([resource], |row| row.get(0)).optional(),
        None => Ok(None),
    }
}

/// Stores the limit, or forgets it. Makes the table if it is not there: the transaction that calls this writes.
pub(crate) fn set(db: &Connection, resource: &str, limit: Option<u32>) -> rusqlite::Result<()> {
    match limit {
        Some(limit) => {
            db.execute_batch(SCHEMA)?;
            let sql = "INSERT INTO limits (resource, permits) VALUES (?1, ?2) \
                       ON CONFLICT (resource) DO UPDATE SET permits = ?2";
            db.prepare_cached(sql)?.execute(params![resource, limit])?;
        }
        None => {
            if let Some(mut delete) = if_made(db.prepare_cached("DELETE FROM limits WHERE resource = ?1"))? {
                delete.execute([resource])?;
            }
        }
    }
    Ok(())
}
