//! The records beside the locks.
//!
//! Each is a hash of its own, which Redis deletes when it expires. Its key is no name of a lock: it has a control character. It begins with
//! the prefix of all keys, and the scripts use the commands of the locks, so it needs no other permissions. In a cluster it may be in
//! another slot than its lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use fencepost_core::{Error, ErrorKind, Name, Record, RecordKind, RecordStore, Reply, Result, StoredRecord};
use redis::{Cmd, Value};

use crate::client::RedisClient;
use crate::conn::call::{Call, CallError, Lane};
use crate::error::redis_error;
use crate::script::answer::{Entered, nonsense, stays_out};
use crate::script::queue::millis;
use crate::script::{LOCKS, Script};

static READ_RECORD: Script = Script::new(&LOCKS, "read_record");
static WRITE_RECORD: Script = Script::new(&LOCKS, "write_record");

/// Redis keeps no time beyond the year 285,000.
const LONGEST: u64 = 1 << 52;

/// How many records this process has written.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// How much longer than the longest lease a node of a quorum keeps a record: see lua/records.lua.
const BEYOND: Duration = Duration::from_secs(10);

/// The records of one client.
pub(crate) struct RedisRecords {
    pub(crate) client: Arc<RedisClient>,
    /// The longest lease, if the server is a node of a quorum.
    pub(crate) node: Option<Duration>,
}

impl RedisRecords {
    fn key(&self, kind: RecordKind, name: &Name) -> (Vec<u8>, u16) {
        let client = &self.client;
        let prefix = client.setting.prefix.as_bytes();
        let key = [prefix, b"\x01", kind.as_str().as_bytes(), b":", name.as_str().as_bytes()].concat();
        let slot = client.deployment.slot(&key);
        (key, slot)
    }

    /// Adds what lua/records.lua needs.
    fn place(&self, command: &mut Cmd) {
        match self.node {
            Some(longest) => command.arg(millis(longest)),
            None => command.arg(""),
        };
        command.arg(self.client.setting.prefix.len());
    }

    async fn read_key(&self, kind: RecordKind, name: &Name) -> Result<StoredRecord> {
        let client = &self.client;
        let (key, slot) = self.key(kind, name);
        let command = READ_RECORD.command(&[key], |command| self.place(command));
        let call = Call::new(&READ_RECORD, slot, command);
        let value = client.deployment.call(Lane::Caller, &call).await.map_err(CallError::into_error)?;
        let Value::Array(parts) = &value else { return Err(refusal(&value)) };
        let [Value::Int(now), version, text, until] = &**parts else { return Err(nonsense(&value)) };
        let now_micros = now.unsigned_abs();
        let Some(version) = number(version) else {
            return Ok(StoredRecord { now_micros, ..StoredRecord::default() });
        };
        let keep = number(until).and_then(|until| until.checked_sub(now_micros)).map(Duration::from_micros);
        let record = match (text, keep) {
            (Value::BulkString(text), Some(keep)) => {
                Some(Record { text: String::from_utf8_lossy(text).into_owned(), keep })
            }
            _ => None,
        };
        Ok(StoredRecord { record, version, now_micros })
    }

    async fn write_key(
        &self,
        kind: RecordKind,
        name: &Name,
        record: Option<&Record>,
        version: u64,
    ) -> Result<Option<u64>> {
        let client = &self.client;
        if let (Some(longest), Some(record)) = (self.node, record)
            && record.keep > longest + BEYOND
        {
            let message = format!(
                "a quorum keeps a record for max_ttl and 10 s at most, which are {:?} here; raise max_ttl in the URLs of all clients",
                longest + BEYOND
            );
            return Err(redis_error(ErrorKind::Configuration, message));
        }
        let (key, slot) = self.key(kind, name);
        // The client's number is random, and so are the versions.
        let number = WRITTEN.fetch_add(1, Relaxed);
        let own =
            (client.runtime.client().wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 1).max(1);
        let command = WRITE_RECORD.command(&[key], |command| {
            let text = record.map_or("", |record| &record.text);
            let keep = record.map_or(0, |record| u64::try_from(record.keep.as_micros()).unwrap_or(u64::MAX));
            self.place(command);
            command.arg(version).arg(own).arg(text).arg(keep.min(LONGEST));
        });
        let call = Call::new(&WRITE_RECORD, slot, command);
        let replicas = client.config.replicas;
        let answer = client.deployment.call_with(Lane::Caller, &call, replicas).await;
        match answer.map_err(CallError::into_error)? {
            (Value::Int(1), copies) if copies < replicas => {
                Err(client.deployment.short(copies, replicas).unknown())
            }
            (Value::Int(1), _) => Ok(Some(if record.is_some() { own } else { 0 })),
            (Value::Int(0), _) => Ok(None),
            (value, _) => Err(refusal(&value)),
        }
    }
}

/// Returns the error for a reply without a record.
fn refusal(value: &Value) -> Error {
    match Entered::read(value) {
        Ok(Entered::Away(left)) => stays_out(left),
        _ => nonsense(value),
    }
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::BulkString(text) => str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

impl RecordStore for RedisRecords {
    fn read<'a>(&'a self, kind: RecordKind, name: &'a Name) -> Reply<'a, Result<StoredRecord>> {
        Reply::coming(self.read_key(kind, name))
    }

    fn write<'a>(
        &'a self,
        kind: RecordKind,
        name: &'a Name,
        record: Option<&'a Record>,
        version: u64,
    ) -> Reply<'a, Result<Option<u64>>> {
        Reply::coming(self.write_key(kind, name, record, version))
    }
}
