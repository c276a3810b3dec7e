//! How a client is made.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::Notify;

use crate::aid::Aid;
use crate::backend::Backend;
use crate::capability::{Identity, Tokens};
use crate::client::Client;
use crate::connect;
use crate::error::{Error, Result};
use crate::holder::Holder;
use crate::keeper::Keeper;
use crate::locks::Locks;
use crate::registry::Registry;
use crate::thread::Thread;
use crate::time::Clock;

/// Options of a client: see [`Locks::builder`].
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    holder: Option<String>,
    ttl: Option<Duration>,
    outage: Duration,
    connect_wait: Option<Duration>,
    attempt_timeout: Duration,
    release_timeout: Duration,
    replicas: u32,
    tokens: Tokens,
    aid: Option<Aid>,
}

impl Default for ClientBuilder {
    fn default() -> ClientBuilder {
        ClientBuilder {
            holder: None,
            ttl: None,
            outage: Duration::from_secs(10),
            connect_wait: None,
            attempt_timeout: Duration::from_secs(1),
            release_timeout: Duration::from_secs(2),
            replicas: 0,
            tokens: Tokens::None,
            aid: None,
        }
    }
}

impl ClientBuilder {
    /// How holders are shown to operators, in up to [`Holder::MAX_BYTES`]; by default `user@host/program`. Carries no rights.
    #[must_use]
    pub fn holder(mut self, label: &str) -> ClientBuilder {
        self.holder = Some(label.to_owned());
        self
    }

    /// The lease of locks that don't say their own, renewed at a third; [`Locks::DEFAULT_TTL`] by default.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> ClientBuilder {
        self.ttl = Some(ttl);
        self
    }

    /// Sets how long `lock()` keeps retrying while the engine is unavailable, unless its own waiting time ends earlier; 10 s by default.
    #[must_use]
    pub fn outage(mut self, outage: Duration) -> ClientBuilder {
        self.outage = outage;
        self
    }

    /// How long [`connect`](ClientBuilder::connect) tries again while the engine is unreachable. Other errors, as of a wrong password,
    /// fail at once. The first attempt may take as long as [`attempt_timeout`](ClientBuilder::attempt_timeout) in any
    /// case. Without this one attempt is made.
    #[must_use]
    pub fn connect_wait(mut self, wait: Duration) -> ClientBuilder {
        self.connect_wait = Some(wait);
        self
    }

    /// Bounds the first attempt of a call whose [waiting time](crate::Acquire::wait) is shorter; 1 s by default. Such a call returns after
    /// this time at the latest.
    #[must_use]
    pub fn attempt_timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.attempt_timeout = timeout;
        self
    }

    /// Bounds how long [`Guard::release`](crate::Guard::release) waits for the engine, which is never longer than the lease still
    /// lasts; 2 s by default. What is not confirmed by then goes on in the background.
    #[must_use]
    pub fn release_timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.release_timeout = timeout;
        self
    }

    /// Replicas that must have a grant before it counts, for all locks that don't say their own number: see
    /// [`Acquire::replicas`](crate::Acquire::replicas). None by default.
    #[must_use]
    pub fn replicas(mut self, replicas: u32) -> ClientBuilder {
        self.replicas = replicas;
        self
    }

    /// Refuses an engine whose fencing tokens are of a weaker class than this.
    #[must_use]
    pub fn require_tokens(mut self, least: Tokens) -> ClientBuilder {
        self.tokens = least;
        self
    }

    /// Runs on another clock and host: for simulations. The client then has no thread.
    #[must_use]
    pub fn aid(mut self, aid: Aid) -> ClientBuilder {
        self.aid = Some(aid);
        self
    }

    /// Connects to the engine that `url` names.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a bad URL or label, [`is_unsupported`](Error::is_unsupported) if the engine cannot do what is
    /// required of it; what the engine says otherwise.
    ///
    /// # Cancel safety
    /// Safe: nothing is held yet.
    pub async fn connect(self, registry: &Registry, url: &str) -> Result<Locks> {
        let (aid, thread) = self.start()?;
        let bounds = (self.connect_wait, self.attempt_timeout);
        let backend = connect::open(registry, url, &aid, bounds).await;
        let backend = backend.map_err(Error::without_effect)?;
        self.finish(backend, aid, thread)
    }

    /// A client of an engine that is made here.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a lease out of the engine's bounds or a bad label, [`is_unsupported`](Error::is_unsupported) if it
    /// cannot do what is required of it; what `make` says.
    pub fn open(self, make: impl FnOnce(&Aid) -> Result<Arc<dyn Backend>>) -> Result<Locks> {
        let (aid, thread) = self.start()?;
        let backend = make(&aid)?;
        self.finish(backend, aid, thread)
    }

    fn start(&self) -> Result<(Aid, Option<Thread>)> {
        self.holder.as_deref().map_or(Ok(()), |label| Holder::check("label", label))?;
        match &self.aid {
            Some(aid) => Ok((aid.clone(), None)),
            None => Thread::start(Clock::boot()).map(|(thread, aid)| (aid, Some(thread))),
        }
    }

    fn finish(self, backend: Arc<dyn Backend>, aid: Aid, thread: Option<Thread>) -> Result<Locks> {
        let capabilities = backend.capabilities();
        let backend = match capabilities.identity {
            Identity::Claim => backend,
            Identity::Process => Arc::new(crate::local::Gate::new(backend)),
        };
        let holder = match &self.holder {
            Some(label) => Holder::labelled(label),
            None => Arc::new(Holder::this_process()),
        };
        let ttl = self.ttl.unwrap_or_else(|| Locks::DEFAULT_TTL.min(capabilities.max_ttl));
        let client = Client {
            backend,
            capabilities,
            keeper: Keeper::start(&aid),
            aid,
            holder,
            ttl,
            replicas: self.replicas,
            outage: self.outage,
            attempt_timeout: self.attempt_timeout,
            release_timeout: self.release_timeout,
            closed: AtomicBool::new(false),
            closing: Notify::new(),
            thread,
            fork: forkguard::new(),
        };
        client.check_ttl(ttl)?;
        client.check_replicas(self.replicas)?;
        client.check_tokens(self.tokens)?;
        Ok(Locks { client: Arc::new(client) })
    }
}
