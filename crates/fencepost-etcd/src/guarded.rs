//! Writes to etcd that take effect only while a lock is held.

use std::fmt;
use std::sync::Arc;

use fencepost_core::{Claim, Error, Loss, Name, Result};

use crate::client::EtcdClient;
use crate::error::ENGINE;
use crate::rpc::proto::{Compare, DeleteRequest, Op, PutRequest, TxnRequest};

/// A grant as etcd knows it. [`Guard::native`](fencepost_core::Guard::native) returns it; downcast to this type. Clones are for the same
/// grant.
///
/// Data in the same etcd needs no fencing token: a transaction that compares the create revision of the lock's key takes effect only while
/// the lock is held, however late it arrives.
#[derive(Clone)]
pub struct Held {
    client: Arc<EtcdClient>,
    claim: Arc<Claim>,
    key: Vec<u8>,
    create_revision: i64,
}

/// A write under a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Write {
    /// Puts a value at a key.
    Put {
        /// The key.
        key: Vec<u8>,
        /// The value.
        value: Vec<u8>,
    },
    /// Deletes a key.
    Delete {
        /// The key.
        key: Vec<u8>,
    },
}

impl Held {
    pub(crate) fn new(
        client: &Arc<EtcdClient>,
        claim: &Arc<Claim>,
        key: &[u8],
        create_revision: i64,
    ) -> Held {
        Held { client: Arc::clone(client), claim: Arc::clone(claim), key: key.to_vec(), create_revision }
    }

    /// Returns the key of the grant. A transaction of any client is refused after the end of the grant if it requires that the key's create
    /// revision equals [`create_revision`](Held::create_revision).
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Returns the create revision of that key: the grant's fencing token.
    pub fn create_revision(&self) -> i64 {
        self.create_revision
    }

    /// Writes one key if the lock is still held when the server handles the request. Returns the revision of the write.
    ///
    /// # Errors
    /// As for [`write`](Held::write).
    ///
    /// # Cancel safety
    /// As for [`write`](Held::write).
    pub async fn put(&self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Result<i64> {
        self.write([Write::Put { key: key.into(), value: value.into() }]).await
    }

    /// Writes all keys in one transaction if the lock is still held when the server handles it. Returns the revision of the write.
    ///
    /// # Errors
    /// [`is_lost`](Error::is_lost) when the lock is not held any more; nothing was written. Otherwise the engine's error. If its
    /// [`effect`](Error::effect) is unknown, the write may have taken effect. It may also take effect later while the lock is held, and undo
    /// a later write. It is sent once. To be sure, release the lock and acquire it again: the server then refuses requests of the earlier
    /// grant.
    ///
    /// # Cancel safety
    /// If the future is dropped, the effect is unknown in the same way.
    pub async fn write(&self, writes: impl IntoIterator<Item = Write>) -> Result<i64> {
        let writes = writes.into_iter().map(|write| match write {
            Write::Put { key, value } => Op::Put(PutRequest { key, value, ..PutRequest::default() }).into(),
            Write::Delete { key } => Op::Delete(DeleteRequest { key, ..DeleteRequest::default() }).into(),
        });
        let txn = TxnRequest {
            compare: vec![Compare::created(&self.key, self.create_revision)],
            success: writes.collect(),
            failure: Vec::new(),
        };
        // A repeated request would undo a write between the two.
        let reply = self.client.cluster.call_once(txn).await;
        let reply = reply.map_err(|failure| failure.error.of(self.name()))?;
        if reply.succeeded {
            return Ok(reply.revision());
        }
        self.claim.validity.end(Loss::Deleted);
        let why = self.claim.validity.ended().unwrap_or(Loss::Deleted);
        Err(Error::lost(self.name(), why).on(ENGINE))
    }

    fn name(&self) -> Name {
        self.claim.want().name.clone()
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("key", &String::from_utf8_lossy(&self.key))
            .field("create_revision", &self.create_revision)
            .finish_non_exhaustive()
    }
}
