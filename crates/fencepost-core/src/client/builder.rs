//! How a client is made.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::Backend;
use crate::backend::admission::Mode;
use crate::backend::capabilities::Tokens;
use crate::client::Client;
use crate::client::handle::Handle;
use crate::client::layer::{Connector, Layer};
use crate::client::registry::Registry;
use crate::client::shared::ClientShared;
use crate::client::url::BackendUrl;
use crate::error::{Error, Result};
use crate::operator::holder::HolderInfo;
use crate::runtime::Runtime;
use crate::runtime::deadlines::Deadlines;
use crate::runtime::renewer::Renewer;
use crate::runtime::thread::Thread;
use crate::telemetry;
use crate::time::Clock;

/// Options of a client: see [`Client::builder`].
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    holder: Option<String>,
    ttl: Option<Duration>,
    outage: Duration,
    connect_wait: Option<Duration>,
    attempt_timeout: Duration,
    release_timeout: Duration,
    drop_timeout: Duration,
    close_timeout: Duration,
    replicas: u32,
    announced: Option<Duration>,
    history: History,
    tokens: Tokens,
    fair: bool,
    layer: Option<Arc<dyn Layer>>,
    runtime: Option<Runtime>,
}

/// Whether the engine is to keep runs, and how long.
#[derive(Clone, Copy, Debug)]
enum History {
    None,
    Required(Duration),
    /// Where the engine can.
    Wished(Duration),
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
            drop_timeout: Duration::from_millis(500),
            close_timeout: Duration::from_secs(5),
            replicas: 0,
            announced: None,
            history: History::None,
            tokens: Tokens::None,
            fair: false,
            layer: None,
            runtime: None,
        }
    }
}

impl ClientBuilder {
    /// How holders are shown to operators, in up to [`HolderInfo::MAX_BYTES`]; by default `user@host/program`. Carries no rights.
    #[must_use]
    pub fn label(mut self, label: &str) -> ClientBuilder {
        self.holder = Some(label.to_owned());
        self
    }

