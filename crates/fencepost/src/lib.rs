//! Distributed locks over the engines you already run: one API, fencing tokens, leases that renew themselves.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! use fencepost::Locks;
//!
//! let locks = Locks::connect("memory:").await?; // or sqlite:/var/lib/app/locks.db
//! let stock = locks.mutex("stock/42")?;
//!
//! let guard = stock.lock().await?; // renewed by itself until released
//! println!("fencing token {}", guard.token());
//! guard.release().await?; // or drop it
//! # Ok::<(), fencepost::Error>(()) }).unwrap();
//! ```
//!
//! What is guaranteed, and what is not, stands in [`fencepost_core`]; what an engine adds or lacks, in its
//! [`Capabilities`] and its own documentation.
//!
//! # Features
//! - `etcd` (default): the engines `etcd://HOSTS` and `etcds:`.
//! - `redis` (default): the engines `redis:`, `rediss:`, `redis+unix:`, `redis+sentinel:`, `redis+cluster:`
//!   and `redlock:`.
//! - `sqlite` (default): the engine `sqlite:FILE`.
//! - `zookeeper` (default): the engines `zookeeper://HOSTS/PATH` and `zookeepers:`.
//! - `metrics`: counters and a histogram through the `metrics` facade.
//!
//! The engine `memory:` is always there.

use std::ops::Deref;

pub use fencepost_core::*;
#[cfg(feature = "etcd")]
pub use fencepost_etcd as etcd;
#[cfg(feature = "redis")]
pub use fencepost_redis as redis;
#[cfg(feature = "sqlite")]
pub use fencepost_sqlite as sqlite;
#[cfg(feature = "zookeeper")]
pub use fencepost_zookeeper as zookeeper;

/// A client of one engine: see [`fencepost_core::Locks`], whose methods it has, and which this only adds
/// [`connect`](Locks::connect) to.
#[derive(Clone, Debug)]
pub struct Locks(fencepost_core::Locks);

impl Locks {
    /// Options for a new client, for [`connect_with`](Locks::connect_with).
    pub fn builder() -> ClientBuilder {
        fencepost_core::Locks::builder()
    }

    /// Connects to the engine that `url` names, with default options.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a bad URL, with what is wrong with it; otherwise what the engine says.
    ///
    /// # Cancel safety
    /// Safe: nothing is held yet.
    pub async fn connect(url: &str) -> Result<Locks> {
        Locks::connect_with(Locks::builder(), url).await
    }

    /// Connects with options: see [`builder`](Locks::builder).
    ///
    /// # Errors
    /// As for [`connect`](Locks::connect).
    ///
    /// # Cancel safety
    /// Safe: nothing is held yet.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use fencepost::Locks;
    /// use std::time::Duration;
    ///
    /// // An engine that restarts when the job begins is waited for.
    /// let options = Locks::builder().holder("nightly job").connect_wait(Duration::from_secs(60));
    /// let locks = Locks::connect_with(options, "memory:").await?;
    /// # Ok::<(), fencepost::Error>(()) }).unwrap();
    /// ```
    pub async fn connect_with(options: ClientBuilder, url: &str) -> Result<Locks> {
        options.connect(&registry(), url).await.map(Locks)
    }
}

impl Deref for Locks {
    type Target = fencepost_core::Locks;

    fn deref(&self) -> &fencepost_core::Locks {
        &self.0
    }
}

impl From<fencepost_core::Locks> for Locks {
    fn from(locks: fencepost_core::Locks) -> Locks {
        Locks(locks)
    }
}

/// The engines that this build knows.
pub fn registry() -> Registry {
    let registry = Registry::new();
    #[cfg(feature = "sqlite")]
    let registry = registry.with("sqlite", fencepost_sqlite::open);
    #[cfg(not(feature = "sqlite"))]
    let registry = registry.without("sqlite", "sqlite");
    #[cfg(feature = "redis")]
    let registry = fencepost_redis::register(registry);
    #[cfg(not(feature = "redis"))]
    let registry = registry.without("redis", "redis").without("redlock", "redis");
    #[cfg(feature = "etcd")]
    let registry = fencepost_etcd::register(registry);
    #[cfg(not(feature = "etcd"))]
    let registry = registry.without("etcd", "etcd");
    #[cfg(feature = "zookeeper")]
    let registry = fencepost_zookeeper::register(registry);
    #[cfg(not(feature = "zookeeper"))]
    let registry = registry.without("zookeeper", "zookeeper");
    registry
}

/// Compiles and runs the examples of the pages.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../DESIGN.md")]
    struct Design;
    #[doc = include_str!("../../../docs/guarantees.md")]
    struct Guarantees;
}
