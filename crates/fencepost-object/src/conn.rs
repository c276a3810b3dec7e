//! The requests to the store.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use fencepost_core::{Clock, Error, Result, Runtime};
use futures_util::TryStreamExt as _;
use object_store::path::Path;
use object_store::{
    Error as Failed, ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, UpdateVersion,
};
use tokio::sync::oneshot;

use crate::error::{closed, failed, no_conditions, timed_out};

/// The version of an object, for a write that requires it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Version(UpdateVersion);

/// An object that was read.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) bytes: Bytes,
    pub(crate) version: Version,
}

/// The store, and the runtime on which its requests run. There is no `Debug`: the driver has the credentials.
pub(crate) struct Store {
    driver: Arc<dyn ObjectStore>,
    /// How messages name it.
    shown: String,
    timeout: Duration,
    runtime: Runtime,
    closed: AtomicBool,
}

impl Store {
    pub(crate) fn new(
        driver: Arc<dyn ObjectStore>,
        shown: String,
        timeout: Duration,
        runtime: Runtime,
    ) -> Store {
        Store { driver, shown, timeout, runtime, closed: AtomicBool::new(false) }
    }

    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(crate) fn clock(&self) -> &Clock {
        self.runtime.clock()
    }

    /// Makes all later requests fail.
    pub(crate) fn close(&self) {
        self.closed.store(true, Relaxed);
    }

    /// Runs requests on the client's thread, because the driver needs tokio and the caller may have another runtime or none. Nothing is
    /// sent before the first poll. From then on they run to their end, also if their caller goes away.
    pub(crate) fn run<T, W>(&self, work: W) -> impl Future<Output = Result<T>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: Future<Output = Result<T>> + Send + 'static,
    {
        let runtime = self.runtime.clone();
        async move {
            let (sender, answer) = oneshot::channel();
            runtime.spawn(async move {
                let _ = sender.send(work.await);
            });
            // The client's thread has ended, perhaps behind the request.
            answer.await.unwrap_or_else(|_| Err(closed().unknown()))
        }
    }

    async fn limited<T>(
        &self,
        request: impl Future<Output = Result<T, Failed>>,
    ) -> Result<Result<T, Failed>> {
        if self.closed.load(Relaxed) {
            return Err(closed());
        }
        let until = self.clock().now() + self.timeout;
        self.clock().within(until, request).await.ok_or_else(|| timed_out(&self.shown, self.timeout))
    }

    fn failed(&self, error: Failed) -> Error {
        failed(&self.shown, error)
    }

    /// Reads an object. `None`: there is none.
    pub(crate) async fn get(&self, key: &Path) -> Result<Option<Object>> {
        let request = async {
            let found = self.driver.get(key).await?;
            let version =
                UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
            Ok(Object { version: Version(version), bytes: found.bytes().await? })
        };
        match self.limited(request).await.map_err(Error::without_effect)? {
            Ok(object) => Ok(Some(object)),
            Err(Failed::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed(error).without_effect()),
        }
    }

    /// Writes an object if it has this version, or if there is none. Returns the new version. `None`: somebody else has written it.
    ///
    /// An earlier write without an answer may have taken effect. Then this one finds another version.
    pub(crate) async fn put(
        &self,
        key: &Path,
        at: Option<&Version>,
        bytes: Bytes,
    ) -> Result<Option<Version>> {
        let mode = at.map_or(PutMode::Create, |version| PutMode::Update(version.0.clone()));
        let options = PutOptions { mode, ..PutOptions::default() };
        match self.limited(self.driver.put_opts(key, bytes.into(), options)).await? {
            Ok(put) if put.e_tag.is_none() && put.version.is_none() => {
                Err(no_conditions(&self.shown).unknown())
            }
            Ok(put) => Ok(Some(Version(UpdateVersion { e_tag: put.e_tag, version: put.version }))),
            Err(Failed::Precondition { .. } | Failed::AlreadyExists { .. }) => Ok(None),
            // The object to update is gone. Without one to update it is the bucket that is missing.
            Err(Failed::NotFound { .. }) if at.is_some() => Ok(None),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Writes an object whatever is there.
    pub(crate) async fn overwrite(&self, key: &Path, bytes: Bytes) -> Result<()> {
        match self.limited(self.driver.put(key, bytes.into())).await? {
            Ok(_) => Ok(()),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Deletes an object, if it is there.
    pub(crate) async fn delete(&self, key: &Path) -> Result<()> {
        match self.limited(self.driver.delete(key)).await? {
            Ok(()) | Err(Failed::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Lists all objects below a key. A store answers 1,000 of them by one request.
    pub(crate) async fn list(&self, below: &Path) -> Result<Vec<ObjectMeta>> {
        let until = self.clock().now() + self.timeout;
        let mut objects = self.driver.list(Some(below));
        let mut all = Vec::new();
        let mut limit = until;
        loop {
            if self.closed.load(Relaxed) {
                return Err(closed());
            }
            let next = self.clock().within(limit, objects.try_next()).await;
            match next.ok_or_else(|| timed_out(&self.shown, self.timeout).without_effect())? {
                Ok(Some(object)) => all.push(object),
                Ok(None) => return Ok(all),
                Err(error) => return Err(self.failed(error).without_effect()),
            }
            // Each page has the time limit of a request.
            limit = self.clock().now() + self.timeout;
        }
    }
}
