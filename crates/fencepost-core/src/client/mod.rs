//! The client: where everything begins.

pub(crate) mod builder;
pub(crate) mod handle;
pub(crate) mod layer;
pub(crate) mod list;
pub(crate) mod looks;
pub(crate) mod need;
pub(crate) mod registry;
mod runs;
pub(crate) mod secret;
pub(crate) mod shared;
pub(crate) mod url;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tracing::Instrument as _;

use crate::backend::admission::Mode;
use crate::backend::capabilities::Capabilities;
use crate::backend::claim::{Claim, Want};
use crate::backend::records::Records;
use crate::backend::{Attempt, Removed};
use crate::client::handle::Handle;
use crate::entry::place::{How, Leave};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::guard::lease::DetachedLease;
use crate::guard::owned::Owned;
use crate::lock::once::KEEP;
use crate::lock::{MultiLock, Mutex, Once, RwLock, Semaphore};
use crate::name::Name;
use crate::operator::info::{Eviction, Info, Listing, Page};
use crate::operator::run::RunEnd;
use crate::runtime::Runtime;
use crate::token::Token;

/// A client of one engine: makes locks, and renews and cleans up what they hold on a thread of its own. Clones share it.
///
/// # Drop
/// When the last clone and the last lock made from it are dropped, the drop waits until the releases under way are confirmed, at most
/// [`drop_timeout`](crate::ClientBuilder::drop_timeout). So a process that drops its guards and returns from `main` leaves its locks
/// free. Without a release under way the drop does not wait. A guard that is dropped after its client is not waited for, nor is
/// a client in a `static`, nor a process that ends by `std::process::exit`. Then the lock is free at the end of its lease at the latest.
///
/// A server calls [`close`](Client::close): it waits without blocking a thread, and waits longer.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use fencepost_core::{Client, Registry};
///
/// let locks = Client::builder().connect(&Registry::new(), "memory:").await?;
/// let guard = locks.mutex("stock/42")?.lock().await?;
/// println!("token {}", guard.token());
/// guard.release().await?;
/// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) client: Handle,
}

impl Client {
    /// The default lease: 30 s, renewed every 10 s. Where an engine has none as long, its longest.
    pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

    /// Returns the capabilities of the engine as it is deployed.
    pub fn capabilities(&self) -> &Capabilities {
        &self.client.capabilities
    }

    /// Returns the client's clock and tasks: for functions of engine crates that work beside it.
    pub fn runtime(&self) -> &Runtime {
        &self.client.runtime
    }

    /// Returns the engine's small records, for functions that work beside the locks. No I/O.
    ///
    /// # Errors
    /// [`is_unsupported`](Error::is_unsupported) if the engine keeps none.
    pub fn records(&self) -> Result<Records> {
        self.client.check_process()?;
        let store = self.client.backend.operator().records(&self.client.runtime);
        let missing =
            || Error::new(ErrorKind::Unsupported, "this engine keeps no records").on(self.client.engine());
        Ok(Records::new(store.ok_or_else(missing)?, self.client.runtime.clone()))
    }

    /// The lease of locks that set none of their own.
    pub fn ttl(&self) -> Duration {
        self.client.ttl
    }

    /// Refuses a length of a lease that is out of the engine's bounds.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid), with the bounds.
    pub fn check_ttl(&self, ttl: Duration) -> Result<()> {
        self.client.check_ttl(ttl)
    }

    /// A lock for one holder at a time. No I/O.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a bad name.
    pub fn mutex(&self, name: &str) -> Result<Mutex> {
        Ok(Mutex::new(self.client.clone(), Name::new(name)?))
    }

    /// A lock for many readers or one writer. No I/O.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a bad name, [`is_unsupported`](Error::is_unsupported) if the engine has no
    /// shared holders.
    pub fn rwlock(&self, name: &str) -> Result<RwLock> {
        let name = Name::new(name)?;
        self.client.check_mode(Mode::Shared)?;
        Ok(RwLock::new(self.client.clone(), name))
    }

    /// A lock for `permits` holders at a time. No I/O. All users of a name give the same number; where they differ, each claim is
    /// judged by its own.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a bad name or zero permits, [`is_unsupported`](Error::is_unsupported) if the
    /// engine has no permits.
    pub fn semaphore(&self, name: &str, permits: u32) -> Result<Semaphore> {
        let name = Name::new(name)?;
        if permits == 0 {
            return Err(Error::invalid("a semaphore has at least one permit").of(name));
        }
        self.client.check_mode(Mode::Permits { n: 1, of: permits })?;
        Ok(Semaphore::new(self.client.clone(), name, permits))
    }

    /// Several exclusive locks at once, all or none. No I/O. Names are sorted and doubles dropped, so that two that want the same
    /// names never wait for each other in a circle.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a bad name, or none.
    pub fn multi(&self, names: impl IntoIterator<Item = impl AsRef<str>>) -> Result<MultiLock> {
        let names = names.into_iter().map(|name| Name::new(name.as_ref())).collect::<Result<Vec<_>>>()?;
        MultiLock::new(self.client.clone(), names)
    }

