use std::fmt;

use crate::acquire::{Acquire, TryAcquire};
use crate::backend::admission::Mode;
use crate::client::handle::Handle;
use crate::name::Name;

/// A lock for a number of holders at a time. A crashed holder's permits come back with its lease.
#[derive(Clone)]
#[doc(alias(
    "RSemaphore",
    "RPermitExpirableSemaphore",
    "InterProcessSemaphoreV2",
    "InterProcessSemaphoreMutex"
))]
pub struct Semaphore {
    client: Handle,
    name: Name,
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

    /// How many permits there are.
    pub fn permits(&self) -> u32 {
        self.permits
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
    pub fn acquire(&self) -> Acquire<'_> {
        self.acquire_many(1)
    }

    /// Waits for `n` permits, all or none; claims behind it wait too, so that it does not starve. Errors and cancel safety are
    /// those of [`Mutex::lock`](crate::Mutex::lock); an `n` that can never be had [`is_invalid`](crate::Error::is_invalid).
    pub fn acquire_many(&self, n: u32) -> Acquire<'_> {
        Acquire::new(&self.client, &self.name, Mode::Permits { n, of: self.permits })
    }

    /// Is a permit free? Errors and cancel safety are those of [`Mutex::try_lock`](crate::Mutex::try_lock).
    #[doc(alias("tryAcquire"))]
    pub fn try_acquire(&self) -> TryAcquire<'_> {
        self.try_acquire_many(1)
    }

    /// Are `n` permits free? Errors and cancel safety are those of [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub fn try_acquire_many(&self, n: u32) -> TryAcquire<'_> {
        TryAcquire::new(&self.client, &self.name, Mode::Permits { n, of: self.permits })
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("name", &self.name)
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}
