//! The options of a client.

use std::time::Duration;

use fencepost_core::{ClientBuilder, Result, Tokens};
use fencepost_degrade::Degrade;

use crate::Locks;
use crate::backend::registry;

/// Sets the options of a client: see [`Locks::builder`].
#[derive(Clone, Debug)]
#[must_use = "no client is made until `connect` is awaited"]
pub struct LocksBuilder {
    // The URL may contain a password: its `Debug` hides that.
    url: Url,
    options: ClientBuilder,
}

/// The URL of an engine.
#[derive(Clone)]
struct Url(String);

impl std::fmt::Debug for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.split_once(':').map_or("…", |(scheme, _)| scheme))
    }
}

impl LocksBuilder {
    pub(crate) fn new(url: &str) -> LocksBuilder {
        LocksBuilder { url: Url(url.to_owned()), options: ClientBuilder::default() }
    }

    fn with(mut self, set: impl FnOnce(ClientBuilder) -> ClientBuilder) -> LocksBuilder {
        self.options = set(self.options);
        self
    }

    /// Sets the label of this client's holders, as operators see it, in up to
    /// [`HolderInfo::MAX_BYTES`](crate::HolderInfo::MAX_BYTES). The default is `user@host/program`. A label carries no rights.
    pub fn label(self, label: &str) -> LocksBuilder {
        self.with(|options| options.label(label))
    }

    /// Sets the lease of locks that set none of their own. The client renews it at a third. The default is
    /// [`Locks::DEFAULT_TTL`](fencepost_core::Client::DEFAULT_TTL).
    pub fn ttl(self, ttl: Duration) -> LocksBuilder {
        self.with(|options| options.ttl(ttl))
    }

    /// Sets how long `lock()` keeps retrying while the engine is unavailable, unless its own waiting time ends earlier. The
    /// default is 10 s.
    pub fn outage(self, outage: Duration) -> LocksBuilder {
        self.with(|options| options.outage(outage))
    }

    /// Sets how long [`connect`](LocksBuilder::connect) retries while the engine is unreachable. Other errors, such as a
    /// wrong password, fail at once. Without this option, `connect` makes one attempt.
    pub fn connect_wait(self, wait: Duration) -> LocksBuilder {
        self.with(|options| options.connect_wait(wait))
    }

    /// Sets the bound of the first attempt of a call whose [waiting time](crate::Acquire::wait) is shorter. The default is 1 s.
    pub fn attempt_timeout(self, timeout: Duration) -> LocksBuilder {
        self.with(|options| options.attempt_timeout(timeout))
    }

    /// Sets how long [`Guard::release`](crate::Guard::release) waits for the engine. The default is 2 s. The client goes on with
    /// an unconfirmed release in the background.
    pub fn release_timeout(self, timeout: Duration) -> LocksBuilder {
        self.with(|options| options.release_timeout(timeout))
    }

    /// Sets how long the drop of the last client waits for the releases under way. It blocks its thread for that time at most. The
    /// default is 500 ms. Zero: it never waits.
    pub fn drop_timeout(self, timeout: Duration) -> LocksBuilder {
        self.with(|options| options.drop_timeout(timeout))
    }

    /// Sets how long [`close`](fencepost_core::Client::close) lasts at most. The default is 5 s. Claims that are left then end with
    /// their leases.
    pub fn close_timeout(self, timeout: Duration) -> LocksBuilder {
        self.with(|options| options.close_timeout(timeout))
    }

    /// Tells operators that this program keeps each grant for `max_hold` at most, and ends it itself: see
    /// [`ClientBuilder::max_hold_hint`](fencepost_core::ClientBuilder::max_hold_hint).
    pub fn max_hold_hint(self, max_hold: Duration) -> LocksBuilder {
        self.with(|options| options.max_hold_hint(max_hold))
    }

    /// Requires `replicas` replicas to acknowledge each grant: see [`Acquire::replicas`](crate::Acquire::replicas). The
    /// default is 0.
    pub fn replicas(self, replicas: u32) -> LocksBuilder {
        self.with(|options| options.replicas(replicas))
    }

    /// Asks the engine to keep the last [runs](crate::Runs) of each lock for `keep`: see
    /// [`ClientBuilder::history`](fencepost_core::ClientBuilder::history). By default nothing is kept.
    pub fn history(self, keep: Duration) -> LocksBuilder {
        self.with(|options| options.history(keep))
    }

    /// Asks for the same where the engine can do it.
    pub fn history_where_kept(self, keep: Duration) -> LocksBuilder {
        self.with(|options| options.history_where_kept(keep))
    }

    /// Refuses an engine whose fencing tokens are of a weaker class than `least`.
    pub fn require_tokens(self, least: Tokens) -> LocksBuilder {
        self.with(|options| options.require_tokens(least))
    }

    /// Refuses an engine whose grants do not follow the order of arrival: see
    /// [`ClientBuilder::require_fair`](fencepost_core::ClientBuilder::require_fair).
    pub fn require_fair(self) -> LocksBuilder {
        self.with(ClientBuilder::require_fair)
    }

    /// Sets what the client does while its engine is away. By default it fails. See [`Degrade`] for the policies and what each guarantees.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use fencepost::{Degrade, Locks};
    ///
    /// let locks = Locks::builder("memory:").degrade(Degrade::local_only()).connect().await?;
    /// # Ok::<(), fencepost::Error>(()) }).unwrap();
    /// ```
    pub fn degrade(self, degrade: Degrade) -> LocksBuilder {
        self.with(|options| options.layer(degrade))
    }

    /// Connects to the engine.
    ///
    /// # Errors
    /// [`is_invalid`](crate::Error::is_invalid) for a bad URL or label, [`is_unsupported`](crate::Error::is_unsupported) if the
    /// engine lacks what an option requires. Other errors are those of the engine.
    ///
    /// # Cancel safety
    /// Safe: nothing is held yet.
    pub async fn connect(self) -> Result<Locks> {
        self.options.connect(&registry(), &self.url.0).await.map(Locks::from)
    }

    /// Makes the schema of the engine, if it is not there.
    /// [`Registry::schema`](crate::backend::Registry::schema) returns its statements.
    ///
    /// # Errors
    /// [`is_unsupported`](crate::Error::is_unsupported) if the engine has no schema, [`is_denied`](crate::Error::is_denied) if
    /// the user may not make it. Other errors are those of the engine.
    ///
    /// # Cancel safety
    /// Safe: all of the schema is made, or nothing.
    pub async fn apply_schema(self) -> Result<()> {
        self.options.apply_schema(&registry(), &self.url.0).await
    }
}
