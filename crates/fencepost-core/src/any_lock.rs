//! A lock of any kind, chosen at run time.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use crate::acquire::{Acquire, TryAcquire};
use crate::error::Result;
use crate::guard::holder::Holder;
use crate::guard::multi::MultiGuard;
use crate::guard::view::GuardView;
use crate::lock::{AcquireAll, MultiLock, Mutex, RwLock, Semaphore, TryAcquireAll};
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
    pub fn lock(&self) -> AcquireAny<'_> {
        AcquireAny(match self {
            AnyLock::Mutex(lock) => Request::One(lock.lock()),
            AnyLock::Read(lock) => Request::One(lock.read()),
            AnyLock::Write(lock) => Request::One(lock.write()),
            AnyLock::Permits(lock, n) => Request::One(lock.acquire_many(*n)),
            AnyLock::Multi(lock) => Request::All(lock.lock()),
        })
    }

    /// The lock, or `None` if it is busy. Errors and cancel safety are those of the lock inside.
    pub fn try_lock(&self) -> TryAcquireAny<'_> {
        TryAcquireAny(match self {
            AnyLock::Mutex(lock) => Request::One(lock.try_lock()),
            AnyLock::Read(lock) => Request::One(lock.try_read()),
            AnyLock::Write(lock) => Request::One(lock.try_write()),
            AnyLock::Permits(lock, n) => Request::One(lock.try_acquire_many(*n)),
            AnyLock::Multi(lock) => Request::All(lock.try_lock()),
        })
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

/// A request for one name, or for several.
#[derive(Debug)]
enum Request<One, All> {
    One(One),
    All(All),
}

/// A request for an [`AnyLock`] that waits: await it, or set options first.
#[derive(Debug)]
#[must_use = "nothing is asked for until it is awaited"]
pub struct AcquireAny<'a>(Request<Acquire<'a>, AcquireAll<'a>>);

/// A request for an [`AnyLock`] that answers `None` when it is busy: await it, or set options first.
#[derive(Debug)]
#[must_use = "nothing is asked for until it is awaited"]
pub struct TryAcquireAny<'a>(Request<TryAcquire<'a>, TryAcquireAll<'a>>);

macro_rules! options {
    ($request:ident: $($option:ident($($value:ident: $type:ty)?);)*) => {
        impl $request<'_> {$(
            #[doc = concat!("See [`Acquire::", stringify!($option), "`].")]
            pub fn $option(self $(, $value: $type)?) -> Self {
                $request(match self.0 {
                    Request::One(one) => Request::One(one.$option($($value)?)),
                    Request::All(all) => Request::All(all.$option($($value)?)),
                })
            }
        )*}
    };
    ($($request:ident)*) => {$(
        options! {
            $request:
            wait(wait: Duration);
            ttl(ttl: Duration);
            no_renewal();
            unfair();
            max_hold(max_hold: Duration);
            evict_overdue();
            at_least(at_least: Duration);
            replicas(replicas: u32);
            holder(holder: &Holder);
            label(label: &str);
            reason(reason: &str);
        }
    )*};
}
options!(AcquireAny TryAcquireAny);

impl AcquireAny<'_> {
    /// Acquires the lock, runs `work`, and releases the lock: see [`Acquire::run`]. `work` gets a view of each name's grant.
    ///
    /// # Errors
    /// Those of [`Acquire::run`].
    ///
    /// # Cancel safety
    /// That of [`Acquire::run`].
    pub async fn run<W: Future>(self, work: impl FnOnce(Vec<GuardView>) -> W) -> Result<W::Output> {
        match self.0 {
            Request::One(one) => one.run(|view| work(vec![view])).await,
            Request::All(all) => all.run(work).await,
        }
    }
}

impl TryAcquireAny<'_> {
    /// Runs `work` if the lock is free; `None` if it is busy: see [`TryAcquire::run`].
    ///
    /// # Errors
    /// Those of [`TryAcquire::run`].
    ///
    /// # Cancel safety
    /// That of [`Acquire::run`].
    pub async fn run<W: Future>(self, work: impl FnOnce(Vec<GuardView>) -> W) -> Result<Option<W::Output>> {
        match self.0 {
            Request::One(one) => one.run(|view| work(vec![view])).await,
            Request::All(all) => all.run(work).await,
        }
    }
}

impl<'a> IntoFuture for AcquireAny<'a> {
    type Output = Result<MultiGuard>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        match self.0 {
            Request::One(one) => Box::pin(async move { one.await.map(MultiGuard::from) }),
            Request::All(all) => all.into_future(),
        }
    }
}

impl<'a> IntoFuture for TryAcquireAny<'a> {
    type Output = Result<Option<MultiGuard>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        match self.0 {
            Request::One(one) => Box::pin(async move { Ok(one.await?.map(MultiGuard::from)) }),
            Request::All(all) => all.into_future(),
        }
    }
}

#[cfg(test)]
mod tests {
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
            assert!(first.guards().iter().map(crate::Guard::name).eq(lock.names()));
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
