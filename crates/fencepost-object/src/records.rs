//! Small records beside the locks, each in an object of its own.
//!
//! A driver has no deletion that requires a version. So a record that is deleted leaves an object without a record, which the next write
//! replaces. The names of runs are those of locks, and their objects stay. The other kinds have names that are used once, so that such an
//! object can be deleted when it is old.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fencepost_core::sync::Mutex;
use fencepost_core::{Error, Name, Record, RecordKind, RecordStore, Reply, Result, StoredRecord};
use futures_util::future::join_all;
use object_store::path::Path;
use serde_json::{Value, json};

use crate::client::ObjectClient;
use crate::conn::Version;

/// At most so many records are read by one sweep.
const PART: usize = 64;
/// A sweep lists all records, so it does not begin again earlier.
const BETWEEN: Duration = Duration::from_secs(60);
/// The object of a deleted record stays for so long. Its name is not used again afterwards.
const STAYS: Duration = Duration::from_secs(3_600);

pub(crate) struct ObjectRecords {
    client: Arc<ObjectClient>,
    /// When what was found by earlier sweeps is to be changed, in wall-clock microseconds.
    found: Arc<Mutex<HashMap<Path, (String, u64)>>>,
}

/// The object of a record.
#[derive(Debug, Default)]
struct Stored {
    /// The number of this write. It goes on when the record was deleted.
    write: u64,
    record: Option<Record>,
    /// When the record was deleted, or when it has expired or will, in wall-clock microseconds.
    until: u64,
    /// There is no record, also none that has expired.
    deleted: bool,
}

impl Stored {
    fn read(bytes: &[u8], now: u64) -> Result<Stored> {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let object = Record { text, keep: Duration::ZERO }.object()?;
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        let write = number(&object["write"]);
        let Some(record) = object.get("record") else {
            return Ok(Stored { write, record: None, until: number(&object["deleted"]), deleted: true });
        };
        let until = number(&record["keep_until"]);
        Ok(Stored {
            write,
            record: Record::from_dated(record.to_string().as_bytes(), now),
            until,
            deleted: false,
        })
    }

    fn version(&self) -> u64 {
        if self.deleted { 0 } else { self.write }
    }

    fn to_bytes(write: u64, record: Option<&Record>, now: u64) -> Bytes {
        let object = match record {
            Some(record) => {
                let dated: Value = serde_json::from_str(&record.to_dated(now)).unwrap_or_default();
                json!({ "write": write, "record": dated })
            }
            None => json!({ "write": write, "deleted": now }),
        };
        Record::new(object, Duration::ZERO).text.into()
    }
}

impl ObjectRecords {
    pub(crate) fn new(client: &Arc<ObjectClient>) -> ObjectRecords {
        ObjectRecords { client: Arc::clone(client), found: Arc::default() }
    }
}

async fn look(client: &ObjectClient, key: &Path) -> Result<(Stored, Option<Version>, u64)> {
    let object = client.store.get(key).await?;
    let now = client.store.clock().wall_micros();
    match object {
        Some(object) => Ok((Stored::read(&object.bytes, now)?, Some(object.version), now)),
        None => Ok((Stored { deleted: true, ..Stored::default() }, None, now)),
    }
}

async fn write(
    client: &ObjectClient,
    key: &Path,
    record: Option<&Record>,
    version: u64,
) -> Result<Option<u64>> {
    let (stored, at, now) = look(client, key).await?;
    if stored.version() != version {
        return Ok(None);
    }
    if stored.deleted && record.is_none() {
        return Ok(Some(0));
    }
    let write = stored.write + 1;
    let written = client.store.put(key, at.as_ref(), Stored::to_bytes(write, record, now)).await?;
    Ok(written.map(|_| if record.is_some() { write } else { 0 }))
}

