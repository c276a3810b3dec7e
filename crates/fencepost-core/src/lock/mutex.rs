use crate::acquire::options::Single;
use crate::acquire::{Acquire, Try};
use crate::backend::admission::Mode;
use crate::client::handle::Handle;
use crate::name::Name;

/// A lock for one holder at a time. Clones are the same lock; so is every other one of this name on the same engine.
#[derive(Clone, Debug)]
#[doc(alias(
    "RLock",
    "RFairLock",
    "RFencedLock",
    "InterProcessMutex",
    "NewMutex",
    "flock",
    "SETNX",
    "GET_LOCK",
    "pg_advisory_lock",
    "ShedLock",
    "Redlock"
))]
pub struct Mutex {
    pub(super) client: Handle,
    pub(super) name: Name,
}

impl Mutex {
    pub(crate) fn new(client: Handle, name: Name) -> Mutex {
        Mutex { client, name }
    }

    /// The resource's name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Waits until the lock is held; set a bound with [`wait`](Acquire::wait). First come, first served, where the engine
    /// [can promise it](crate::Capabilities::fair).
    ///
    /// # Errors
    /// [`is_timeout`](crate::Error::is_timeout) after the waiting time; what the engine says if it fails for longer than the
    /// client's [outage](crate::ClientBuilder::outage).
    ///
    /// # Cancel safety
    /// Dropped at any await it leaves nothing behind: its position in the queue, or its grant, is withdrawn in the background. The
    /// position is lost.
    ///
    /// A future that is kept but not polled keeps its position. When its turn comes, most engines leave the lock idle until it is
    /// polled or dropped.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let locks = fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await?;
    /// use std::time::Duration;
    ///
    /// let stock = locks.mutex("stock/42")?;
    /// let guard = stock.lock().wait(Duration::from_secs(5)).reason("restock").await?;
    /// assert!(stock.try_lock().await?.is_none(), "busy is not an error");
    ///
    /// let error = stock.lock().wait(Duration::from_millis(20)).await.unwrap_err();
    /// assert!(error.is_timeout() && error.to_string().contains("restock"));
    /// guard.release().await?;
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    #[doc(alias("acquire", "pg_advisory_lock"))]
    pub fn lock(&self) -> Acquire<Single<'_>> {
        Acquire::new(&self.client, &self.name, Mode::Exclusive)
    }

    /// The lock, or `None` if it is busy, at once or after [`wait`](Acquire::wait).
    ///
    /// # Errors
    /// Errors of the engine.
    ///
    /// # Cancel safety
    /// As for [`lock`](Mutex::lock).
    #[doc(alias("tryLock", "SchedulerLock", "lockAtMostFor", "SETNX", "GET_LOCK", "pg_try_advisory_lock"))]
    pub fn try_lock(&self) -> Acquire<Single<'_>, Try> {
        Acquire::new(&self.client, &self.name, Mode::Exclusive)
    }
}
