//! The table of names: the server knows only keys.

use std::collections::HashSet;
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{ErrorKind, Moment, Name, NoHistory};
use fencepost_sql::Failure;

use crate::conn::session::PostgresSession;

/// How many names a client remembers that it has written. After that it may write one again.
const MAX_SEEN: usize = 100_000;

/// How long a client remembers that it has written a name: others remove names that nobody has written for 30 days.
const SEEN: Duration = Duration::from_secs(24 * 3600);

/// When a name that could not be written is written again if it is granted: not at once, because a locked table holds up the connection.
const AGAIN: Duration = Duration::from_secs(60);

const NO_TABLE: NoHistory = NoHistory {
    kind: ErrorKind::Configuration,
    why: "the table fencepost.record is missing; run fencepost schema --apply as the owner of the database",
};

const DENIED: NoHistory = NoHistory {
    kind: ErrorKind::Denied,
    why: "this user may not write the table fencepost.record; grant the user the rights that fencepost schema names",
};

/// The names that a client writes to the table `fencepost.name`, each once a day.
#[derive(Default)]
pub(crate) struct Names(Mutex<Known>);

#[derive(Default)]
struct Known {
    seen: HashSet<i64>,
    /// When all of them are forgotten.
    until: Moment,
    pending: Vec<(i64, String)>,
    is_writing: bool,
    /// The table exists, and the user may write to it.
    is_usable: bool,
    /// Why the table `fencepost.record` cannot be used.
    no_runs: Option<NoHistory>,
}

impl Names {
    /// Asks the server for the table, and for that of runs.
    pub(crate) async fn find(&self, session: &PostgresSession) -> Result<(), Failure> {
        let writes = |table: &str| {
            let has =
                |right| format!("has_table_privilege(to_regclass('fencepost.{table}')::oid, '{right}')");
            format!("coalesce({}, false)", ["SELECT", "INSERT", "UPDATE", "DELETE"].map(has).join(" AND "))
        };
        // Without the right on the schema a look at its tables is an error.
        let row = session
            .one_row(&format!(
                "SELECT CASE WHEN usable THEN {} ELSE false END, CASE WHEN usable THEN {} ELSE false END, \
                 CASE WHEN usable THEN to_regclass('fencepost.record') IS NOT NULL ELSE to_regnamespace('fencepost') IS NOT NULL END \
                 FROM (SELECT coalesce(has_schema_privilege(to_regnamespace('fencepost')::oid, 'USAGE'), false) AS usable) AS schema",
                writes("name"),
                writes("record")
            ))
            .await?;
        let mut known = self.0.lock();
        known.is_usable = row.get(0);
        known.no_runs = match (row.get(1), row.get(2)) {
            (true, _) => None,
            (false, true) => Some(DENIED),
            (false, false) => Some(NO_TABLE),
        };
        Ok(())
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.0.lock().is_usable
    }

    pub(crate) fn no_runs(&self) -> Option<NoHistory> {
        self.0.lock().no_runs
    }

    /// Notes a name that a claim holds. `true`: the caller starts to write.
    pub(crate) fn note(&self, key: i64, name: &Name, now: Moment) -> bool {
        let mut known = self.0.lock();
        if known.seen.len() >= MAX_SEEN || now >= known.until {
            known.seen.clear();
            known.until = now + SEEN;
        }
        if !known.is_usable || known.seen.contains(&key) {
            return false;
        }
        known.seen.insert(key);
        known.pending.push((key, name.as_str().to_owned()));
        !std::mem::replace(&mut known.is_writing, true)
    }

    /// Notes that names could not be written: their next grants write them soon, and not a day later.
    pub(crate) fn note_failure(&self, now: Moment) {
        let mut known = self.0.lock();
        known.until = known.until.min(now + AGAIN);
    }

    /// Takes the names that are new, with their keys. None: the caller stops to write.
    pub(crate) fn take(&self) -> (Vec<i64>, Vec<String>) {
        let mut known = self.0.lock();
        known.is_writing = !known.pending.is_empty();
        std::mem::take(&mut known.pending).into_iter().unzip()
    }
}