    /// The lease of locks that don't say their own, renewed at a third; [`Client::DEFAULT_TTL`] by default.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> ClientBuilder {
        self.ttl = Some(ttl);
        self
    }

    /// Sets how long `lock()` keeps retrying while the engine is unavailable, unless its own waiting time ends earlier; 10 s by default.
    /// It counts from the sending of the first request that failed.
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

    /// Bounds the first attempt of a call whose [waiting time](crate::Acquire::wait) is shorter, and the whole of a call that does not
    /// wait, for example [`try_lock`](crate::Mutex::try_lock); 1 s by default. With a [layer](ClientBuilder::layer) the limit of a
    /// call that does not wait is longer by the layer's [delay](Layer::delay). Zero sets no limit for such calls.
    #[must_use]
    pub fn attempt_timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.attempt_timeout = timeout;
        self
    }

    /// Bounds how long [`Guard::release`](crate::Guard::release) waits for the engine, which is never longer than the lease still
    /// lasts; 2 s by default. A release that is not confirmed by then goes on in the background.
    #[must_use]
    pub fn release_timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.release_timeout = timeout;
        self
    }

    /// Sets how long the drop of the last client waits for the releases under way; 500 ms by default. It blocks its thread for that
    /// time at most. Zero: it never waits.
    #[must_use]
    pub fn drop_timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.drop_timeout = timeout;
        self
    }

    /// Bounds how long [`Client::close`] lasts; 5 s by default. Claims that are left then end with their leases.
    #[must_use]
    pub fn close_timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.close_timeout = timeout;
        self
    }

    /// Replicas that must have a grant before it counts, for all locks that don't say their own number: see
    /// [`Acquire::replicas`](crate::Acquire::replicas). None by default.
    #[must_use]
    pub fn replicas(mut self, replicas: u32) -> ClientBuilder {
        self.replicas = replicas;
        self
    }

    /// Tells operators that this program keeps each grant for `max_hold` at most. The client itself ends no grant: the program does,
    /// once its work has stopped. Other programs use [`Acquire::max_hold`](crate::Acquire::max_hold), which tells operators, too.
    #[must_use]
    pub fn max_hold_hint(mut self, max_hold: Duration) -> ClientBuilder {
        self.announced = Some(max_hold);
        self
    }

    /// Asks the engine to keep the last [runs](crate::Runs) of each lock for `keep` after their end: who held it, from when to when,
    /// and how it [ended](crate::Guard::report). [`Client::inspect`] shows them. By default nothing is kept. An engine [without
    /// it](crate::Capabilities::history) is refused. The option `history` of a URL says the same and comes first, as in
    /// `redis://host?history=31d`. Each lock and each release then costs the engine more.
    #[must_use]
    pub fn history(mut self, keep: Duration) -> ClientBuilder {
        self.history = History::Required(keep);
        self
    }

    /// Asks for the same where the engine can do it. Elsewhere nothing is kept: see
    /// [`Capabilities::history`](crate::Capabilities::history).
    #[must_use]
    pub fn history_where_kept(mut self, keep: Duration) -> ClientBuilder {
        self.history = History::Wished(keep);
        self
    }

    /// Refuses an engine whose fencing tokens are of a weaker class than this.
    #[must_use]
    pub fn require_tokens(mut self, least: Tokens) -> ClientBuilder {
        self.tokens = least;
        self
    }

    /// Refuses an engine whose grants do not follow the order of arrival: see [`Capabilities::fair`](crate::Capabilities::fair).
    /// [`Client::semaphore`] refuses one where only [permits](crate::Capabilities::fair_permits) do not. This client makes no
    /// [unfair](crate::Acquire::unfair) requests. Those of other clients still pass claims that wait.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use fencepost_core::{Client, Registry};
    ///
    /// let locks = Client::builder().require_fair().connect(&Registry::new(), "memory:").await?;
    /// let error = locks.mutex("stock/42")?.lock().unfair().await.unwrap_err();
    /// assert!(error.is_invalid());
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn require_fair(mut self) -> ClientBuilder {
        self.fair = true;
        self
    }

    /// Puts a layer before the engine, in place of one that was set before: see [`Layer`].
    #[must_use]
    pub fn layer(mut self, layer: impl Layer) -> ClientBuilder {
        self.layer = Some(Arc::new(layer));
        self
    }

    /// Runs on another clock and host: for simulations. The client then has no thread.
    #[must_use]
    pub fn runtime(mut self, runtime: Runtime) -> ClientBuilder {
        self.runtime = Some(runtime);
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
    pub async fn connect(mut self, registry: &Registry, url: &str) -> Result<Client> {
        let (runtime, thread) = self.start()?;
        if let Ok(address) = BackendUrl::parse(url)
            && let Some(keep) = address.history()?
        {
            self.history = History::Required(keep);
        }
        let connector = Connector {
            registry: registry.clone(),
            url: url.to_owned(),
            runtime: runtime.clone(),
            wait: self.connect_wait,
            attempt_timeout: self.attempt_timeout,
        };
        let backend = match &self.layer {
            None => connector.open(url).await,
            Some(layer) => layer.connect(&connector).await,
        };
        let backend = backend.map_err(Error::without_effect)?;
        self.finish(backend, runtime, thread)
    }

    /// Makes the schema of the engine that `url` names, if it is not there. [`Registry::schema`] returns its statements.
    ///
    /// # Errors
    /// Those of [`Registry::schema`], and what the engine says: for example [`is_denied`](Error::is_denied) if the user may not
    /// make it.
    ///
    /// # Cancel safety
    /// Safe: all of the schema is made, or nothing. MySQL can make a part of it: call this again.
    pub async fn apply_schema(self, registry: &Registry, url: &str) -> Result<()> {
        let (address, schema) = registry.find_schema(url)?;
        let (runtime, _thread) = self.start()?;
        (schema.apply)(address, runtime).await
    }

    /// A client of an engine that is made here.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a lease out of the engine's bounds or a bad label, [`is_unsupported`](Error::is_unsupported) if it
    /// cannot do what is required of it; what `make` says.
    pub fn open(self, make: impl FnOnce(&Runtime) -> Result<Arc<dyn Backend>>) -> Result<Client> {
        let (runtime, thread) = self.start()?;
        let mut backend = make(&runtime)?;
        if let Some(layer) = &self.layer {
            backend = layer.over(backend, &runtime)?;
        }
        self.finish(backend, runtime, thread)
    }

    fn start(&self) -> Result<(Runtime, Option<Thread>)> {
        self.holder.as_deref().map_or(Ok(()), |label| HolderInfo::check("label", label))?;
        match &self.runtime {
            Some(runtime) => Ok((runtime.clone(), None)),
            None => {
                let label = self.holder.clone().unwrap_or_else(|| HolderInfo::this_process().label);
                Thread::start(label, Clock::boot()).map(|(thread, runtime)| (runtime, Some(thread)))
            }
        }
    }

    fn finish(self, backend: Arc<dyn Backend>, runtime: Runtime, thread: Option<Thread>) -> Result<Client> {
        let capabilities = backend.capabilities();
        let holder = match &self.holder {
            Some(label) => HolderInfo::labelled(label),
            None => Arc::new(HolderInfo::this_process()),
        };
        let ttl = self.ttl.unwrap_or_else(|| Client::DEFAULT_TTL.min(capabilities.max_ttl));
        let history = match self.history {
            History::Required(keep) => Some(keep),
            History::Wished(keep) => Some(keep).filter(|_| capabilities.history),
            History::None => None,
        };
        let client = ClientShared {
            backend,
            capabilities,
            renewer: Renewer::start(&runtime),
            deadlines: Deadlines::start(&runtime),
            runtime,
            holder,
            ttl,
            replicas: self.replicas,
            fair: self.fair,
            policy: self.layer.as_ref().and_then(|layer| layer.policy()),
            announced: self.announced,
            history,
            warned_of_runs: Arc::default(),
            outage: self.outage,
            attempt_timeout: self.attempt_timeout,
            layer_delay: self.layer.as_ref().map_or(Duration::ZERO, |layer| layer.delay()),
            release_timeout: self.release_timeout,
            drop_timeout: self.drop_timeout,
            close_timeout: self.close_timeout,
            closed: AtomicBool::new(false),
            closing: Notify::new(),
            thread,
        };
        client.check_ttl(ttl)?;
        client.check_replicas(self.replicas)?;
        client.check_tokens(self.tokens)?;
        client.check_fair(Mode::Exclusive)?;
        client.require_history(client.history.is_some())?;
        telemetry::describe();
        Ok(Client { client: Handle::new(client) })
    }
}

impl Client {
    /// Returns the options of a new client.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }
}