    /// A job that several hosts start at the same time, and that runs once for each firing. `window` is its period. No I/O.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a bad name, one of more than 250 bytes, or a window of zero,
    /// [`is_unsupported`](Error::is_unsupported) if the engine keeps no [history](Capabilities::history), or the kind of what
    /// [stands in the way](crate::NoHistory).
    pub fn once(&self, name: &str, window: Duration) -> Result<Once> {
        Once::new(self.client.clone(), Name::new(name)?, window)
    }

    /// Takes up a detached lease: from now on this client renews it, until the guard is released, dropped or detached again. A lease
    /// has one user at a time: if another program that knows it releases it meanwhile, this guard learns of that with its next
    /// renewal only. The guard's token is the engine's, whatever the lease's text says.
    ///
    /// # Errors
    /// [`is_lost`](Error::is_lost) when the lease has ended, or the engine holds it in another mode than the text says;
    /// [`is_invalid`](Error::is_invalid) when its length is out of bounds.
    ///
    /// # Cancel safety
    /// Dropped midway, the lease stays; it is extended or not.
    pub async fn attach(&self, lease: &DetachedLease) -> Result<Guard> {
        self.take_up(lease, self.leased(lease, lease.ttl(), true)?).await
    }

    async fn take_up(&self, lease: &DetachedLease, claim: Claim) -> Result<Guard> {
        let claim = Arc::new(claim);
        let guard = Guard::attach(&self.client, Arc::clone(&claim)).await;
        guard.map_err(|error| error.of(lease.name().clone()))?.ok_or_else(|| lease.gone(&claim))
    }

    /// Makes a detached lease end `ttl` from now at the earliest; it never shortens it.
    ///
    /// # Errors
    /// [`is_lost`](Error::is_lost) when it has ended, [`is_invalid`](Error::is_invalid) for a `ttl` out of bounds or a lease
    /// whose own length is.
    ///
    /// # Cancel safety
    /// Dropped midway, it is extended or not; the lease stays.
    pub async fn extend(&self, lease: &DetachedLease, ttl: Duration) -> Result<DetachedLease> {
        self.client.check_ttl(ttl)?;
        let claim = Arc::new(self.leased(lease, ttl, false)?);
        let mut entry = self.client.entry(&claim, How::Attach);
        // The entry is let go as it is: it owns nothing, the lease does.
        match entry.attempt().await.map_err(|error| error.of(lease.name().clone()))? {
            Attempt::Granted(token) => Ok(lease.extended(token, ttl)),
            Attempt::Blocked { .. } | Attempt::Gone => Err(lease.gone(&claim)),
        }
    }

    /// Ends a detached lease.
    ///
    /// # Errors
    /// [`is_lost`](Error::is_lost) when it has ended before, [`is_invalid`](Error::is_invalid) when its length is out of bounds. The
    /// engine's error if it did not confirm within [`release_timeout`](crate::ClientBuilder::release_timeout).
    ///
    /// # Cancel safety
    /// Dropped midway, it is released all the same, now or with its end.
    pub async fn release(&self, lease: &DetachedLease) -> Result<()> {
        self.end(lease, self.leased(lease, lease.ttl(), false)?, Leave::Release).await
    }

    /// Ends a detached lease of a [firing](Once), and reports the exit code of its run. Zero is good.
    ///
    /// # Errors
    /// Those of [`release`](Client::release), and [`is_unsupported`](Error::is_unsupported) if the engine keeps no runs.
    ///
    /// # Cancel safety
    /// Dropped midway, it is released all the same, now or with its end.
    pub async fn release_run(&self, lease: &DetachedLease, exit_code: i32) -> Result<()> {
        let claim = self.leased_run(lease)?;
        claim.report(exit_code, RunEnd::Exited);
        self.end(lease, claim, Leave::Release).await
    }

    /// Ends a detached lease of a [firing](Once) that was never begun: the engine forgets its run, so that the next start runs it.
    ///
    /// # Errors
    /// Those of [`release_run`](Client::release_run).
    ///
    /// # Cancel safety
    /// Dropped midway, it is ended or not; the lease ends at its time.
    pub async fn cancel_run(&self, lease: &DetachedLease) -> Result<()> {
        self.end(lease, self.leased_run(lease)?, Leave::Withdraw).await
    }

    async fn end(&self, lease: &DetachedLease, claim: Claim, how: Leave) -> Result<()> {
        let claim = Arc::new(claim);
        let mut owned = Owned::detached(&self.client, Arc::clone(&claim), how);
        let span = tracing::debug_span!("release", name = %lease.name());
        match owned.leave(how, self.client.release_until()).instrument(span).await? {
            Removed::Released => Ok(()),
            Removed::Withdrawn | Removed::Nothing => Err(lease.gone(&claim)),
        }
    }

    /// Checks by one read that the engine answers. The call has no time limit of its own.
    ///
    /// # Errors
    /// [`is_unreachable`](crate::Error::is_unreachable), or what the engine refuses.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    #[doc(alias("ping"))]
    pub async fn reach(&self) -> Result<()> {
        self.client.check_process()?;
        self.client.backend.reach().await.map_err(|error| error.on(self.client.engine()))
    }

