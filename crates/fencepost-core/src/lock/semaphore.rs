use crate::acquire::options::Single;
use crate::acquire::{Acquire, Try};
use crate::backend::admission::Mode;
use crate::client::handle::Handle;
use crate::error::Result;
use crate::name::Name;

/// A lock for a number of holders at a time. A crashed holder's permits come back with its lease.
#[derive(Clone, Debug)]
#[doc(alias(
    "RSemaphore",
    "RPermitExpirableSemaphore",
    "InterProcessSemaphoreV2",
    "InterProcessSemaphoreMutex"
))]
pub struct Semaphore {
    pub(super) client: Handle,
    pub(super) name: Name,
    permits: u32,
}

impl Semaphore {
    pub(crate) fn new(client: Handle, name: Name, permits: u32) -> Semaphore {
        Semaphore { client, name, permits }
    }

    /// The resource's name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// How many permits there are, unless the engine [stores](Semaphore::set_permits) another limit.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Stores `permits` at the engine as the limit of this name. From now on it counts for the claims of all clients, whichever number
    /// they give: the engine admits each claim if the sum is at most this limit. Claims that fit now are granted at once. Holders keep
    /// their permits: below a smaller limit, new grants wait until the sum fits. A claim for more permits than the limit is an error.
    ///
    /// The limit stays until it is changed or [reset](Semaphore::reset_permits).
    ///
    /// # Errors
    /// [`is_invalid`](crate::Error::is_invalid) for zero permits, [`is_unsupported`](crate::Error::is_unsupported) if the engine stores
    /// [no limits](crate::Capabilities::stored_permits). Otherwise what the engine says.
    ///
    /// # Cancel safety
    /// Dropped midway, the limit is changed or not.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let locks = fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await?;
    /// let gpus = locks.semaphore("gpu", 4)?;
    /// gpus.set_permits(1).await?;
    /// let one = gpus.acquire().await?;
    /// assert!(gpus.try_acquire().await?.is_none());
    /// gpus.set_permits(2).await?;
    /// assert!(gpus.try_acquire().await?.is_some());
    /// assert_eq!(gpus.stored_permits().await?, Some(2));
    /// gpus.reset_permits().await?; // each client's own number counts again
    /// # drop(one);
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    #[doc(alias("trySetPermits", "setPermits", "SharedCountReader"))]
    pub async fn set_permits(&self, permits: u32) -> Result<()> {
        self.client.set_permits(&self.name, Some(permits)).await
    }

    /// Forgets the stored limit: each claim's own number counts again.
    ///
    /// # Errors
    /// Those of [`set_permits`](Semaphore::set_permits).
    ///
    /// # Cancel safety
    /// That of [`set_permits`](Semaphore::set_permits).
    pub async fn reset_permits(&self) -> Result<()> {
        self.client.set_permits(&self.name, None).await
    }

    /// Returns the stored limit. `None`: the engine stores none for this name.
    ///
    /// # Errors
    /// [`is_unsupported`](crate::Error::is_unsupported) if the engine stores no limits. Otherwise what the engine says.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn stored_permits(&self) -> Result<Option<u32>> {
        self.client.stored_permits(&self.name).await
    }

    /// Waits for one permit. Errors and cancel safety are those of [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let locks = fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await?;
    /// let printers = locks.semaphore("printers", 3)?;
    /// let (one, rest) = (printers.acquire().await?, printers.acquire_many(2).await?);
    /// assert!(printers.try_acquire().await?.is_none());
    /// # drop((one, rest));
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    pub fn acquire(&self) -> Acquire<Single<'_>> {
        self.acquire_many(1)
    }

    /// Waits for `n` permits, all or none; claims behind it wait too, so that it does not starve. Errors and cancel safety are
    /// those of [`Mutex::lock`](crate::Mutex::lock); an `n` that can never be granted [`is_invalid`](crate::Error::is_invalid).
    pub fn acquire_many(&self, n: u32) -> Acquire<Single<'_>> {
        Acquire::new(&self.client, &self.name, Mode::Permits { n, of: self.permits })
    }

    /// Is a permit free? Errors and cancel safety are those of [`Mutex::try_lock`](crate::Mutex::try_lock).
    #[doc(alias("tryAcquire"))]
    pub fn try_acquire(&self) -> Acquire<Single<'_>, Try> {
        self.try_acquire_many(1)
    }

    /// Are `n` permits free? Errors and cancel safety are those of [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub fn try_acquire_many(&self, n: u32) -> Acquire<Single<'_>, Try> {
        Acquire::new(&self.client, &self.name, Mode::Permits { n, of: self.permits })
    }
}
