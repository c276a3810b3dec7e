//! The commands of Redis that the tutorials' recipes use, on a SQLite file: a demo needs no server. Each is atomic, as on Redis.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, OptionalExtension, params};

use crate::shop;
use crate::stage::Failure;

/// Keys with values that can expire.
pub(crate) struct Keys(Connection);

/// The time of a key that does not expire.
const NEVER: i64 = i64::MAX;

impl Keys {
    pub(crate) fn open(file: &Path) -> Result<Keys, Failure> {
        let keys = shop::open(file)?;
        keys.execute_batch(
            "CREATE TABLE IF NOT EXISTS keys (key TEXT PRIMARY KEY, value INTEGER NOT NULL, expires INTEGER NOT NULL);",
        )?;
        Ok(Keys(keys))
    }

    /// `SET key value NX`, with `PX` if the key is to expire.
    pub(crate) fn set_nx(&self, key: &str, value: u32, expires: Option<Duration>) -> Result<bool, Failure> {
        // A look costs no write lock of the file.
        if self.get(key)?.is_some() {
            return Ok(false);
        }
        let set = "INSERT INTO keys VALUES (?1, ?2, ?3)
                   ON CONFLICT (key) DO UPDATE SET value = ?2, expires = ?3 WHERE expires <= ?4";
        let expires = expires.map_or(NEVER, |after| now() + millis(after));
        Ok(self.0.prepare_cached(set)?.execute(params![key, value, expires, now()])? == 1)
    }

    /// `PEXPIRE key time`.
    pub(crate) fn expire(&self, key: &str, after: Duration) -> Result<(), Failure> {
        let set = "UPDATE keys SET expires = ? WHERE key = ?";
        self.0.prepare_cached(set)?.execute(params![now() + millis(after), key])?;
        Ok(())
    }

    /// `GET key`.
    pub(crate) fn get(&self, key: &str) -> Result<Option<u32>, Failure> {
        let get = "SELECT value FROM keys WHERE key = ? AND expires > ?";
        Ok(self.0.prepare_cached(get)?.query_row(params![key, now()], |row| row.get(0)).optional()?)
    }

    /// `DEL key`.
    pub(crate) fn del(&self, key: &str) -> Result<(), Failure> {
        self.0.prepare_cached("DELETE FROM keys WHERE key = ?")?.execute([key])?;
        Ok(())
    }

    /// The script of the tutorials: `DEL key` if its value is this one.
    pub(crate) fn del_if(&self, key: &str, value: u32) -> Result<(), Failure> {
        let delete = "DELETE FROM keys WHERE key = ? AND value = ?";
        self.0.prepare_cached(delete)?.execute(params![key, value])?;
        Ok(())
    }
}

fn now() -> i64 {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(NEVER)
}
