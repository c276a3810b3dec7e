//! The runs of a resource, for claims that ask the engine to keep them.
//!
//! They have a table of their own, which the first such claim makes.

use std::sync::atomic::{AtomicBool, Ordering};

use fencepost_core::{Claim, Removed, Runs, Token};
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use crate::db::rows::{self, Row, integer, number};

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS runs (
    resource TEXT PRIMARY KEY,
    keep     INTEGER NOT NULL,   -- until when it is kept, wall clock, microseconds
    runs     TEXT NOT NULL       -- compact JSON
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS runs_keep ON runs (keep);
";

const SELECT: &str = "SELECT runs, keep FROM runs WHERE resource = ?1";

/// How a run ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Released,
    /// Nobody has learned of the grant: it was no run.
    Withdrawn,
}

/// Notes something by `note`. If that fails, it is undone, and the rest of the transaction goes on. Warns unless `warned` says that it has.
pub(crate) fn dispensable(
    db: &Connection,
    warned: &AtomicBool,
    note: impl FnOnce() -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    let run = |sql| db.prepare_cached(sql)?.execute([]).map(drop);
    run("SAVEPOINT run")?;
    let noted = note();
    if let Err(error) = &noted {
        // It fails where the error has undone the whole transaction.
        run("ROLLBACK TO run")?;
        if !warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "runs are not recorded; the locks work without that");
        }
    }
    run("RELEASE run")
}

/// Notes that the claim was granted its row `seq`.
pub(crate) fn begin(db: &Connection, claim: &Claim, token: u64, seq: i64, wall: u64) -> rusqlite::Result<()> {
    let resource = claim.want().name.as_str();
    let since = since(db, resource, seq)?.unwrap_or(wall);
    let (mut runs, keep) = read(&mut select(db)?, resource)?.unwrap_or_default();
    let before = runs.running.as_ref().map(|run| run.token.get());
    let shares = match before {
        Some(before) => rows::find_token(db, resource, before)?.is_some(),
        None => false,
    };
    runs.begin(claim.run(Token::new(token), since), |_| shares);
    write(db, claim, &runs, keep, wall)?;
    // A few at a time, so that no claim waits for long.
    let sql = "DELETE FROM runs WHERE resource IN (SELECT resource FROM runs WHERE keep < ?1 LIMIT 3)";
    db.prepare_cached(sql)?.execute([integer(wall)])?;
    Ok(())
}

/// Notes that the claim's grant has another token since an upgrade.
pub(crate) fn renumber(
    db: &Connection,
    claim: &Claim,
    before: u64,
    token: u64,
    wall: u64,
) -> rusqlite::Result<()> {
    let (mut runs, keep) = read(&mut select(db)?, claim.want().name.as_str())?.unwrap_or_default();
    runs.renumber(Token::new(before), Token::new(token));
    write(db, claim, &runs, keep, wall)
}

/// The run of a claim that is about to end: its token and, while it has a row that holds, since when.
pub(crate) struct Ending {
    token: Token,
    since: Option<u64>,
}

/// Reads what [`end`] needs, before the row is removed. `token` is that of the grant, if it was answered.
pub(crate) fn ending(db: &Connection, claim: &Claim, token: Option<u64>) -> rusqlite::Result<Option<Ending>> {
    let resource = claim.want().name.as_str();
    let row = rows::find(db, resource, &claim.id.as_u128().to_be_bytes())?.filter(Row::holds);
    let Some(token) = token.or(row.as_ref().map(|row| row.token)) else { return Ok(None) };
    let since = row.map(|row| since(db, resource, row.seq)).transpose()?.flatten();
    Ok(Some(Ending { token: Token::new(token), since }))
}

/// Notes the end of the claim's run, after `removed` was the outcome at its row.
pub(crate) fn end(
    db: &Connection,
    claim: &Claim,
    run: &Ending,
    removed: Removed,
    wall: u64,
    how: End,
) -> rusqlite::Result<()> {
    let (mut runs, keep) = read(&mut select(db)?, claim.want().name.as_str())?.unwrap_or_default();
    match how {
        End::Withdrawn => runs.cancel(run.token),
        End::Released => {
            let since = run.since.filter(|_| removed == Removed::Released);
            let held = since.map(|since| claim.run(run.token, since));
            if !runs.end(run.token, wall, claim.outcome(), held) {
                return Ok(());
            }
        }
    }
    write(db, claim, &runs, keep, wall)
}

/// Returns the runs of a resource.
pub(crate) fn of(db: &Connection, resource: &str) -> rusqlite::Result<Option<Runs>> {
    match db.prepare_cached(SELECT) {
        Ok(mut select) => Ok(read(&mut select, resource)?.map(|(runs, _)| runs)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes the table if it is not there. The transaction that calls this writes.
fn select(db: &Connection) -> rusqlite::Result<CachedStatement<'_>> {
    match db.prepare_cached(SELECT) {
        Err(error) if is_missing(&error) => {
            db.execute_batch(SCHEMA)?;
            db.prepare_cached(SELECT)
        }
        prepared => prepared,
    }
}

fn is_missing(error: &rusqlite::Error) -> bool {
    error.to_string().contains("no such table: runs")
}

fn read(select: &mut CachedStatement<'_>, resource: &str) -> rusqlite::Result<Option<(Runs, u64)>> {
    let row = select.query_row([resource], |row| Ok((row.get::<_, String>(0)?, row.get(1)?))).optional()?;
    Ok(row.map(|(text, keep)| (Runs::read(&text), number(keep))))
}

/// Writes the runs, to be kept for as long as the claim asks, and no shorter than another claim has asked before.
fn write(db: &Connection, claim: &Claim, runs: &Runs, keep: u64, wall: u64) -> rusqlite::Result<()> {
    let wished = u64::try_from(claim.history.unwrap_or_default().as_micros()).unwrap_or(u64::MAX);
    let until = wall.saturating_add(wished).max(keep);
    let sql = "INSERT OR REPLACE INTO runs (resource, keep, runs) VALUES (?1, ?2, ?3)";
    db.prepare_cached(sql)?.execute(params![claim.want().name.as_str(), integer(until), runs.to_text()])?;
    Ok(())
}

/// Since when the row holds.
fn since(db: &Connection, resource: &str, seq: i64) -> rusqlite::Result<Option<u64>> {
    let sql = "SELECT since FROM line WHERE resource = ?1 AND seq = ?2";
    let since = db.prepare_cached(sql)?.query_row(params![resource, seq], |row| row.get(0)).optional()?;
    Ok(since.map(number))
}

#[cfg(test)]
mod tests;
