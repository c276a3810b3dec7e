//! The records of runs: a node for each lock in the folder `.fencepost/run`, apart from the queues. It outlives sessions.

use std::sync::Arc;

use fencepost_core::{Name, Reply, Result, RunRecord, RunStore, StoredRuns};
use futures_util::future::join;
use zookeeper_client as zk;

use crate::client::Client;
use crate::error::failure;
use crate::recipe::names::to_node;
use crate::session::{Request, Session};

/// At most `SWEPT` records are read for a deletion of old ones.
const SWEPT: usize = 256;

/// Keeps runs in nodes. ZooKeeper tells no time, so they have that of the client's host.
pub(crate) struct ZooRuns(pub(crate) Arc<Client>);

fn folder(client: &Client) -> String {
    format!("{}/.fencepost/run", client.config.root)
}

impl ZooRuns {
    /// Returns the path of a lock's record. It is named after the lock's folder, because each layout has locks of its own.
    fn path(&self, name: &Name) -> String {
        let ZooRuns(client) = self;
        let lock = client.folder(name);
        let lock = lock.strip_prefix(&client.config.root).unwrap_or(&lock);
        format!("{}/{}", folder(client), to_node(lock.trim_start_matches('/'), false))
    }

    async fn read_node(&self, name: &Name) -> Result<StoredRuns> {
        let ZooRuns(client) = self;
        let session = client.session().await?;
        // Without the first request a server that lags behind would answer the second one.
        let (synced, read) = session.within(join(session.sync(), session.data(self.path(name)))).await?;
        synced.map_err(|error| failure(&error))?;
        let now_micros = client.runtime.clock().wall_micros();
        match read {
            Ok((data, stat)) => {
                let record = Some(RunRecord::read(&String::from_utf8_lossy(&data))?);
                Ok(StoredRuns { record, version: version(&stat), now_micros })
            }
            Err(zk::Error::NoNode) => Ok(StoredRuns { now_micros, ..StoredRuns::default() }),
            Err(error) => Err(failure(&error)),
        }
    }

    async fn write_node(&self, name: &Name, record: &RunRecord, known: u64) -> Result<Option<u64>> {
        let ZooRuns(client) = self;
        let session = client.session().await?;
        loop {
            let (path, data, acls) = (self.path(name), record.to_text().into_bytes(), client.acls());
            let written: Request<zk::Stat> = session.request(move |driver| async move {
                match known.checked_sub(1) {
                    None => {
                        let options = zk::CreateMode::Persistent.with_acls(acls);
                        driver.create(&path, &data, &options).await.map(|(stat, _)| stat)
                    }
                    Some(version) => {
                        let version = i32::try_from(version).unwrap_or(i32::MAX);
                        driver.set_data(&path, &data, Some(version)).await
                    }
                }
            });
            let stat = match session.within(written).await? {
                Ok(stat) => stat,
                Err(zk::Error::NoNode) if known == 0 => {
                    client.make_open_folder(&session, &folder(client)).await?;
                    continue;
                }
                Err(zk::Error::NodeExists | zk::Error::BadVersion | zk::Error::NoNode) => return Ok(None),
                Err(error) => return Err(failure(&error)),
            };
            // The processes of one command write little, so the transactions of all clients count.
            if StoredRuns::is_followed_by_sweep(stat.mzxid.unsigned_abs()) {
                client.runtime.spawn(sweep(Arc::clone(client), session));
            }
            return Ok(Some(version(&stat)));
        }
    }
}

/// Returns the number of a node's version, from 1.
fn version(stat: &zk::Stat) -> u64 {
    u64::from(stat.version.cast_unsigned()) + 1
}

impl RunStore for ZooRuns {
    fn read<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<StoredRuns>> {
        Reply::coming(self.read_node(name))
    }

    fn write<'a>(
        &'a self,
        name: &'a Name,
        record: &'a RunRecord,
        version: u64,
    ) -> Reply<'a, Result<Option<u64>>> {
        Reply::coming(self.write_node(name, record, version))
    }
}

/// Deletes records whose time is over.
async fn sweep(client: Arc<Client>, session: Arc<Session>) {
    if let Err(error) = try_sweep(&client, &session).await {
        tracing::debug!(%error, "old runs are deleted later");
    }
}

async fn try_sweep(client: &Client, session: &Session) -> Result<()> {
    let folder = folder(client);
    let now = client.runtime.clock().wall_micros();
    let names = session.answer(session.list(folder.clone())).await?;
    // Another part each time: those that are read first may be in use.
    let start = usize::try_from(now).unwrap_or(0) % names.len().max(1);
    for name in names[start..].iter().chain(&names[..start]).take(SWEPT) {
        let path = format!("{folder}/{name}");
        let Ok((data, stat)) = session.within(session.data(path.clone())).await? else { continue };
        let record = RunRecord::read(&String::from_utf8_lossy(&data));
        if record.is_ok_and(|record| record.keep_until < now) {
            let deleted: Request<()> =
                session.request(move |driver| async move { driver.delete(&path, Some(stat.version)).await });
            // Another client has written or deleted it.
            let _ = session.within(deleted).await?;
        }
    }
    Ok(())
}
