//! The records of runs: one key for each name, which has no lease and outlives the claims.

use std::sync::Arc;

use fencepost_core::{LaterFormat, Name, Reply, Result, RunRecord, RunStore, StoredRuns};

use crate::client::EtcdClient;
use crate::error::Failure;
use crate::keys;
use crate::rpc::proto::{Compare, DeleteRequest, KeyValue, Op, PutRequest, RangeRequest, TxnRequest};

/// At most `SWEPT` records are read for a deletion of old ones.
const SWEPT: i64 = 500;

/// Keeps runs in the store. etcd tells no time, so they have that of the client's host.
pub(crate) struct EtcdRuns(pub(crate) Arc<EtcdClient>);

impl EtcdRuns {
    async fn read_key(&self, name: &Name) -> Result<StoredRuns> {
        let EtcdRuns(client) = self;
        let key = keys::run(&client.config.prefix, name.as_str());
        let reply = client.cluster.call(RangeRequest::one(key), None).await?;
        let now_micros = client.runtime.clock().wall_micros();
        let Some(kv) = reply.kvs.first() else {
            return Ok(StoredRuns { now_micros, ..StoredRuns::default() });
        };
        Ok(StoredRuns { record: Some(record(kv)?), version: kv.mod_revision.unsigned_abs(), now_micros })
    }

    async fn write_key(&self, name: &Name, record: &RunRecord, version: u64) -> Result<Option<u64>> {
        let EtcdRuns(client) = self;
        let key = keys::run(&client.config.prefix, name.as_str());
        // A key that is not there has the revision 0.
        let written = Compare::written(&key, i64::try_from(version).unwrap_or(i64::MAX));
        let put = PutRequest::leased(key, record.to_text().into_bytes(), 0);
        let success = vec![Op::Put(put).into()];
        let txn = TxnRequest { compare: vec![written], success, failure: Vec::new() };
        let reply = client.cluster.call(txn, None).await?;
        if !reply.succeeded {
            return Ok(None);
        }
        // The processes of one command write little, so the store's revision counts for all clients.
        let version = reply.revision().unsigned_abs();
        if StoredRuns::is_followed_by_sweep(version) {
            client.runtime.spawn(sweep(Arc::clone(client)));
        }
        Ok(Some(version))
    }
}

impl RunStore for EtcdRuns {
    fn read<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<StoredRuns>> {
        Reply::coming(self.read_key(name))
    }

    fn write<'a>(
        &'a self,
        name: &'a Name,
        record: &'a RunRecord,
        version: u64,
    ) -> Reply<'a, Result<Option<u64>>> {
        Reply::coming(self.write_key(name, record, version))
    }
}

fn record(kv: &KeyValue) -> Result<RunRecord, LaterFormat> {
    RunRecord::read(&String::from_utf8_lossy(&kv.value))
}

/// Deletes records whose time is over.
async fn sweep(client: Arc<EtcdClient>) {
    if let Err(failure) = try_sweep(&client).await {
        tracing::debug!(error = %failure.error(), "old runs are deleted later");
    }
}

async fn try_sweep(client: &EtcdClient) -> Result<(), Failure> {
    let start = keys::run(&client.config.prefix, "");
    let end = keys::end(&start);
    // Those that were not written for the longest time come first.
    let reply = client.cluster.call(RangeRequest::by_last_write(start, end, SWEPT), None).await?;
    let now = client.runtime.clock().wall_micros();
    for kv in reply.kvs.iter().filter(|kv| record(kv).is_ok_and(|record| record.keep_until < now)) {
        let txn = TxnRequest {
            compare: vec![Compare::written(&kv.key, kv.mod_revision)],
            success: vec![Op::Delete(DeleteRequest::one(&kv.key)).into()],
            failure: Vec::new(),
        };
        client.cluster.call(txn, None).await?;
    }
    Ok(())
}
