//! The table of runs: a row for each name, apart from the locks. Each mode has one, with the statements of the same text.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fencepost_core::{ErrorKind, Name, Reply, Result, RunRecord, RunStore, Runtime, StoredRuns};

use crate::database::with;
use crate::database::{Answer, Results, Statement};
use crate::dialect::{Dialect, fill};
use crate::driver::{Connect, Connections};
use crate::failure::Failure;

/// Runs the statements of a table of runs.
pub(crate) trait RunStatements: Send + Sync + 'static {
    /// Runs statements in order, each in a transaction of its own. They have a time limit.
    fn run_all(&self, statements: Vec<Statement>) -> Answer<'_, Results>;

    /// Closes what only runs use.
    fn close(&self) {}
}

/// The runs of one client.
pub(crate) struct TableOfRuns {
    statements: Arc<dyn RunStatements>,
    texts: Arc<Texts>,
    engine: &'static str,
    runtime: Runtime,
    /// The quoted name of the table.
    table: Arc<str>,
    /// The prefix of the client's names in the table.
    prefix: Arc<str>,
    written: AtomicU64,
}

struct Texts {
    read: Arc<str>,
    insert: Arc<str>,
    update: Arc<str>,
    version: Arc<str>,
    old: Arc<str>,
    delete: Arc<str>,
}

impl TableOfRuns {
    pub(crate) fn new(
        statements: Arc<dyn RunStatements>,
        dialect: &Dialect,
        table: &str,
        prefix: &str,
        engine: &'static str,
        runtime: Runtime,
    ) -> TableOfRuns {
        let now = fill(dialect.since_1970, &[dialect.now]);
        // Durable as the grant is. MySQL returns nothing.
        let end = fill(dialect.returning, &["version"]);
        let or_nothing = match dialect.upserts {
            true => "ON CONFLICT (name) DO NOTHING",
            false => "ON DUPLICATE KEY UPDATE version = version",
        };
        let texts = Texts {
            read: format!(
                "SELECT r.runs, r.version, {now} FROM (SELECT 1 AS one) AS one LEFT JOIN {table} r ON r.name = $1"
            )
            .into(),
            insert: format!(
                "INSERT INTO {table} (name, version, keep_until, runs) VALUES ($1, $2, $3, $4) {or_nothing} {end}"
            )
            .into(),
            update: format!(
                "UPDATE {table} SET version = $2, keep_until = $3, runs = $4 WHERE name = $1 AND version = $5 {end}"
            )
            .into(),
            version: format!("SELECT version FROM {table} WHERE name = $1").into(),
            old: format!("SELECT name, version FROM {table} WHERE keep_until < {now} LIMIT 100").into(),
            delete: format!("DELETE FROM {table} WHERE name = $1 AND version = $2").into(),
        };
        TableOfRuns {
            statements,
            texts: Arc::new(texts),
            engine,
            runtime,
            table: table.into(),
            prefix: prefix.into(),
            written: AtomicU64::new(0),
        }
    }

    fn stored(&self, name: &Name) -> Arc<str> {
        [&*self.prefix, name.as_str()].concat().into()
    }

    async fn read_row(&self, name: &Name) -> Result<StoredRuns> {
        let read = with(&self.texts.read, vec![self.stored(name).into()]);
        let results = match self.statements.run_all(vec![read]).await {
            // Nobody has made the table, so there are no runs.
            Err(failure) if failure.no_table => Results::new(),
            results => results.map_err(|failure| self.explain(failure))?,
        };
        let Some(row) = results.first().and_then(|rows| rows.first()) else {
            let now_micros = self.runtime.clock().wall_micros();
            return Ok(StoredRuns { now_micros, ..StoredRuns::default() });
        };
        Ok(StoredRuns {
            record: row.text(0).map(|text| RunRecord::read(text)).transpose()?,
            version: row.int(1).unsigned_abs(),
            now_micros: row.int(2).unsigned_abs(),
        })
    }

