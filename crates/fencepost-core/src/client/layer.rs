//! How a client opens its engine, and the layer that it puts before the engine.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Backend, Reply};
use crate::client::registry::Registry;
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::Runtime;
use crate::time::Backoff;

/// The first pause between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Makes a layer, which is a backend over another backend, for [`ClientBuilder::layer`](crate::ClientBuilder::layer). The degrade
/// policies of the crate `fencepost-degrade` are one.
pub trait Layer: fmt::Debug + Send + Sync + 'static {
    /// Puts the layer before an engine that is open.
    ///
    /// # Errors
    /// [`is_unsupported`](Error::is_unsupported) if the engine cannot do what the layer needs.
    fn over(&self, engine: Arc<dyn Backend>, runtime: &Runtime) -> Result<Arc<dyn Backend>>;

    /// Opens the client's engine, and puts the layer before it. A layer has a method of its own if it opens other engines, too, or if it
    /// begins while its engine is away.
    fn connect<'a>(&'a self, connector: &'a Connector) -> Reply<'a, Result<Arc<dyn Backend>>> {
        Reply::coming(async move { self.over(connector.open(connector.url()).await?, connector.runtime()) })
    }

    /// Returns the name of the layer if it takes capabilities away from the engine, such as `degrade policy local_only`. Errors about a
    /// missing capability name this policy, because the engine has the capability.
    fn policy(&self) -> Option<&'static str> {
        None
    }

    /// Returns how much longer a call that does not wait may take because of the layer:
    /// [`attempt_timeout`](crate::ClientBuilder::attempt_timeout) becomes longer by that.
    fn delay(&self) -> Duration {
        Duration::ZERO
    }
}

/// Opens engines for a client that connects, by the engines and with the time limits that its builder was given.
#[derive(Clone)]
pub struct Connector {
    pub(crate) registry: Registry,
    pub(crate) url: String,
    pub(crate) runtime: Runtime,
    /// For how long it tries again. `None`: it makes one attempt.
    pub(crate) wait: Option<Duration>,
    pub(crate) attempt_timeout: Duration,
}

impl Connector {
    /// The URL of the client's engine. It may contain a password.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the scheme of the URL, which names the engine in errors.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a URL that breaks a rule or names no engine that this program knows.
    pub fn scheme(&self) -> Result<&'static str> {
        self.registry.scheme(&self.url)
    }

    /// The runtime of the client.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The limit of the first attempt: see [`ClientBuilder::attempt_timeout`](crate::ClientBuilder::attempt_timeout).
    pub fn attempt_timeout(&self) -> Duration {
        self.attempt_timeout
    }

    /// Makes one attempt to open the client's engine. It has no time limit of its own.
    ///
    /// # Errors
    /// Those of [`scheme`](Connector::scheme), and what the engine says.
    ///
    /// # Cancel safety
    /// Safe: nothing is held yet.
    pub async fn attempt(&self) -> Result<Arc<dyn Backend>> {
        self.registry.open(&self.url, self.runtime.clone()).await
    }

    /// Opens the engine that `url` names: the client's, or another one. Tries again for
    /// [`connect_wait`](crate::ClientBuilder::connect_wait) while the engine is unreachable. The first attempt may take as long as
    /// [`attempt_timeout`](Connector::attempt_timeout), however short the wait is.
    ///
    /// # Errors
    /// Those of [`attempt`](Connector::attempt).
    ///
    /// # Cancel safety
    /// Safe: nothing is held yet.
    pub async fn open(&self, url: &str) -> Result<Arc<dyn Backend>> {
        let Connector { registry, runtime, attempt_timeout, .. } = self;
        let Some(wait) = self.wait else { return registry.open(url, runtime.clone()).await };
        let clock = runtime.clock();
        let start = clock.now();
        let deadline = start + wait;
        let mut until = deadline.max(start + *attempt_timeout);
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        // The rest of a longer wait is no round number.
        let shown = Duration::from_millis(wait.max(*attempt_timeout).as_micros().div_ceil(1_000) as u64);
        let mut last = Error::new(
            ErrorKind::Unreachable,
            format!("the engine has not answered within {shown:?}; see that it runs and can be reached"),
        )
        .on(registry.scheme(url)?);
        loop {
            match clock.within(until, registry.open(url, runtime.clone())).await {
                Some(Err(error)) if error.is_unreachable() => last = error,
                Some(answer) => return answer,
                None => return Err(last),
            }
            let now = clock.now();
            if now >= deadline {
                return Err(last);
            }
            tracing::debug!(error = %last, "the engine is away, connecting again");
            clock.sleep_until((now + backoff.pause()).min(deadline)).await;
            until = deadline;
        }
    }
}

/// Shows the engines that it knows.
impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("registry", &self.registry).finish_non_exhaustive()
    }
}
