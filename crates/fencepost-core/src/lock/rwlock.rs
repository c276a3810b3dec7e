use crate::acquire::options::Single;
use crate::acquire::{Acquire, Try};
use crate::backend::admission::Mode;
use crate::client::handle::Handle;
use crate::name::Name;

/// A lock for many readers or one writer, in the order of arrival: a writer that waits holds up the readers behind it, so
/// nobody starves.
#[derive(Clone, Debug)]
#[doc(alias("RReadWriteLock", "InterProcessReadWriteLock", "ReadLock", "WriteLock"))]
pub struct RwLock {
    pub(super) client: Handle,
    pub(super) name: Name,
}

impl RwLock {
    pub(crate) fn new(client: Handle, name: Name) -> RwLock {
        RwLock { client, name }
    }

    /// The resource's name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Waits until it may be read, beside other readers. Errors and cancel safety are those of
    /// [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let locks = fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await?;
    /// let prices = locks.rwlock("prices")?;
    /// let (one, two) = (prices.read().await?, prices.read().await?);
    /// assert!(prices.try_write().await?.is_none());
    /// one.release().await?;
    /// two.release().await?;
    /// let guard = prices.write().await?;
    /// assert!(prices.try_read().await?.is_none());
    /// # drop(guard);
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    #[doc(alias("readLock", "pg_advisory_lock_shared"))]
    pub fn read(&self) -> Acquire<Single<'_>> {
        Acquire::new(&self.client, &self.name, Mode::Shared)
    }

    /// Waits until it may be written, beside nobody. Errors and cancel safety are those of
    /// [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// It excludes the holders of a [`Mutex`](crate::Mutex) of the same name, too. For other libraries on ZooKeeper the two are different
    /// locks: use this one where they use a read-write lock.
    #[doc(alias("writeLock"))]
    pub fn write(&self) -> Acquire<Single<'_>> {
        let mut asked = Acquire::new(&self.client, &self.name, Mode::Exclusive);
        asked.what.read_write = true;
        asked
    }

    /// May it be read now? Errors and cancel safety are those of [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub fn try_read(&self) -> Acquire<Single<'_>, Try> {
        Acquire::new(&self.client, &self.name, Mode::Shared)
    }

    /// May it be written now? Errors and cancel safety are those of [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub fn try_write(&self) -> Acquire<Single<'_>, Try> {
        let mut asked = Acquire::new(&self.client, &self.name, Mode::Exclusive);
        asked.what.read_write = true;
        asked
    }
}
