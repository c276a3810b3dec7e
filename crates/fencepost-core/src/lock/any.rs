//! A lock of any kind, chosen at run time.

use std::borrow::Cow;

use crate::acquire::{Acquire, Try};
use crate::lock::multi::Several;
use crate::lock::{Kind, MultiLock, Mutex, RwLock, Semaphore};
use crate::name::Name;

/// A lock of any kind: for functions that take whatever lock their caller chose. It has the guarantees of the lock inside.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let locks = fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await?;
/// use fencepost_core::{AnyLock, Client, Result};
///
/// async fn report(lock: &AnyLock) -> Result<usize> {
///     lock.lock().run(|locks| async move { locks.len() }).await
/// }
///
/// fn chosen(locks: &Client, exact: bool) -> Result<AnyLock> {
///     let prices = locks.rwlock("prices")?;
///     Ok(if exact { AnyLock::Write(prices) } else { AnyLock::Read(prices) })
/// }
///
/// assert_eq!(report(&chosen(&locks, false)?).await?, 1);
/// assert_eq!(report(&locks.multi(["a", "b"])?.into()).await?, 2);
/// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AnyLock {
    /// One holder: [`Mutex::lock`].
    Mutex(Mutex),
    /// One of many readers: [`RwLock::read`].
    Read(RwLock),
    /// One writer: [`RwLock::write`].
    Write(RwLock),
    /// A number of permits: [`Semaphore::acquire_many`].
    Permits(Semaphore, u32),
    /// Several names, also of several engines, all or none: [`MultiLock::lock`].
    Multi(MultiLock),
}

impl AnyLock {
    /// Returns the names, in the order in which they are locked.
    pub fn names(&self) -> &[Name] {
        let one = match self {
            AnyLock::Mutex(lock) => lock.name(),
            AnyLock::Read(lock) | AnyLock::Write(lock) => lock.name(),
            AnyLock::Permits(lock, _) => lock.name(),
            AnyLock::Multi(lock) => return lock.names(),
        };
        std::slice::from_ref(one)
    }

    /// Waits until the lock is held. Errors and cancel safety are those of the lock inside.
    pub fn lock(&self) -> Acquire<Several<'_>> {
        Several::request(self.set())
    }

    /// The lock, or `None` if it is busy. Errors and cancel safety are those of the lock inside.
    pub fn try_lock(&self) -> Acquire<Several<'_>, Try> {
        Several::request(self.set())
    }

    /// Returns the lock as a multi-lock, which may have one name.
    fn set(&self) -> Cow<'_, MultiLock> {
        let (client, name, kind) = match self {
            AnyLock::Mutex(lock) => (&lock.client, &lock.name, Kind::Mutex),
            AnyLock::Read(lock) => (&lock.client, &lock.name, Kind::Read),
            AnyLock::Write(lock) => (&lock.client, &lock.name, Kind::Write),
            AnyLock::Permits(lock, n) => {
                (&lock.client, &lock.name, Kind::Permits { n: *n, of: lock.permits() })
            }
            AnyLock::Multi(lock) => return Cow::Borrowed(lock),
        };
        Cow::Owned(MultiLock::of(client.clone(), name.clone(), kind))
    }
}

impl From<Mutex> for AnyLock {
    fn from(lock: Mutex) -> AnyLock {
        AnyLock::Mutex(lock)
    }
}

impl From<MultiLock> for AnyLock {
    fn from(lock: MultiLock) -> AnyLock {
        AnyLock::Multi(lock)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::client::Client;
    use crate::memory::Memory;

    #[tokio::test]
    async fn each_kind_locks_as_the_lock_inside_does() {
        let locks = Client::builder().open(|_| Ok(Memory::new())).unwrap();
        let (rwlock, semaphore) = (locks.rwlock("a").unwrap(), locks.semaphore("b", 3).unwrap());
        let all = [
            (AnyLock::from(locks.mutex("a").unwrap()), false),
            (AnyLock::Read(rwlock.clone()), true),
            (AnyLock::Write(rwlock), false),
            (AnyLock::Permits(semaphore, 2), false),
            (AnyLock::from(locks.multi(["a", "b"]).unwrap()), false),
        ];
        for (lock, twice) in all {
            let first = lock.lock().ttl(Duration::from_secs(9)).reason("test").await.unwrap();
            assert!(first.guards().iter().map(|guard| guard.name()).eq(lock.names()));
            assert_eq!(lock.try_lock().await.unwrap().is_some(), twice, "{lock:?}");
            let waited = lock.lock().wait(Duration::from_millis(1)).await;
            assert_eq!(waited.err().map(|error| error.is_timeout()), (!twice).then_some(true));
            first.release().await.unwrap();
            assert_eq!(
                lock.try_lock().run(|locks| async move { locks.len() }).await.unwrap(),
                Some(lock.names().len())
            );
        }
    }
}
