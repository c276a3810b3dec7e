//! The acts of all leaders of the demo `leader`, in a SQLite file.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, params};

use crate::shop;
use crate::stage::Failure;

pub(crate) struct Acts(Connection);

impl Acts {
    pub(crate) fn make(file: &Path) -> Result<Acts, Failure> {
        let acts = shop::open(file)?;
        acts.execute_batch(
            "CREATE TABLE acts (candidate INTEGER NOT NULL, term INTEGER NOT NULL);
             CREATE TABLE ends (term INTEGER PRIMARY KEY, told INTEGER);",
        )?;
        Ok(Acts(acts))
    }

    pub(crate) fn open(file: &Path) -> Result<Acts, Failure> {
        Ok(Acts(shop::open(file)?))
    }

    /// Acts under this term. `false`: a later term has acted, and nothing is done.
    pub(crate) fn act(&self, candidate: u32, term: i64) -> Result<bool, Failure> {
        let act = "INSERT INTO acts SELECT ?1, ?2 WHERE NOT EXISTS (SELECT 1 FROM acts WHERE term > ?2)";
        Ok(self.0.prepare_cached(act)?.execute(params![candidate, term])? == 1)
    }

    /// Counts the acts under this term.
    pub(crate) fn count(&self, term: i64) -> Result<u64, Failure> {
        let mut count = self.0.prepare_cached("SELECT count(*) FROM acts WHERE term = ?")?;
        Ok(count.query_row([term], |row| row.get::<_, i64>(0))?.unsigned_abs())
    }

    /// Returns the candidate and term of the first act under a later term.
    pub(crate) fn leader_after(&self, term: i64) -> Result<Option<(u32, i64)>, Failure> {
        let mut find = self.0.prepare_cached("SELECT candidate, term FROM acts WHERE term > ? LIMIT 1")?;
        Ok(find.query_row([term], |row| Ok((row.get(0)?, row.get(1)?))).optional()?)
    }

    /// Asks the leader of this term to stop itself.
    pub(crate) fn stop(&self, term: i64) -> Result<(), Failure> {
        self.0.execute("INSERT OR IGNORE INTO ends VALUES (?, NULL)", [term])?;
        Ok(())
    }

    /// Returns whether the leader of this term is asked to stop itself.
    pub(crate) fn is_to_stop(&self, term: i64) -> Result<bool, Failure> {
        let mut find = self.0.prepare_cached("SELECT 1 FROM ends WHERE term = ? AND told IS NULL")?;
        Ok(find.exists([term])?)
    }

    /// Notes that the leader of this term has stepped down: because it was told of its loss, or because its act was refused.
    pub(crate) fn step_down(&self, term: i64, told: bool) -> Result<(), Failure> {
        self.0.execute("INSERT OR REPLACE INTO ends VALUES (?, ?)", params![term, told])?;
        Ok(())
    }

    /// Returns whether the leader of this term was told of its loss. `None`: it has not stepped down.
    pub(crate) fn was_told(&self, term: i64) -> Result<Option<bool>, Failure> {
        let mut find = self.0.prepare_cached("SELECT told FROM ends WHERE term = ?")?;
        Ok(find.query_row([term], |row| row.get(0)).optional()?.flatten())
    }
}
