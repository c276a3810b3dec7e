//! The records beside the locks: one key for each kind and name. It ends with a lease that only records have.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Moment, Name, Record, RecordKind, RecordStore, Reply, Result, StoredRecord};

use crate::client::EtcdClient;
use crate::error::Failure;
use crate::keys;
use crate::rpc::proto::{Compare, DeleteRequest, Op, PutRequest, RangeRequest, TxnRequest};

/// A lease for records lasts so much longer than each of them is kept: a request may take that long.
const SLACK: Duration = Duration::from_secs(5);

/// For how long a lease gets further records: for a part of the time for which they are kept, and at most for an hour. So few leases
/// serve many records, and a record stays only a little longer than it has to.
fn share(keep: Duration) -> Duration {
    (keep / 16).clamp(Duration::from_secs(1), Duration::from_secs(3600))
}

/// Keeps records in the store. etcd tells no time, so they have that of the client's host.
pub(crate) struct EtcdRecords {
    client: Arc<EtcdClient>,
    /// The leases that get further records, by the whole seconds for which these are kept: the id, and until when it gets records.
    leases: Mutex<HashMap<u64, (i64, Moment)>>,
}

impl EtcdRecords {
    pub(crate) fn new(client: Arc<EtcdClient>) -> EtcdRecords {
        EtcdRecords { client, leases: Mutex::default() }
    }

    /// Returns a lease that lasts for at least `keep` from now on.
    async fn lease(&self, keep: Duration) -> Result<i64, Failure> {
        // etcd refuses leases of more than 285 years.
        let seconds = keep.as_secs().saturating_add(1).min(1 << 32);
        let now = self.client.runtime.clock().now();
        {
            let mut leases = self.leases.lock();
            leases.retain(|_, (_, until)| *until > now);
            if let Some((id, _)) = leases.get(&seconds) {
                return Ok(*id);
            }
        }
        let shared = share(keep);
        let ttl = Duration::from_secs(seconds) + shared + SLACK;
        let id = self.client.leases.dedicated(ttl).await?.id;
        self.leases.lock().insert(seconds, (id, now + shared));
        Ok(id)
    }

    async fn read_key(&self, kind: RecordKind, name: &Name) -> Result<StoredRecord> {
        let key = keys::record(&self.client.config.prefix, kind, name.as_str());
        let reply = self.client.cluster.call(RangeRequest::one(key), None).await?;
        let now_micros = self.client.runtime.clock().wall_micros();
        let Some(kv) = reply.kvs.first() else {
            return Ok(StoredRecord { now_micros, ..StoredRecord::default() });
        };
        let record = Record::from_dated(&kv.value, now_micros);
        Ok(StoredRecord { record, version: kv.mod_revision.unsigned_abs(), now_micros })
    }

    async fn write_key(
        &self,
        kind: RecordKind,
        name: &Name,
        record: Option<&Record>,
        version: u64,
    ) -> Result<Option<u64>, Failure> {
        let client = &self.client;
        let key = keys::record(&client.config.prefix, kind, name.as_str());
        // A key that is not there has the revision 0.
        let written = Compare::written(&key, i64::try_from(version).unwrap_or(i64::MAX));
        loop {
            let (change, lease) = match record {
                None => (Op::Delete(DeleteRequest::one(&key)), None),
                Some(record) => {
                    let lease = self.lease(record.keep).await?;
                    let dated = record.to_dated(client.runtime.clock().wall_micros());
                    (Op::Put(PutRequest::leased(key.clone(), dated.into_bytes(), lease)), Some(lease))
                }
            };
            let txn = TxnRequest {
                compare: vec![written.clone()],
                success: vec![change.into()],
                failure: Vec::new(),
            };
            let reply = match client.cluster.call(txn, None).await {
                // The process was stopped for so long that the lease has ended.
                Err(failure) if failure.is_lease_not_found() => {
                    self.leases.lock().retain(|_, (id, _)| Some(*id) != lease);
                    continue;
                }
                reply => reply?,
            };
            return Ok(reply
                .succeeded
                .then(|| if record.is_some() { reply.revision().unsigned_abs() } else { 0 }));
        }
    }
}

impl RecordStore for EtcdRecords {
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
        Reply::coming(async move { Ok(self.write_key(kind, name, record, version).await?) })
    }
}
