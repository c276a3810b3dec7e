//! The records beside the locks: one key for each kind and name. What a service keeps of requests ends with a lease that only records have.
//! Runs, and what is kept for long, are deleted by clients, because each process that runs one command or examines the cluster would leave a
//! lease.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Moment, Name, Record, RecordKind, RecordStore, Reply, Result, StoredRecord};

use crate::client::EtcdClient;
use crate::error::Failed;
use crate::keys;
use crate::rpc::proto::{Compare, DeleteRequest, Op, PutRequest, RangeRequest, TxnRequest};

/// A lease for records lasts so much longer than each of them is kept: a request may take that long.
const SLACK: Duration = Duration::from_secs(5);

/// A record that is kept for longer has no lease.
const LEASED: Duration = Duration::from_secs(3600);

/// At most `SWEPT` records without a lease are read for a deletion of those that have expired.
const SWEPT: i64 = 200;

/// For how long a lease gets further records: for a part of the time for which they are kept. So few leases serve many records, and a record
/// stays only a little longer than it has to.
fn share(keep: Duration) -> Duration {
    (keep / 16).max(Duration::from_secs(1))
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

    /// Returns a lease that lasts for at least `keep` from now on; 0 for none.
    async fn lease(&self, kind: RecordKind, keep: Duration) -> Result<i64, Failed> {
        if kind == RecordKind::Run || keep > LEASED {
            return Ok(0);
        }
        let seconds = keep.as_secs() + 1;
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
    ) -> Result<Option<u64>, Failed> {
        let client = &self.client;
        let key = keys::record(&client.config.prefix, kind, name.as_str());
        // A key that is not there has the revision 0.
        let written = Compare::written(&key, i64::try_from(version).unwrap_or(i64::MAX));
        loop {
            let (change, lease) = match record {
                None => (Op::Delete(DeleteRequest::one(&key)), None),
                Some(record) => {
                    let lease = self.lease(kind, record.keep).await?;
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

impl EtcdRecords {
    async fn delete_expired(&self) -> Result<(), Failed> {
        let client = &self.client;
        for kind in RecordKind::ALL {
            let start = keys::record(&client.config.prefix, kind, "");
            let end = keys::end(&start);
            // Those that were not written for the longest time come first.
            let reply = client.cluster.call(RangeRequest::by_last_write(start, end, SWEPT), None).await?;
            let now = client.runtime.clock().wall_micros();
            for kv in reply.kvs.iter().filter(|kv| kv.lease == 0) {
                if Record::from_dated(&kv.value, now).is_none() {
                    let txn = TxnRequest {
                        compare: vec![Compare::written(&kv.key, kv.mod_revision)],
                        success: vec![Op::Delete(DeleteRequest::one(&kv.key)).into()],
                        failure: Vec::new(),
                    };
                    client.cluster.call(txn, None).await?;
                }
            }
        }
        Ok(())
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

    fn sweep(&self) -> Reply<'_, Result<Option<Duration>>> {
        Reply::coming(async move {
            self.delete_expired().await?;
            Ok(None)
        })
    }
}
