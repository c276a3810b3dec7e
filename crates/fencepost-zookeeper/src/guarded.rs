//! Writes that take effect only while the grant is held.

use std::fmt;
use std::sync::{Arc, Weak};

use fencepost_core::{Error, ErrorKind, Loss, Result};
use zookeeper_client as zk;

use crate::claim::held::{HeldGrant, HeldGrants, with_notice};
use crate::error::{ENGINE, failure};

/// Writes to the same ZooKeeper, in one transaction with a check: the grant's node is there and was not evicted.
///
/// This is stronger than a token: the server itself refuses a holder that was paused past its session.
/// [`Guard::native`](fencepost_core::Guard::native) returns it, as a `&mut dyn Any`; clones are for tasks.
#[derive(Clone)]
pub struct Guarded {
    grants: Weak<HeldGrants>,
    held: HeldGrant,
}

/// One write of a [guarded](Guarded::commit) transaction. Paths are from ZooKeeper's root, whatever the URL's path is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Write {
    /// Makes a persistent node.
    Create {
        /// Its path.
        path: String,
        /// Its data.
        data: Vec<u8>,
    },
    /// Replaces what a node holds.
    Set {
        /// Its path.
        path: String,
        /// Its new data.
        data: Vec<u8>,
        /// Only if the node has this version.
        version: Option<i32>,
    },
    /// Deletes a node.
    Delete {
        /// Its path.
        path: String,
        /// Only if the node has this version.
        version: Option<i32>,
    },
}

impl Guarded {
    pub(crate) fn new(grants: &Arc<HeldGrants>, held: HeldGrant) -> Guarded {
        Guarded { grants: Arc::downgrade(grants), held }
    }

    /// Returns the path of the grant's node, for transactions of your own: its version is 0 as long as it was not evicted.
    pub fn path(&self) -> &str {
        self.held.path()
    }

    /// Makes all these writes or none, and only if the grant is still held.
    ///
    /// # Errors
    /// [`is_lost`](Error::is_lost) if the grant's node is gone or was evicted; nothing was written then.
    /// [`is_mismatch`](Error::is_mismatch) if one of the writes could not be made; nothing was written then. ZooKeeper's errors otherwise.
    ///
    /// # Cancel safety
    /// Dropped midway, the writes are made or not.
    pub async fn commit(&self, writes: &[Write]) -> Result<()> {
        let HeldGrant { session, claim, .. } = &self.held;
        let (path, writes) = (self.path().to_owned(), writes.to_vec());
        let done = session.request(move |driver| async move { Ok(commit(&driver, &path, &writes).await) });
        let sent = session.clock().now();
        let Some(grants) = self.grants.upgrade() else { return Err(self.lost(Loss::SessionEnded)) };
        let mut notice = grants.read_notice(&self.held);
        match session.within(with_notice(session.clock(), done, &mut notice)).await? {
            Ok(Ok(())) => {
                session.confirm(sent);
                Ok(())
            }
            Ok(Err(zk::CheckWriteError::CheckFailed { source })) => {
                let marked = source == zk::Error::BadVersion;
                grants.end(&self.held, (!marked).then_some(self.path()), notice).await;
                // The server decides: the guard and its views are lost as well, also if the holder has begun to release.
                let why = if marked { Loss::Evicted } else { Loss::Deleted };
                claim.validity.end(why);
                Err(self.lost(why))
            }
            Err(zk::Error::SessionExpired)
            | Ok(Err(zk::CheckWriteError::RequestFailed { source: zk::Error::SessionExpired })) => {
                Err(self.lost(Loss::SessionEnded))
            }
            Ok(Err(zk::CheckWriteError::OperationFailed { index, source })) => {
                let message =
                    format!("write number {} of the transaction cannot be made, so none was", index + 1);
                Err(Error::new(ErrorKind::Mismatch, message).because(source).on(ENGINE))
            }
            Ok(Err(zk::CheckWriteError::RequestFailed { source })) | Err(source) => Err(failure(&source)),
        }
    }

    fn lost(&self, why: Loss) -> Error {
        let claim = &self.held.claim;
        Error::lost(claim.want().name.clone(), claim.validity.ended().unwrap_or(why)).on(ENGINE)
    }
}

async fn commit(driver: &zk::Client, path: &str, writes: &[Write]) -> Result<(), zk::CheckWriteError> {
    let mut writer = driver.new_check_writer(path, Some(0))?;
    for write in writes {
        match write {
            Write::Create { path, data } => {
                writer.add_create(
                    path,
                    data,
                    &zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all()),
                )?;
            }
            Write::Set { path, data, version } => writer.add_set_data(path, data, *version)?,
            Write::Delete { path, version } => writer.add_delete(path, *version)?,
        }
    }
    writer.commit().await.map(drop)
}

impl fmt::Debug for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded").field("path", &self.path()).finish_non_exhaustive()
    }
}
