//! The records that the engine keeps.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::Reply;
use crate::backend::records::{Record, RecordKind, RecordStore, StoredRecord};
use crate::error::Result;
use crate::name::Name;
use crate::runtime::Runtime;
use crate::sync::Mutex;
use crate::time::Moment;

/// The records of all names. A client's clock says when they expire.
#[derive(Default)]
pub(super) struct MemoryRecords(Mutex<Table>);

#[derive(Default)]
struct Table {
    records: HashMap<(RecordKind, Name), Kept>,
    /// The last version.
    version: u64,
}

struct Kept {
    text: String,
    until: Moment,
    version: u64,
}

/// The records as one client sees them.
pub(super) struct RecordsOfClient {
    pub(super) records: Arc<MemoryRecords>,
    pub(super) runtime: Runtime,
}

impl RecordStore for RecordsOfClient {
    fn read<'a>(&'a self, kind: RecordKind, name: &'a Name) -> Reply<'a, Result<StoredRecord>> {
        let clock = self.runtime.clock();
        let (now, now_micros) = (clock.now(), clock.wall_micros());
        let table = self.records.0.lock();
        let stored = match table.records.get(&(kind, name.clone())) {
            None => StoredRecord { now_micros, ..StoredRecord::default() },
            Some(Kept { text, until, version }) => {
                let record = (*until > now).then(|| Record { text: text.clone(), keep: until.since(now) });
                StoredRecord { record, version: *version, now_micros }
            }
        };
        Reply::ready(Ok(stored))
    }

    fn write<'a>(
        &'a self,
        kind: RecordKind,
        name: &'a Name,
        record: Option<&'a Record>,
        version: u64,
    ) -> Reply<'a, Result<Option<u64>>> {
        let now = self.runtime.clock().now();
        let mut table = self.records.0.lock();
        let key = (kind, name.clone());
        if table.records.get(&key).map_or(0, |kept| kept.version) != version {
            return Reply::ready(Ok(None));
        }
        let Some(record) = record else {
            table.records.remove(&key);
            return Reply::ready(Ok(Some(0)));
        };
        table.version += 1;
        let version = table.version;
        table.records.insert(key, Kept { text: record.text.clone(), until: now + record.keep, version });
        Reply::ready(Ok(Some(version)))
    }

    fn sweep(&self) -> Reply<'_, Result<Option<Duration>>> {
        let now = self.runtime.clock().now();
        let mut table = self.records.0.lock();
        table.records.retain(|_, kept| kept.until > now);
        let next = table.records.values().map(|kept| kept.until).min();
        Reply::ready(Ok(next.map(|next| next.since(now))))
    }
}
