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
//! [`fencepost_core`] states what is guaranteed and what is not. The [`Capabilities`] of an engine and its own page state what
//! that engine adds or lacks. To test a program without a server, start with [`testing`]. To write an engine, start with [`backend`].
//!
//! # Features
//! - `etcd`: the engines `etcd://HOSTS` and `etcds:`.
//! - `http`: the lock service (`fencepost serve`) as an engine: `http://HOST` and `https:`.
//! - `redis`: the engines `redis:`, `rediss:`, `redis+unix:`, `redis+sentinel:`, `redis+cluster:`
//!   and `redlock:`.
//! - `sqlite`: the engine `sqlite:FILE`.
//! - `zookeeper`: the engines `zookeeper://HOSTS/PATH` and `zookeepers:`.
//! - `mysql`: the engines `mysql://USER@HOST/DATABASE` and `mariadb:`.
//! - `object`: the engines `s3://BUCKET`, `gs://BUCKET` and `az://CONTAINER`. It has TLS, and needs a C compiler.
//! - `postgres`: the engine `postgres://USER@HOST/DATABASE`.
//! - `blocking`: the trait [`Block`], for programs without an async runtime.
//! - `macros`: the attribute [`macro@locked`], which runs a function under a lock.
//! - `tls`: connections with TLS to Redis, etcd, ZooKeeper, MySQL, PostgreSQL and the lock service. It needs a C compiler.
//! - `metrics`: counters and a histogram through the `metrics` facade.
//! - `serde`: `Serialize` and `Deserialize` of a [`Token`], as a number.
//!
//! The engine `memory:` is always there. A URL of an engine whose feature is off is refused with an error that names the feature.

// docs.rs names the feature of each item.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "blocking")]
mod blocking;
mod builder;
pub mod testing;

use std::ops::Deref;

#[cfg(feature = "blocking")]
pub use blocking::{Answer, Answered, Block};
pub use builder::LocksBuilder;
#[cfg(feature = "etcd")]
pub use fencepost_etcd as etcd;
#[cfg(feature = "http")]
pub use fencepost_http as http;
#[cfg(feature = "macros")]
pub use fencepost_macros::locked;
#[cfg(feature = "mysql")]
pub use fencepost_mysql as mysql;
#[cfg(feature = "object")]
pub use fencepost_object as object;
#[cfg(feature = "postgres")]
pub use fencepost_postgres as postgres;
#[cfg(feature = "redis")]
pub use fencepost_redis as redis;
#[cfg(feature = "sqlite")]
pub use fencepost_sqlite as sqlite;
#[cfg(feature = "zookeeper")]
pub use fencepost_zookeeper as zookeeper;

pub use fencepost_core::{
    Acquire, AnyLock, Capabilities, ClaimInfo, Degraded, DetachedLease, Effect, Error, ErrorKind, Eviction,
    Finding, Firing, Guard, GuardView, Holder, HolderInfo, Info, Kind, ListAll, Listing, Loss, Mode, Moment,
    MultiGuard, MultiLock, Mutex, Name, Once, Page, ReentrantGuard, Report, Result, Run, RunEnd, Runs,
    RwLock, Semaphore, Severity, State, Token, Tokens, TryUpgrade, Upgrade, request,
};
pub use fencepost_degrade::Degrade;
pub use fencepost_recipes::{
    Barrier, Election, FreeFirst, Inside, Latch, Leader, Leaders, StripedLock, Usage,
};

/// The parts that engine authors need: the traits of an engine, its registry and the memory engine.
pub mod backend {
    pub use fencepost_core::*;

    /// Returns the engines that this build knows.
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
        #[cfg(feature = "http")]
        let registry = fencepost_http::register(registry);
        #[cfg(not(feature = "http"))]
        let registry = registry.without("http", "http");
        #[cfg(feature = "mysql")]
        let registry = fencepost_mysql::register(registry);
        #[cfg(not(feature = "mysql"))]
        let registry = registry.without("mysql", "mysql").without("mariadb", "mysql");
        #[cfg(feature = "object")]
        let registry = fencepost_object::register(registry);
        #[cfg(not(feature = "object"))]
        let registry = registry.without("s3", "object").without("gs", "object").without("az", "object");
        #[cfg(feature = "postgres")]
        let registry = fencepost_postgres::register(registry);
        #[cfg(not(feature = "postgres"))]
        let registry = registry.without("postgres", "postgres");
        #[cfg(feature = "zookeeper")]
        let registry = fencepost_zookeeper::register(registry);
        #[cfg(not(feature = "zookeeper"))]
        let registry = registry.without("zookeeper", "zookeeper");
        registry
    }
}

/// A client of one engine. Clones share it.
///
/// It dereferences to [`fencepost_core::Client`], and has the methods of that, too.
#[derive(Clone, Debug)]
pub struct Locks(fencepost_core::Client);