    /// Returns the holders of `name` and the claims that wait for it.
    ///
    /// # Errors
    /// A bad name, an engine without that, or one that does not answer.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    #[doc(alias("isLocked", "contenders", "IS_USED_LOCK"))]
    pub async fn inspect(&self, name: &str) -> Result<Info> {
        self.client.look_with_runs(&Name::new(name)?).await
    }

    /// Returns the holders of `name` and the claims that wait for it, without the runs that [`inspect`](Client::inspect) reads as well: one
    /// request.
    ///
    /// # Errors
    /// An engine without that, or one that does not answer.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn look(&self, name: &Name) -> Result<Info> {
        self.client.look(name).await
    }

    /// The resources whose names begin with `prefix` and that are held or waited for, sorted, a page at a
    /// time. [`list_all`](Client::list_all) goes over all pages.
    ///
    /// # Errors
    /// An engine without that, or one that does not answer.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        self.client.check_process()?;
        self.client.require(self.client.capabilities.inspect, "way to list locks")?;
        self.client.backend.operator().list(prefix, page).await.map_err(Error::without_effect)
    }

    /// Evicts the holder of `name` whose grant has `token`, and only that.
    ///
    /// # Errors
    /// [`is_mismatch`](Error::is_mismatch) when no grant has that token any more; [`is_invalid`](Error::is_invalid) for a name or
    /// a reason that breaks a rule.
    ///
    /// # Cancel safety
    /// Dropped midway, the holder is evicted or not.
    #[doc(alias("forceUnlock", "Revoker"))]
    pub async fn evict(&self, name: &str, token: Token, how: &Eviction) -> Result<()> {
        self.client.evict(&Name::new(name)?, token, how).await
    }

    /// Closes the client: it makes no more grants, finishes the cleanup under way and ends its thread. Calls that still wait fail
    /// with [`is_closed`](Error::is_closed). Release the guards before. A guard that is left is [lost](crate::Loss::Closed), and
    /// is told so first. The guards that its task then drops or releases are released at the engine, if the task does so within a
    /// tenth of [`close_timeout`](crate::ClientBuilder::close_timeout). The close lasts no longer than that timeout. Claims that are left
    /// end with their leases.
    ///
    /// # Cancel safety
    /// Safe; the client stays closed and cleanup goes on.
    pub async fn close(&self) {
        if self.client.is_forked() {
            return;
        }
        self.client.closed.store(true, Ordering::SeqCst);
        self.client.closing.notify_waiters();
        // Locks that are kept for their least time are released now.
        self.client.deadlines.close();
        let (clock, limit) = (self.client.runtime.clock(), self.client.close_timeout);
        let start = clock.now();
        // Holders are told before the engine can grant to somebody else.
        clock.close();
        // Without a thread of its own nobody moves the clock during this call.
        while self.client.thread.is_some() && self.client.has_claims() && clock.now() < start + limit / 10 {
            clock.sleep_until(clock.now() + Duration::from_millis(1)).await;
        }
        // One that is not confirmed leaves the other half to the engine: it may end sessions.
        clock.within(start + limit / 2, self.client.runtime.cleaner().idle()).await;
        clock.within(start + limit, self.client.backend.close()).await;
        if let Some(thread) = &self.client.thread {
            thread.stop((start + limit).since(clock.now()));
            // The thread's last act is to stop the clock, which ends this sleep; what is left then takes microseconds.
            while !thread.has_ended() {
                clock.sleep_until(clock.now() + Duration::from_millis(1)).await;
                tokio::task::yield_now().await;
            }
        }
    }

    /// How many dropped entries are being cleaned up in the background.
    pub fn backlog(&self) -> usize {
        self.client.runtime.cleaner().backlog()
    }

    /// A claim on the grant of a lease. Its text may have been changed: the length must keep to the limits, and engines refuse
    /// another mode than the grant's.
    fn leased(&self, lease: &DetachedLease, ttl: Duration, renewed: bool) -> Result<Claim> {
        self.client.check_open()?;
        self.client.require_detach()?;
        self.client.check_ttl(lease.ttl()).map_err(|error| error.of(lease.name().clone()))?;
        let want = Want { name: lease.name().clone(), mode: lease.mode() };
        let mut claim =
            Claim::new(lease.id(), want, ttl, Arc::clone(&self.client.holder), self.client.runtime.clone());
        claim.renewed = renewed;
        claim.replicas = self.client.replicas;
        claim.history = self.client.history;
        Ok(claim)
    }

    /// The same on the grant of a firing, whose run the engine keeps.
    fn leased_run(&self, lease: &DetachedLease) -> Result<Claim> {
        self.client.require_history(true)?;
        let mut claim = self.leased(lease, lease.ttl(), false)?;
        claim.history = Some(self.client.history.unwrap_or_default().max(KEEP));
        claim.needs_run = true;
        Ok(claim)
    }
}
