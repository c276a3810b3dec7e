//! The table of records: a row for each kind and name, apart from the locks. Each mode has one, with the statements of the same text.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use fencepost_core::{
    ErrorKind, Name, Record, RecordKind, RecordStore, Reply, Result, Runtime, StoredRecord,
};

use crate::database::with;
use crate::database::{Answer, Results, Statement};
use crate::dialect::{Dialect, fill};
use crate::driver::{Connect, Connections};
use crate::failure::Failure;

/// A sweep deletes at most so many records.
const SWEPT: usize = 1000;

/// Runs the statements of a table of records.
pub(crate) trait RecordStatements: Send + Sync + 'static {
    /// Runs statements in order, each in a transaction of its own. They have a time limit.
    fn run_all(&self, statements: Vec<Statement>) -> Answer<'_, Results>;

    /// Closes what only records use.
    fn close(&self) {}
}

/// The records of one client.
pub struct TableOfRecords {
    statements: Arc<dyn RecordStatements>,
    texts: Texts,
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
    delete: Arc<str>,
    version: Arc<str>,
    sweep: Arc<str>,
    next: Arc<str>,
}

impl TableOfRecords {
    pub(crate) fn new(
        statements: Arc<dyn RecordStatements>,
        dialect: &Dialect,
        table: &str,
        prefix: &str,
        engine: &'static str,
        runtime: Runtime,
    ) -> TableOfRecords {
        let now = fill(dialect.since_1970, &[dialect.now]);
        // Durable as the grant is. MySQL returns nothing.
        let end = fill(dialect.returning, &["version"]);
        let or_nothing = match dialect.upserts {
            true => "ON CONFLICT (kind, name) DO NOTHING",
            false => "ON DUPLICATE KEY UPDATE version = version",
        };
        // A record that another client has written again meanwhile stays.
        let sweep = match dialect.upserts {
            true => format!(
                "DELETE FROM {table} WHERE (kind, name) IN (SELECT kind, name FROM {table} WHERE keep_until < {now} \
                 ORDER BY keep_until LIMIT {SWEPT}) AND keep_until < {now}"
            ),
            false => {
                format!("DELETE FROM {table} WHERE keep_until < {now} ORDER BY keep_until LIMIT {SWEPT}")
            }
        };
        let texts = Texts {
            read: format!(
                "SELECT r.record, r.version, r.keep_until, {now} FROM (SELECT 1 AS one) AS one \
                 LEFT JOIN {table} r ON r.kind = $1 AND r.name = $2"
            )
            .into(),
            insert: format!(
                "INSERT INTO {table} (kind, name, version, keep_until, record) VALUES ($1, $2, $3, {now} + $4, $5) {or_nothing} {end}"
            )
            .into(),
            update: format!(
                "UPDATE {table} SET version = $3, keep_until = {now} + $4, record = $5 \
                 WHERE kind = $1 AND name = $2 AND version = $6 {end}"
            )
            .into(),
            delete: format!("DELETE FROM {table} WHERE kind = $1 AND name = $2 AND version = $3 {end}").into(),
            version: format!("SELECT version FROM {table} WHERE kind = $1 AND name = $2").into(),
            sweep: sweep.into(),
            next: format!("SELECT MIN(keep_until) - {now} FROM {table}").into(),
        };
        TableOfRecords {
            statements,
            texts,
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

    async fn read_row(&self, kind: RecordKind, name: &Name) -> Result<StoredRecord> {
        let read = with(&self.texts.read, vec![kind.as_str().into(), self.stored(name).into()]);
        let results = match self.statements.run_all(vec![read]).await {
            // Nobody has made the table, so there are no records.
            Err(failure) if failure.no_table => Results::new(),
            results => results.map_err(|failure| self.explain(failure))?,
        };
        let Some(row) = results.first().and_then(|rows| rows.first()) else {
            let now_micros = self.runtime.clock().wall_micros();
            return Ok(StoredRecord { now_micros, ..StoredRecord::default() });
        };
        let (until, now_micros) = (row.int(2).unsigned_abs(), row.int(3).unsigned_abs());
        let keep = until.checked_sub(now_micros).map(Duration::from_micros);
        let record =
            row.text(0).zip(keep).map(|(text, keep)| Record { text: text.as_ref().to_owned(), keep });
        Ok(StoredRecord { record, version: row.int(1).unsigned_abs(), now_micros })
    }

    async fn write_row(
        &self,
        kind: RecordKind,
        name: &Name,
        record: Option<&Record>,
        version: u64,
    ) -> Result<Option<u64>> {
        let (kind, stored) = (kind.as_str(), self.stored(name));
        let number = self.written.fetch_add(1, Relaxed);
        // The client's number is random. So are its versions: the one that is read is that of the last writer.
        let own = self.runtime.client().wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 1;
        let integer = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let mut values = vec![kind.into(), Arc::clone(&stored).into()];
        let look = with(&self.texts.version, values.clone());
        let write = match record {
            None => {
                values.push(integer(version).into());
                with(&self.texts.delete, values)
            }
            Some(record) => {
                // A time that no clock reaches would not fit into the column.
                let keep = u64::try_from(record.keep.as_micros()).unwrap_or(u64::MAX).min(1 << 60);
                values.extend([integer(own).into(), integer(keep).into(), (*record.text).into()]);
                if version == 0 {
                    with(&self.texts.insert, values)
                } else {
                    values.push(integer(version).into());
                    with(&self.texts.update, values)
                }
            }
        };
        let results = match self.statements.run_all(vec![write, look]).await {
            Err(failure) if failure.conflict => return Ok(None),
            results => results.map_err(|failure| self.explain(failure))?,
        };
        let found = results.last().and_then(|rows| rows.first()).map(|row| row.int(0).unsigned_abs());
        let expected = record.map(|_| own);
        Ok((found == expected).then(|| expected.unwrap_or(0)))
    }

    async fn delete_expired(&self) -> Result<Option<Duration>> {
        let statements = vec![with(&self.texts.sweep, Vec::new()), with(&self.texts.next, Vec::new())];
        let results = match self.statements.run_all(statements).await {
            Err(failure) if failure.no_table => return Ok(None),
            results => results.map_err(|failure| self.explain(failure))?,
        };
        let left = results.last().and_then(|rows| rows.first()).and_then(|row| row.optional(0));
        Ok(left.map(|left| Duration::from_micros(u64::try_from(left).unwrap_or(0))))
    }

    fn explain(&self, mut failure: Failure) -> fencepost_core::Error {
        if failure.no_table {
            failure.message = format!(
                "the table of records, {}, is missing; run fencepost schema --apply with this URL, as a user who may create tables",
                self.table
            );
        } else if failure.kind == ErrorKind::Denied {
            failure.message = format!(
                "this user may not keep records; grant the user SELECT, INSERT, UPDATE and DELETE on {}",
                self.table
            );
        }
        failure.on(self.engine)
    }
}

impl TableOfRecords {
    /// Closes what only records use.
    pub(crate) fn close(&self) {
        self.statements.close();
    }
}

impl RecordStore for TableOfRecords {
    fn read<'a>(&'a self, kind: RecordKind, name: &'a Name) -> Reply<'a, Result<StoredRecord>> {
        Reply::coming(self.read_row(kind, name))
    }

    fn write<'a>(
        &'a self,
        kind: RecordKind,
        name: &'a Name,
        record: Option<&'a Record>,
        version: u64,
    ) -> Reply<'a, Result<Option<u64>>> {
        Reply::coming(self.write_row(kind, name, record, version))
    }

    fn sweep(&self) -> Reply<'_, Result<Option<Duration>>> {
        Reply::coming(self.delete_expired())
    }
}

/// Makes the records of locks that connections hold: statements about records have a connection of their own, which is opened when it is
/// first needed. So none of them holds up a renewal. `table`: the quoted name.
pub fn records_beside<C: Connect>(
    connector: &Arc<C>,
    dialect: &Dialect,
    table: &str,
    engine: &'static str,
) -> Arc<TableOfRecords> {
    let statements = Arc::new(Connections::new(connector, 1));
    // No name and no prefix has a line break.
    let prefix = match &*connector.url().prefix {
        "" => String::new(),
        prefix => format!("{prefix}\n"),
    };
    let runtime = connector.runtime().clone();
    Arc::new(TableOfRecords::new(statements, dialect, table, &prefix, engine, runtime))
}

impl<C: Connect> RecordStatements for Connections<C> {
    fn run_all(&self, statements: Vec<Statement>) -> Answer<'_, Results> {
        Box::pin(self.run(statements, || {}))
    }

    fn close(&self) {
        Connections::close(self);
    }
}
