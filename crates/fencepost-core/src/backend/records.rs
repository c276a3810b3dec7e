//! Small records beside the locks: what outlives a claim and decides about no grant.

use std::sync::{Arc, Weak};
use std::time::Duration;

use serde_json::Value;

use crate::backend::record::LaterFormat;
use crate::backend::reply::Reply;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::runtime::Runtime;
use crate::sync::Mutex;
use crate::time::Moment;

/// After a record has expired, an engine that does not delete it by itself is asked to do so within this time.
const SWEEP_AFTER: Duration = Duration::from_secs(1);

/// The pause before the next part of the records that have expired is deleted: an engine handles one part at a time, and claims come between.
const SWEEP_PAUSE: Duration = Duration::from_millis(20);

/// As long as a client writes records, it asks for a deletion at least this often, whenever they expire.
const SWEEP_AHEAD: Duration = Duration::from_secs(3600);

/// What a record is for. Each kind has names of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RecordKind {
    /// The [runs](crate::Runs) of a resource.
    Run,
    /// What became of a request that its caller can repeat.
    Request,
    /// Why a detached lease was evicted.
    Eviction,
}

impl RecordKind {
    /// All of them.
    pub const ALL: [RecordKind; 3] = [RecordKind::Run, RecordKind::Request, RecordKind::Eviction];

    /// Returns its name, as engines store it: lowercase letters.
    pub fn as_str(self) -> &'static str {
        match self {
            RecordKind::Run => "run",
            RecordKind::Request => "request",
            RecordKind::Eviction => "eviction",
        }
    }
}

/// The place where an engine keeps small records: at most one of each [kind](RecordKind) for each name, apart from the claims. Who is granted
/// does not depend on it, and a claim does not change it.
///
/// A client reads a record, and writes it if nobody has written it meanwhile. The engine's requests have a time limit.
pub trait RecordStore: Send + Sync + 'static {
    /// Reads a record.
    ///
    /// # Errors
    /// The engine's error. A place for records that was never made is no error here: there are no records.
    ///
    /// # Cancel safety
    /// Safe.
    fn read<'a>(&'a self, kind: RecordKind, name: &'a Name) -> Reply<'a, Result<StoredRecord>>;

    /// Writes a record if its version is still `version`, or deletes it if `record` is `None`. Returns the new version, which this
    /// record never had before; 0 after a deletion. A record that is made again after a deletion may have an earlier version on ZooKeeper,
    /// where nothing is deleted before it has expired. `None`: there is another version. That may be the version of this very write, if the engine
    /// repeated a request whose reply was lost, so the caller reads the record again before it concludes anything.
    ///
    /// The engine keeps the record for [`keep`](Record::keep) from this write on, whatever becomes of the claims of the name, and then
    /// deletes it.
    ///
    /// # Errors
    /// The engine's error. The write may have taken effect, now or later.
    ///
    /// # Cancel safety
    /// As after an error. The first poll sends.
    fn write<'a>(
        &'a self,
        kind: RecordKind,
        name: &'a Name,
        record: Option<&'a Record>,
        version: u64,
    ) -> Reply<'a, Result<Option<u64>>>;

    /// Deletes a part of the records that have expired. Returns in how long it should be called again: at once if more of them were left,
    /// else when the next record expires, if the engine knows. The default is for an engine that deletes them by itself.
    ///
    /// # Errors
    /// The engine's error.
    ///
    /// # Cancel safety
    /// Safe.
    fn sweep(&self) -> Reply<'_, Result<Option<Duration>>> {
        Reply::ready(Ok(None))
    }
}

/// A record.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Record {
    /// A JSON object, compact.
    pub text: String,
    /// How long the engine keeps it after it is written. In a record that was read: for how much longer.
    pub keep: Duration,
}

impl Record {
    /// Makes a record of an object. It gets the number of the format.
    pub fn new(mut object: Value, keep: Duration) -> Record {
        object["fencepost"] = LaterFormat::KNOWN.into();
        Record { text: object.to_string(), keep }
    }

    /// Returns the object. One that is unreadable is empty.
    ///
    /// # Errors
    /// The record has a later format.
    pub fn object(&self) -> std::result::Result<Value, LaterFormat> {
        let value: Value = serde_json::from_str(&self.text).unwrap_or_default();
        LaterFormat::check(value.get("fencepost"))?;
        Ok(value)
    }

    /// Writes the record as one text that also says until when it is kept, for an engine that has no other place for that: the object
    /// gets the field `keep_until`, in wall-clock microseconds since 1970.
    pub fn to_dated(&self, now_micros: u64) -> String {
        let mut value: Value = serde_json::from_str(&self.text).unwrap_or_default();
        let keep = u64::try_from(self.keep.as_micros()).unwrap_or(u64::MAX);
        // The number must stay exact also for readers that have doubles alone.
        value["keep_until"] = now_micros.saturating_add(keep).min(1 << 53).into();
        value.to_string()
    }

