//! The API for programs without an async runtime: each call blocks its thread.
//!
//! ```
//! use fencepost::blocking::Locks;
//! use std::time::Duration;
//!
//! let locks = Locks::connect("memory:")?;
//! let stock = locks.mutex("stock/42")?;
//!
//! let guard = stock.lock().wait(Duration::from_secs(5)).call()?; // options, then `call`
//! println!("fencing token {}", guard.token());
//! guard.release()?; // or drop it
//!
//! let sold = stock.lock().run(|lock| lock.token())?; // fails if the lock was lost meanwhile
//! # let _ = sold;
//! # Ok::<(), fencepost::Error>(())
//! ```
//!
//! Each type mirrors the one of the same name at the root of the crate, where its guarantees are documented. A request is made by
//! [`call`](Request::call) instead of `.await`.
//!
//! # What is guaranteed
//! - A call has the limits of its async twin: the client's own thread keeps the time. No runtime is started.
//! - Guards are `Send`: any thread may use or drop them, also one of `spawn_blocking` and one inside `block_in_place`.
//! - A call inside an async task of tokio is refused ([`is_invalid`](crate::Error::is_invalid)): it would block the task's thread.
//!
//! # What is not
//! - Work that blocks its thread is not stopped when its lock is lost: it asks [`ensure_held`](crate::GuardView::ensure_held).
//! - The tasks of other runtimes are not found, nor those inside `tokio::task::unconstrained`. A call there blocks their thread.

mod drive;
mod guard;
mod lock;
mod request;

use std::time::Duration;

use crate::{
    Capabilities, DetachedLease, Eviction, Holder, Info, ListAll, Listing, LocksBuilder, Page, Report,
    Result, Token,
};
use drive::{complete, drive};

pub use guard::{Guard, MultiGuard, ReentrantGuard};
pub use lock::{
    AnyLock, Barrier, Election, Firing, FreeFirst, Inside, Latch, Leaders, MultiLock, Mutex, Once, RwLock,
    Semaphore, StripedLock,
};
pub use request::{Blocking, Options, Request};

/// A client of one engine: see [`Locks`](crate::Locks).
#[derive(Clone, Debug)]
pub struct Locks(crate::Locks);

impl Locks {
    /// See [`Locks::connect`](crate::Locks::connect).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn connect(url: &str) -> Result<Locks> {
        Locks::open(crate::Locks::builder(url))
    }

    /// Connects with the options of [`Locks::builder`](crate::Locks::builder).
    ///
    /// # Errors
    /// Those of [`LocksBuilder::connect`].
    pub fn open(options: LocksBuilder) -> Result<Locks> {
        complete(options.connect()).map(Locks)
    }

    /// Returns the client for async code.
    pub fn to_async(&self) -> &crate::Locks {
        &self.0
    }

    /// See [`Client::capabilities`](crate::backend::Client::capabilities).
    pub fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }

    /// See [`Client::mutex`](crate::backend::Client::mutex).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn mutex(&self, name: &str) -> Result<Mutex> {
        self.0.mutex(name).map(Mutex::from)
    }

    /// See [`Client::rwlock`](crate::backend::Client::rwlock).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn rwlock(&self, name: &str) -> Result<RwLock> {
        self.0.rwlock(name).map(RwLock::from)
    }

    /// See [`Client::semaphore`](crate::backend::Client::semaphore).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn semaphore(&self, name: &str, permits: u32) -> Result<Semaphore> {
        self.0.semaphore(name, permits).map(Semaphore::from)
    }

    /// See [`Client::multi`](crate::backend::Client::multi).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn multi(&self, names: impl IntoIterator<Item = impl AsRef<str>>) -> Result<MultiLock> {
        self.0.multi(names).map(MultiLock::from)
    }

    /// See [`Client::striped`](crate::backend::Client::striped).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn striped(&self, name: &str, segments: u32) -> Result<StripedLock> {
        self.0.striped(name, segments).map(StripedLock::from)
    }

    /// See [`Client::election`](crate::backend::Client::election).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn election(&self, name: &str) -> Result<Election> {
        self.0.election(name).map(Election::from)
    }

    /// See [`Client::once`](crate::backend::Client::once).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn once(&self, name: &str, window: Duration) -> Result<Once> {
        self.0.once(name, window).map(Once::from)
    }

    /// See [`Client::latch`](crate::backend::Client::latch).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn latch(&self, name: &str, count: u32) -> Result<Latch> {
        self.0.latch(name, count).map(Latch::from)
    }

    /// See [`Client::barrier`](crate::backend::Client::barrier).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn barrier(&self, name: &str, members: u32) -> Result<Barrier> {
        self.0.barrier(name, members).map(Barrier::from)
    }

    /// See [`Client::attach`](crate::backend::Client::attach).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn attach(&self, lease: &DetachedLease) -> Result<Guard> {
        complete(self.0.attach(lease)).map(Guard::from)
    }

    /// See [`Client::extend`](crate::backend::Client::extend).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn extend(&self, lease: &DetachedLease, ttl: Duration) -> Result<DetachedLease> {
        complete(self.0.extend(lease, ttl))
    }

    /// See [`Client::release`](crate::backend::Client::release).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn release(&self, lease: &DetachedLease) -> Result<()> {
        complete(self.0.release(lease))
    }

    /// See [`Client::inspect`](crate::backend::Client::inspect).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn inspect(&self, name: &str) -> Result<Info> {
        complete(self.0.inspect(name))
    }

    /// See [`Client::list`](crate::backend::Client::list).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        complete(self.0.list(prefix, page))
    }

    /// See [`Client::list_all`](crate::backend::Client::list_all).
    pub fn list_all(&self, prefix: &str) -> impl Iterator<Item = Result<Info>> + use<> {
        All(self.0.list_all(prefix))
    }

    /// See [`Client::evict`](crate::backend::Client::evict).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn evict(&self, name: &str, token: Token, how: &Eviction) -> Result<()> {
        complete(self.0.evict(name, token, how))
    }

    /// See [`Client::examine`](crate::backend::Client::examine).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn examine(&self) -> Result<Report> {
        complete(self.0.examine())
    }

    /// See [`Client::close`](crate::backend::Client::close).
    ///
    /// # Errors
    /// [`is_invalid`](crate::Error::is_invalid) inside an async task: the client stays open.
    pub fn close(&self) -> Result<()> {
        drive(self.0.close())
    }
}

impl From<crate::Locks> for Locks {
    fn from(locks: crate::Locks) -> Locks {
        Locks(locks)
    }
}

/// Runs `work` with this holder, as [`Holder::scope`] does: all its requests on this thread are the holder's.
///
/// # Errors
/// [`is_invalid`](crate::Error::is_invalid) inside an async task: `work` was not begun.
pub fn scope<T>(holder: Holder, work: impl FnOnce() -> T) -> Result<T> {
    drive(holder.scope(async { work() }))
}

/// A listing as an iterator.
struct All(ListAll);

impl Iterator for All {
    type Item = Result<Info>;

    fn next(&mut self) -> Option<Result<Info>> {
        drive(self.0.next()).unwrap_or_else(|error| Some(Err(error)))
    }
}
