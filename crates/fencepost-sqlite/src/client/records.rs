//! The records beside the locks, as core asks for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use fencepost_core::{Name, Record, RecordKind, RecordStore, Reply, Result, StoredRecord};

use crate::client::{BUSY_TIMEOUT, Client};
use crate::db::records::{self, Time};

/// How many records this process has written.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// The records of one client.
pub(crate) struct SqliteRecords {
    client: Arc<Client>,
}

impl SqliteRecords {
    pub(crate) fn new(client: Arc<Client>) -> SqliteRecords {
        SqliteRecords { client }
    }

    fn time(&self) -> Time {
        Time { boot: self.client.boot, now: self.client.now() }
    }
}

impl RecordStore for SqliteRecords {
    fn read<'a>(&'a self, kind: RecordKind, name: &'a Name) -> Reply<'a, Result<StoredRecord>> {
        self.client.retry_while_busy(BUSY_TIMEOUT, move || {
            self.client.check_in_place()?;
            let time = self.time();
            let kept =
                self.client.database.read(|db| Ok(records::read(db, kind.as_str(), name.as_str(), time)?))?;
            let now_micros = time.now.wall;
            let Some(kept) = kept else { return Ok(StoredRecord { now_micros, ..StoredRecord::default() }) };
            let record = kept.left.map(|left| Record { text: kept.text, keep: Duration::from_nanos(left) });
            Ok(StoredRecord { record, version: kept.version, now_micros })
        })
    }

    fn write<'a>(
        &'a self,
        kind: RecordKind,
        name: &'a Name,
        record: Option<&'a Record>,
        version: u64,
    ) -> Reply<'a, Result<Option<u64>>> {
        // The client's number is random, and so are the versions.
        let number = WRITTEN.fetch_add(1, Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let own = (self.client.runtime.client().wrapping_add(number) >> 1).max(1);
        self.client.retry_while_busy(BUSY_TIMEOUT, move || {
            // A record in a file that was removed would not be there for others.
            self.client.check_in_place()?;
            let time = self.time();
            let new = record.map(|record| {
                let keep = u64::try_from(record.keep.as_nanos()).unwrap_or(u64::MAX);
                (own, record.text.as_str(), keep)
            });
            let written = self
                .client
                .database
                .write(|db| Ok(records::write(db, kind.as_str(), name.as_str(), new, version, time)?))?;
            Ok(written.then(|| record.map_or(0, |_| own)))
        })
    }

    fn sweep(&self) -> Reply<'_, Result<Option<Duration>>> {
        self.client.retry_while_busy(BUSY_TIMEOUT, move || {
            let time = self.time();
            let next = self.client.database.read(|db| Ok(records::next(db, time)?))?;
            let Some(0) = next else { return Ok(next.map(Duration::from_nanos)) };
            let next = self.client.database.write(|db| {
                records::sweep(db, time)?;
                Ok(records::next(db, time)?)
            })?;
            Ok(next.map(Duration::from_nanos))
        })
    }
}