impl Locks {
    /// Connects to the engine that `url` names, with default options.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a bad URL, with what is wrong with it. Other errors are those of the engine.
    ///
    /// # Cancel safety
    /// Safe: nothing is held yet.
    pub async fn connect(url: &str) -> Result<Locks> {
        Locks::builder(url).connect().await
    }

    /// Sets options before connecting to the engine that `url` names.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use fencepost::Locks;
    /// use std::time::Duration;
    ///
    /// let locks = Locks::builder("memory:")
    ///     .label("nightly job")
    ///     .connect_wait(Duration::from_secs(60)) // the engine may still be starting
    ///     .connect()
    ///     .await?;
    /// # Ok::<(), fencepost::Error>(()) }).unwrap();
    /// ```
    pub fn builder(url: &str) -> LocksBuilder {
        LocksBuilder::new(url)
    }

    /// An election of one leader. No I/O.
    ///
    /// # Errors
    /// Those of [`Election::new`].
    pub fn election(&self, name: &str) -> Result<Election> {
        Election::new(self, name)
    }

    /// A latch that opens once it has been counted down `count` times. No I/O. All users of a name give the same number.
    ///
    /// # Errors
    /// Those of [`Latch::new`].
    pub fn latch(&self, name: &str, count: u32) -> Result<Latch> {
        Latch::new(self, name, count)
    }

    /// A double barrier for `members` processes. No I/O. All users of a name give the same number.
    ///
    /// # Errors
    /// Those of [`Barrier::new`].
    pub fn barrier(&self, name: &str, members: u32) -> Result<Barrier> {
        Barrier::new(self, name, members)
    }

    /// A resource in `segments` parts, each with a lock of its own. No I/O. All users of a name give the same number.
    ///
    /// # Errors
    /// Those of [`StripedLock::new`].
    pub fn striped(&self, name: &str, segments: u32) -> Result<StripedLock> {
        StripedLock::new(self, name, segments)
    }
}

impl Deref for Locks {
    type Target = fencepost_core::Client;

    fn deref(&self) -> &fencepost_core::Client {
        &self.0
    }
}

impl From<fencepost_core::Client> for Locks {
    fn from(locks: fencepost_core::Client) -> Locks {
        Locks(locks)
    }
}

/// Compiles and runs the examples of the pages.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../README.zh-CN.md")]
    struct ReadmeInChinese;
    #[doc = include_str!("../../../DESIGN.md")]
    struct Design;
    #[doc = include_str!("../../../docs/guarantees.md")]
    struct Guarantees;
    #[cfg(all(feature = "blocking", feature = "macros"))]
    #[doc = include_str!("../../../docs/library.md")]
    struct Library;
    #[cfg(all(feature = "blocking", feature = "macros"))]
    #[doc = include_str!("../../fencepost-macros/src/locked.md")]
    struct Locked;
    #[doc = include_str!("../../../docs/coming-from.md")]
    struct ComingFrom;
    #[doc = include_str!("../../../docs/testing-your-code.md")]
    struct TestingYourCode;
    #[doc = include_str!("../../../docs/tokens.md")]
    struct Tokens;
    #[doc = include_str!("../../../docs/zh/tokens.md")]
    struct TokensInChinese;
    #[doc = include_str!("../../../docs/zh/tutorial.md")]
    struct TutorialInChinese;
    #[doc = include_str!("../../../docs/axum.md")]
    struct Axum;
    #[cfg(feature = "postgres")]
    #[doc = include_str!("../../../docs/axum-postgres.md")]
    struct AxumPostgres;
    #[doc = include_str!("../../../docs/degrade.md")]
    struct Degrade;
    #[doc = include_str!("../../../docs/zh/degrade.md")]
    struct DegradeInChinese;
    #[doc = include_str!("../../../docs/first-steps.md")]
    struct FirstSteps;
    #[doc = include_str!("../../../docs/zh/first-steps.md")]
    struct FirstStepsInChinese;
    #[doc = include_str!("../../../docs/leases.md")]
    struct Leases;
    #[doc = include_str!("../../../docs/zh/leases.md")]
    struct LeasesInChinese;
    #[doc = include_str!("../../../docs/leader.md")]
    struct Leader;
    #[doc = include_str!("../../../docs/zh/leader.md")]
    struct LeaderInChinese;
    #[doc = include_str!("../../../docs/demos/oversell.md")]
    struct Oversell;
    #[doc = include_str!("../../../docs/zh/demos/oversell.md")]
    struct OversellInChinese;
    #[doc = include_str!("../../../docs/demos/segments.md")]
    struct Segments;
    #[doc = include_str!("../../../docs/zh/demos/segments.md")]
    struct SegmentsInChinese;
    #[doc = include_str!("../../../docs/demos/zombie.md")]
    struct Zombie;
    #[doc = include_str!("../../../docs/zh/demos/zombie.md")]
    struct ZombieInChinese;
    #[doc = include_str!("../../../docs/demos/leader.md")]
    struct LeaderDemo;
    #[doc = include_str!("../../../docs/zh/demos/leader.md")]
    struct LeaderDemoInChinese;
}