    async fn write_row(&self, name: &Name, record: &RunRecord, version: u64) -> Result<Option<u64>> {
        let stored = self.stored(name);
        let number = self.written.fetch_add(1, Relaxed);
        // The client's number is random. So are its versions: the one that is read is that of the last writer.
        let own = self.runtime.client().wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 1;
        let integer = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let mut values = vec![
            Arc::clone(&stored).into(),
            integer(own).into(),
            integer(record.keep_until).into(),
            (*record.to_text()).into(),
        ];
        let write = if version == 0 {
            with(&self.texts.insert, values)
        } else {
            values.push(integer(version).into());
            with(&self.texts.update, values)
        };
        let look = with(&self.texts.version, vec![stored.into()]);
        let results = match self.statements.run_all(vec![write, look]).await {
            Err(failure) if failure.conflict => return Ok(None),
            results => results.map_err(|failure| self.explain(failure))?,
        };
        let found = results.last().and_then(|rows| rows.first()).map(|row| row.int(0).unsigned_abs());
        if StoredRuns::is_followed_by_sweep(own) {
            self.runtime.spawn(sweep(Arc::clone(&self.statements), Arc::clone(&self.texts)));
        }
        Ok(found.filter(|found| *found == own))
    }

    fn explain(&self, mut failure: Failure) -> fencepost_core::Error {
        if failure.no_table {
            failure.message = format!(
                "the table of runs, {}, is missing; run fencepost schema --apply with this URL, as a user who may create tables",
                self.table
            );
        } else if failure.kind == ErrorKind::Denied {
            failure.message = format!(
                "this user may not keep runs; grant the user SELECT, INSERT, UPDATE and DELETE on {}",
                self.table
            );
        }
        failure.on(self.engine)
    }
}

/// Deletes rows whose time is over.
async fn sweep(statements: Arc<dyn RunStatements>, texts: Arc<Texts>) {
    let old = statements.run_all(vec![with(&texts.old, Vec::new())]).await;
    let rows = old.unwrap_or_default().into_iter().flatten();
    let deletes: Vec<_> = rows
        .filter_map(|row| Some(with(&texts.delete, vec![row.text(0)?.clone().into(), row.int(1).into()])))
        .collect();
    if !deletes.is_empty()
        && let Err(failure) = statements.run_all(deletes).await
    {
        tracing::debug!(%failure, "old runs are deleted later");
    }
}

impl RunStore for TableOfRuns {
    fn read<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<StoredRuns>> {
        Reply::coming(self.read_row(name))
    }

    fn write<'a>(
        &'a self,
        name: &'a Name,
        record: &'a RunRecord,
        version: u64,
    ) -> Reply<'a, Result<Option<u64>>> {
        Reply::coming(self.write_row(name, record, version))
    }

    fn close(&self) {
        self.statements.close();
    }
}

/// Makes the runs of locks that connections hold: statements about runs have a connection of their own, which is opened when it is first
/// needed. So none of them holds up a renewal. `table`: the quoted name.
pub fn runs_beside<C: Connect>(
    connector: &Arc<C>,
    dialect: &Dialect,
    table: &str,
    engine: &'static str,
) -> Arc<dyn RunStore> {
    let statements = Arc::new(Connections::new(connector, 1));
    // No name and no prefix has a line break.
    let prefix = match &*connector.url().prefix {
        "" => String::new(),
        prefix => format!("{prefix}\n"),
    };
    let runtime = connector.runtime().clone();
    Arc::new(TableOfRuns::new(statements, dialect, table, &prefix, engine, runtime))
}

impl<C: Connect> RunStatements for Connections<C> {
    fn run_all(&self, statements: Vec<Statement>) -> Answer<'_, Results> {
        Box::pin(self.run(statements))
    }

    fn close(&self) {
        Connections::close(self);
    }
}
