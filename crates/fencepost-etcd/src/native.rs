//! The engine's own strength: what a lock protects may be written under the condition that it is held.

use std::fmt;
use std::sync::Arc;

use fencepost_core::{Claim, Error, Loss, Result};

use crate::net::TXN;
use crate::proto::{Compare, DeleteRequest, Op, PutRequest, TxnRequest, TxnResponse};
use crate::shared::Shared;

/// A grant as etcd knows it: what [`Guard::native`](fencepost_core::Guard::native) gives, to be downcast to. Clones are for the same
/// grant.
///
/// Whoever writes to the same etcd needs no token: a transaction that compares the create revision of the lock's key takes
/// effect only while the lock is held, however late it arrives.
#[derive(Clone)]
pub struct Held {
    shared: Arc<Shared>,
    claim: Arc<Claim>,
    key: Vec<u8>,
    create_revision: i64,
}

/// What is written under a lock.
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
    pub(crate) fn new(shared: &Arc<Shared>, claim: &Arc<Claim>, key: &[u8], create_revision: i64) -> Held {
        Held { shared: Arc::clone(shared), claim: Arc::clone(claim), key: key.to_vec(), create_revision }
    }

    /// The key of the grant. A transaction of any client that compares its create revision with
    /// [`create_revision`](Held::create_revision) for equality is refused once the grant is gone.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The create revision of that key: the grant's fencing token.
    pub fn create_revision(&self) -> i64 {
        self.create_revision
    }

    /// Writes one key, if the lock is still held when the server comes to it. Answers with the revision of the write.
    ///
    /// # Errors
    /// As for [`write`](Held::write).
    ///
    /// # Cancel safety
    /// As for [`write`](Held::write).
    pub async fn put(&self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Result<i64> {
        self.write([Write::Put { key: key.into(), value: value.into() }]).await
    }

    /// Writes all of it in one transaction, if the lock is still held when the server comes to it. Answers with the revision of
    /// the write.
    ///
    /// # Errors
    /// [`is_lost`](Error::is_lost) when the lock is not held any more: nothing was written. Otherwise what the engine says; where its
    /// [`effect`](Error::effect) is unknown, the write may have taken effect, or may yet, for as long as the lock is held: also after
    /// others that were made later, which it then undoes. It is never sent twice. Who has to be sure releases the lock and takes it
    /// again: what was sent under the earlier grant is refused from then on.
    ///
    /// # Cancel safety
    /// Dropped midway, it is written or not, or later, as where the effect is unknown.
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
        // A second copy would undo what was written between the two.
        let answer = self.shared.net.once(TXN, txn).await;
        let answer: TxnResponse = answer.map_err(|failure| failure.error().of(self.name()))?;
        if answer.succeeded {
            return Ok(answer.revision());
        }
        // The server's word is final: whoever watches the guard is told as well.
        self.claim.validity.end(Loss::Deleted);
        let why = self.claim.validity.ended().unwrap_or(Loss::Deleted);
        Err(Error::lost(self.name(), why).on(crate::error::ENGINE))
    }

    fn name(&self) -> fencepost_core::Name {
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