    /// Reads what [`to_dated`](Record::to_dated) wrote. `None`: the record has expired.
    pub fn from_dated(text: &[u8], now_micros: u64) -> Option<Record> {
        let mut value: Value = serde_json::from_slice(text).unwrap_or_default();
        let until = value.as_object_mut().and_then(|object| object.remove("keep_until"));
        let keep = until.and_then(|until| until.as_u64()).unwrap_or(0).checked_sub(now_micros)?;
        Some(Record { text: value.to_string(), keep: Duration::from_micros(keep) })
    }
}

/// A record as it is stored, and when it was read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StoredRecord {
    /// The record. `None`: there is none, or it has expired.
    pub record: Option<Record>,
    /// The version that a write has to name. Zero: nothing is stored. An expired record that was not deleted yet has one.
    pub version: u64,
    /// Wall-clock microseconds since 1970, by the engine's clock if it has one.
    pub now_micros: u64,
}

/// The records of one client: an engine's store, and the deletion of records that have expired.
#[derive(Clone)]
pub struct Records {
    store: Arc<dyn RecordStore>,
    runtime: Runtime,
    /// When the next sweep begins, if one is planned.
    due: Arc<Mutex<Option<Moment>>>,
}

impl Records {
    pub(crate) fn new(store: Arc<dyn RecordStore>, runtime: Runtime) -> Records {
        Records { store, runtime, due: Arc::default() }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// The engine's error.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn read(&self, kind: RecordKind, name: &Name) -> Result<StoredRecord> {
        self.store.read(kind, name).await.map_err(Error::without_effect)
    }

    /// Writes a record, or deletes it, if its version is still `version`: see [`RecordStore::write`].
    ///
    /// # Errors
    /// The engine's error. The write may have taken effect, now or later.
    ///
    /// # Cancel safety
    /// Dropped midway, the write may take effect.
    pub async fn write(
        &self,
        kind: RecordKind,
        name: &Name,
        record: Option<&Record>,
        version: u64,
    ) -> Result<Option<u64>> {
        // Before the write, because a write without a reply may have taken effect.
        if let Some(record) = record {
            plan(&self.store, &self.runtime, &self.due, record.keep);
        }
        self.store.write(kind, name, record, version).await
    }
}

/// Plans a sweep for a record that expires in so long, unless one is planned that comes earlier.
fn plan(
    store: &Arc<dyn RecordStore>,
    runtime: &Runtime,
    due: &Arc<Mutex<Option<Moment>>>,
    expires: Duration,
) {
    let clock = runtime.clock().clone();
    let at = clock.now() + expires.min(SWEEP_AHEAD) + SWEEP_AFTER;
    {
        let mut due = due.lock();
        // The sweep that comes first plans the next one.
        if due.is_some_and(|due| due <= at) {
            return;
        }
        *due = Some(at);
    }
    let (store, own, due): (Weak<dyn RecordStore>, _, _) =
        (Arc::downgrade(store), runtime.clone(), due.clone());
    runtime.spawn(async move {
        clock.sleep_until(at).await;
        if clock.is_stopped() || due.lock().take_if(|due| *due == at).is_none() {
            return;
        }
        let Some(store) = store.upgrade() else { return };
        let next = loop {
            match store.sweep().await {
                Ok(Some(Duration::ZERO)) if !clock.is_stopped() => {
                    clock.sleep_until(clock.now() + SWEEP_PAUSE).await;
                }
                Ok(next) => break next,
                Err(error) => {
                    tracing::debug!(%error, "expired records are deleted later");
                    break Some(10 * SWEEP_AFTER);
                }
            }
        };
        if let Some(next) = next {
            plan(&store, &own, &due, next);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let record = Record::new(serde_json::json!({ "a": 1 }), Duration::from_secs(5));
        assert_eq!(record.object().unwrap(), serde_json::json!({ "a": 1, "fencepost": 1 }));
        let dated = record.to_dated(1_000_000);
        let left = Record { keep: Duration::from_secs(2), ..record.clone() };
        assert_eq!(Record::from_dated(dated.as_bytes(), 4_000_000), Some(left));
        assert_eq!(Record::from_dated(dated.as_bytes(), 6_000_001), None);
        assert_eq!(Record::from_dated(b"odd", 1), None);
        let long = Record { keep: Duration::MAX, ..record };
        assert!(
            Record::from_dated(long.to_dated(1).as_bytes(), 2).unwrap().keep > Duration::from_secs(1 << 32)
        );
    }

    #[test]
    fn a_record_of_a_later_format_is_refused() {
        let later = Record { text: r#"{"fencepost":2}"#.to_owned(), keep: Duration::ZERO };
        let error = Error::from(later.object().unwrap_err());
        assert!(error.is_configuration() && error.to_string().contains("format 2"), "{error}");
    }
}
