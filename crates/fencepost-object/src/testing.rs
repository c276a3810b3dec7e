//! A store in memory, for tests.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fencepost_core::{Backend, Error, Result, Runtime};
use futures_util::TryStreamExt as _;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _};

use crate::backend::open_store;
use crate::client::ObjectClient;
use crate::conn::Store;
use crate::keys::Keys;

/// A store in the memory of this process, with the conditions that servers have.
#[derive(Clone, Default, Debug)]
pub struct MemoryStore(Arc<InMemory>);

impl MemoryStore {
    /// Opens the engine on this store, for a client.
    ///
    /// # Errors
    /// None in practice.
    pub async fn open(&self, runtime: Runtime) -> Result<Arc<dyn Backend>> {
        let driver = Arc::<InMemory>::clone(&self.0);
        let store = Store::new(driver, "memory".to_owned(), Duration::from_secs(5), runtime);
        let client = ObjectClient::new(store, Keys::new(Path::default()), Duration::from_secs(1));
        open_store(client, &format!("memory {:p}", Arc::as_ptr(&self.0)), false).await
    }

    /// Returns the key and the text of each object.
    pub async fn objects(&self) -> Vec<(String, String)> {
        let mut all = Vec::new();
        let found: Vec<_> = self.0.list(None).try_collect().await.unwrap_or_default();
        for object in found {
            // One that was deleted meanwhile is none.
            let Ok(read) = self.0.get(&object.location).await else { continue };
            let bytes = read.bytes().await.unwrap_or_default();
            all.push((object.location.to_string(), String::from_utf8_lossy(&bytes).into_owned()));
        }
        all
    }

    /// Overwrites an object.
    ///
    /// # Errors
    /// The key is none.
    pub async fn put(&self, key: &str, text: &str) -> Result<()> {
        self.0.put(&parse(key)?, Bytes::from(text.to_owned()).into()).await.map(drop).map_err(bad)
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// The key is none.
    pub async fn delete(&self, key: &str) -> Result<()> {
        self.0.delete(&parse(key)?).await.map_err(bad)
    }
}

fn parse(key: &str) -> Result<Path> {
    Path::parse(key).map_err(|error| bad(error.into()))
}

fn bad(error: object_store::Error) -> Error {
    Error::invalid("the key is none").because(error)
}
