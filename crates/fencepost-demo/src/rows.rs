//! The lock of the demo `table`, as tutorials build it: a row is a lock.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, params};

use crate::shop;
use crate::stage::Failure;

/// How far the lock is built.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Recipe {
    /// A row with a unique key.
    UniqueKey,
    /// The same, and a cleaner deletes old rows.
    Cleaner,
    /// The same, and the owner of the row may lock again.
    HostAndThread,
}

impl Recipe {
    const ALL: [Recipe; 3] = [Recipe::UniqueKey, Recipe::Cleaner, Recipe::HostAndThread];

    pub(crate) fn of(name: &str) -> Option<Recipe> {
        Recipe::ALL.into_iter().find(|recipe| recipe.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Recipe::UniqueKey => "unique-key",
            Recipe::Cleaner => "cleaner",
            Recipe::HostAndThread => "host-and-thread",
        }
    }
}

/// The table, with one lock.
pub(crate) struct Rows {
    rows: Connection,
    recipe: Recipe,
}

impl Rows {
    pub(crate) fn open(file: &Path, recipe: Recipe) -> Result<Rows, Failure> {
        let rows = shop::open(file)?;
        rows.execute_batch(
            "CREATE TABLE IF NOT EXISTS locks (
                 name TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, entries INTEGER NOT NULL, updated INTEGER NOT NULL);",
        )?;
        Ok(Rows { rows, recipe })
    }

    /// Asks once.
    pub(crate) fn lock(&self, owner: &str) -> Result<bool, Failure> {
        let insert = "INSERT INTO locks VALUES ('stock/42', ?, 1, ?) ON CONFLICT DO NOTHING";
        if self.rows.execute(insert, params![owner, now()])? == 1 {
            return Ok(true);
        }
        let enter = "UPDATE locks SET entries = entries + 1, updated = ? WHERE owner = ?";
        Ok(self.recipe == Recipe::HostAndThread && self.rows.execute(enter, params![now(), owner])? == 1)
    }

    pub(crate) fn unlock(&self, owner: &str) -> Result<(), Failure> {
        self.rows.execute("UPDATE locks SET entries = entries - 1 WHERE owner = ?", [owner])?;
        self.rows.execute("DELETE FROM locks WHERE entries = 0", [])?;
        Ok(())
    }

    /// Deletes rows that are older than this, where the recipe has a cleaner.
    pub(crate) fn clean(&self, age: Duration) -> Result<(), Failure> {
        if self.recipe >= Recipe::Cleaner {
            let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
            self.rows.execute("DELETE FROM locks WHERE updated <= ?", [now() - age])?;
        }
        Ok(())
    }
}

/// The wall clock of the caller, in milliseconds.
fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}