/// Deletes a record that has expired. Returns when there is something to do about this object: `None` if never.
async fn expire(client: &ObjectClient, key: &Path) -> Result<Option<u64>> {
    let (stored, at, now) = look(client, key).await?;
    let Some(version) = at else { return Ok(None) };
    let is_run = key.parts().rev().nth(1).is_some_and(|kind| kind.as_ref() == RecordKind::Run.as_str());
    let stays = u64::try_from(STAYS.as_micros()).unwrap_or(u64::MAX);
    if stored.deleted {
        if is_run {
            return Ok(None);
        }
        let until = stored.until.saturating_add(stays);
        if now < until {
            return Ok(Some(until));
        }
        client.store.delete(key).await?;
        return Ok(None);
    }
    if stored.record.is_some() {
        return Ok(Some(stored.until));
    }
    // Somebody else may have written it meanwhile, and plans its deletion.
    client.store.put(key, Some(&version), Stored::to_bytes(stored.write + 1, None, now)).await?;
    Ok(Some(now.saturating_add(stays)).filter(|_| !is_run))
}

/// Deletes a part of the records that have expired.
async fn sweep(
    client: &ObjectClient,
    found: &Mutex<HashMap<Path, (String, u64)>>,
) -> Result<Option<Duration>> {
    let listed = client.store.list(&client.keys.records()).await?;
    let now = client.store.clock().wall_micros();
    let due: Vec<_> = {
        let mut found = found.lock();
        let tag = |object: &object_store::ObjectMeta| object.e_tag.clone().unwrap_or_default();
        let tags: HashMap<_, _> =
            listed.into_iter().map(|object| (object.location.clone(), tag(&object))).collect();
        found.retain(|key, (known, _)| tags.get(key).is_some_and(|tag| tag == known));
        tags.into_iter().filter(|(key, _)| found.get(key).is_none_or(|(_, at)| *at <= now)).collect()
    };
    let more = due.len() > PART;
    let part = &due[..due.len().min(PART)];
    let expired = join_all(part.iter().map(|(key, _)| expire(client, key))).await;
    let mut found = found.lock();
    for ((key, tag), next) in part.iter().zip(expired) {
        found.insert(key.clone(), (tag.clone(), next?.unwrap_or(u64::MAX)));
    }
    if more {
        return Ok(Some(Duration::ZERO));
    }
    let next = found.values().map(|(_, at)| *at).filter(|at| *at != u64::MAX).min();
    Ok(next.map(|at| Duration::from_micros(at.saturating_sub(now)).max(BETWEEN)))
}

impl RecordStore for ObjectRecords {
    fn read<'a>(&'a self, kind: RecordKind, name: &'a Name) -> Reply<'a, Result<StoredRecord>> {
        let (client, key) = (Arc::clone(&self.client), self.client.keys.record(kind, name));
        Reply::coming(self.client.store.run(async move {
            let (stored, _, now_micros) = look(&client, &key).await?;
            Ok(StoredRecord { version: stored.version(), record: stored.record, now_micros })
        }))
    }

    fn write<'a>(
        &'a self,
        kind: RecordKind,
        name: &'a Name,
        record: Option<&'a Record>,
        version: u64,
    ) -> Reply<'a, Result<Option<u64>>> {
        let (client, key) = (Arc::clone(&self.client), self.client.keys.record(kind, name));
        let record = record.cloned();
        Reply::coming(
            self.client.store.run(async move { write(&client, &key, record.as_ref(), version).await }),
        )
    }

    fn sweep(&self) -> Reply<'_, Result<Option<Duration>>> {
        let (client, found) = (Arc::clone(&self.client), Arc::clone(&self.found));
        Reply::coming(
            self.client.store.run(async move { sweep(&client, &found).await.map_err(Error::without_effect) }),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let record = Record::new(json!({ "a": 1, "write": 9 }), Duration::from_secs(5));
        let bytes = Stored::to_bytes(3, Some(&record), 1_000_000);
        let stored = Stored::read(&bytes, 2_000_000).unwrap();
        assert_eq!((stored.version(), stored.until), (3, 6_000_000));
        assert_eq!(stored.record, Some(Record { keep: Duration::from_secs(4), ..record }));
        let expired = Stored::read(&bytes, 7_000_000).unwrap();
        assert_eq!((expired.version(), expired.record), (3, None));
        let deleted = Stored::read(&Stored::to_bytes(4, None, 8), 9).unwrap();
        assert_eq!((deleted.version(), deleted.write, deleted.until), (0, 4, 8));
    }
}
