//! The records beside the locks: a node for each kind and lock in the folder `.fencepost/KIND`, apart from the queues. It outlives sessions.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Name, Record, RecordKind, RecordStore, Reply, Result, StoredRecord};
use futures_util::future::join;
use zookeeper_client as zk;

use crate::client::Client;
use crate::error::failure;
use crate::recipe::names::to_node;
use crate::session::Request;

/// At most `SWEPT` records of each kind are read for a deletion of those that have expired.
const SWEPT: usize = 256;

/// Keeps records in nodes. ZooKeeper tells no time, so they have that of the client's host.
pub(crate) struct ZooRecords(pub(crate) Arc<Client>);

fn folder(client: &Client, kind: RecordKind) -> String {
    format!("{}/.fencepost/{}", client.config.root, kind.as_str())
}

impl ZooRecords {
    /// Returns the path of a lock's record. It is named after the lock's folder, because each layout has locks of its own.
    fn path(&self, kind: RecordKind, name: &Name) -> String {
        let ZooRecords(client) = self;
        let lock = client.folder(name);
        let lock = lock.strip_prefix(&client.config.root).unwrap_or(&lock);
        format!("{}/{}", folder(client, kind), to_node(lock.trim_start_matches('/'), false))
    }

    async fn read_node(&self, kind: RecordKind, name: &Name) -> Result<StoredRecord> {
        let ZooRecords(client) = self;
        let session = client.session().await?;
        // Without the first request a server that lags behind would answer the second one.
        let (synced, read) =
            session.within(join(session.sync(), session.data(self.path(kind, name)))).await?;
        synced.map_err(|error| failure(&error))?;
        let now_micros = client.runtime.clock().wall_micros();
        match read {
            Ok((data, stat)) => {
                let record = Record::from_dated(&data, now_micros);
                Ok(StoredRecord { record, version: version(&stat), now_micros })
            }
            Err(zk::Error::NoNode) => Ok(StoredRecord { now_micros, ..StoredRecord::default() }),
            Err(error) => Err(failure(&error)),
        }
    }

    async fn write_node(
        &self,
        kind: RecordKind,
        name: &Name,
        record: Option<&Record>,
        known: u64,
    ) -> Result<Option<u64>> {
        let ZooRecords(client) = self;
        let session = client.session().await?;
        let data = record.map(|record| record.to_dated(client.runtime.clock().wall_micros()).into_bytes());
        loop {
            let (path, data, acls) = (self.path(kind, name), data.clone(), client.acls());
            // Returns the number of the new version.
            let written: Request<u64> = session.request(move |driver| async move {
                let before = known.checked_sub(1).map(|version| i32::try_from(version).unwrap_or(i32::MAX));
                match (data, before) {
                    (Some(data), None) => {
                        let options = zk::CreateMode::Persistent.with_acls(acls);
                        driver.create(&path, &data, &options).await.map(|(stat, _)| version(&stat))
                    }
                    (Some(data), Some(before)) => {
                        driver.set_data(&path, &data, Some(before)).await.map(|stat| version(&stat))
                    }
                    (None, Some(before)) => driver.delete(&path, Some(before)).await.map(|()| 0),
                    (None, None) => match driver.check_stat(&path).await? {
                        None => Ok(0),
                        Some(_) => Err(zk::Error::NodeExists),
                    },
                }
            });
            match session.within(written).await? {
                Ok(version) => return Ok(Some(version)),
                Err(zk::Error::NoNode) if known == 0 => {
                    client.make_open_folder(&session, &folder(client, kind)).await?;
                }
                Err(zk::Error::NodeExists | zk::Error::BadVersion | zk::Error::NoNode) => return Ok(None),
                Err(error) => return Err(failure(&error)),
            }
        }
    }

    async fn delete_expired(&self) -> Result<Option<Duration>> {
        let ZooRecords(client) = self;
        let session = client.session().await?;
        let now = client.runtime.clock().wall_micros();
        for kind in RecordKind::ALL {
            let folder = folder(client, kind);
            let names = match session.within(session.list(folder.clone())).await? {
                Err(zk::Error::NoNode) => continue,
                names => names.map_err(|error| failure(&error))?,
            };
            // Another part each time: those that are read first may be in use.
            let start = usize::try_from(now).unwrap_or(0) % names.len().max(1);
            for name in names[start..].iter().chain(&names[..start]).take(SWEPT) {
                let path = format!("{folder}/{name}");
                let Ok((data, stat)) = session.within(session.data(path.clone())).await? else { continue };
                if Record::from_dated(&data, now).is_none() {
                    let deleted: Request<()> = session
                        .request(move |driver| async move { driver.delete(&path, Some(stat.version)).await });
                    // Another client has written or deleted it.
                    let _ = session.within(deleted).await?;
                }
            }
        }
        Ok(None)
    }
}

/// Returns the number of a node's version, from 1.
fn version(stat: &zk::Stat) -> u64 {
    u64::from(stat.version.cast_unsigned()) + 1
}

impl RecordStore for ZooRecords {
    fn read<'a>(&'a self, kind: RecordKind, name: &'a Name) -> Reply<'a, Result<StoredRecord>> {
        Reply::coming(self.read_node(kind, name))
    }

    fn write<'a>(
        &'a self,
        kind: RecordKind,
        name: &'a Name,
        record: Option<&'a Record>,
        version: u64,
    ) -> Reply<'a, Result<Option<u64>>> {
        Reply::coming(self.write_node(kind, name, record, version))
    }

    fn sweep(&self) -> Reply<'_, Result<Option<Duration>>> {
        Reply::coming(self.delete_expired())
    }
}
