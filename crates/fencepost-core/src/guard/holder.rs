//! Reentrancy: the identity of a holder that may call itself.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use crate::backend::admission::Mode;
use crate::backend::claim::Claim;
use crate::client::shared::ClientShared;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::name::Name;
use crate::sync::Mutex;
use crate::validity::State;

tokio::task_local! {
    static CURRENT: Holder;
}

/// The identity of a caller that may ask for a lock that it holds already. Clones are the same holder.
///
/// A request gets its holder from [`holder`](crate::Acquire::holder), or from the [`scope`](Holder::scope) that its task runs in.
/// Without either it is a stranger and waits, as all others do.
///
/// # What is guaranteed
/// - A [`reentrant`](crate::Acquire::reentrant) request for a lock that its holder has is granted at once, without a request to the
///   engine. The lock is released with the last guard.
/// - Such a request fails if the grant is lost. The work of the outer guards has to end first.
/// - A plain request that waits for a lock of its own holder fails at once
///   ([`is_would_deadlock`](Error::is_would_deadlock)). A request that does not wait finds the lock busy.
/// - Requests of one holder for one lock are served one after the other.
///
/// # What is not
/// - A holder knows the grants of one client only. Locks of another client on the same engine are those of a stranger.
/// - Two holders that wait for each other are not found. Lock several names with [`Client::multi`](crate::Client::multi).
/// - A permit is never re-entered. A request for more permits than its holder leaves fails at once.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let locks = fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await?;
/// use fencepost_core::{Holder, Mutex, Result};
///
/// async fn sell(stock: &Mutex) -> Result<()> {
///     let guard = stock.lock().reentrant().await?;
///     restock(stock).await?; // takes the same lock again
///     guard.release().await
/// }
///
/// async fn restock(stock: &Mutex) -> Result<()> {
///     let guard = stock.lock().reentrant().await?;
///     assert_eq!(guard.count(), 2);
///     guard.release().await
/// }
///
/// let stock = locks.mutex("stock/42")?;
/// Holder::new().scope(sell(&stock)).await?;
/// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Default)]
pub struct Holder(Arc<Mutex<HashMap<Key, Arc<Grants>>>>);

/// A lock of one client. The client's address is not used again while one of its grants lives.
type Key = (usize, Name);

impl Holder {
    /// Makes a holder that holds nothing.
    pub fn new() -> Holder {
        Holder::default()
    }

    /// Returns the holder in whose scope the present task runs. Hand it to a task that you spawn: a scope does not follow by itself.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use fencepost_core::Holder;
    ///
    /// Holder::new().scope(async {
    ///     let holder = Holder::current().expect("this is a scope");
    ///     tokio::spawn(holder.scope(async { assert!(Holder::current().is_some()) })).await.unwrap();
    ///     tokio::spawn(async { assert!(Holder::current().is_none()) }).await.unwrap();
    /// }).await;
    /// # });
    /// ```
    pub fn current() -> Option<Holder> {
        CURRENT.try_with(Holder::clone).ok()
    }

    /// Runs `work` with this holder: all its requests are this holder's, unless they name another one.
    ///
    /// # Cancel safety
    /// That of `work`.
    pub fn scope<W: Future>(self, work: W) -> impl Future<Output = W::Output> {
        CURRENT.scope(self, work)
    }

    /// Returns its grants of a lock, and forgets the locks of which it has none.
    pub(crate) fn grants(&self, client: &Arc<ClientShared>, name: &Name) -> Arc<Grants> {
        let mut all = self.0.lock();
        let key = (Arc::as_ptr(client).addr(), name.clone());
        if let Some(grants) = all.get(&key) {
            return Arc::clone(grants);
        }
        // Another task that uses one has its own reference.
        all.retain(|_, grants| Arc::strong_count(grants) > 1 || grants.is_any());
        Arc::clone(all.entry(key).or_default())
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holder").finish_non_exhaustive()
    }
}

/// The grants of one lock that one holder has.
#[derive(Default)]
pub(crate) struct Grants {
    /// Held while a request is under way: the next request of the same holder sees its outcome.
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
    held: Mutex<Vec<(Mode, Grant)>>,
}

/// A grant that may be over.
enum Grant {
    Plain(Weak<Claim>),
    Reentrant(Weak<Guard>),
}

impl Grant {
    fn is_over(&self) -> bool {
        match self {
            Grant::Plain(claim) => claim.strong_count() == 0,
            Grant::Reentrant(guard) => guard.strong_count() == 0,
        }
    }

    /// Whether the holder has it now.
    fn is_held(&self) -> bool {
        let state = match self {
            Grant::Plain(claim) => claim.upgrade().map(|claim| claim.validity.seen(claim.runtime.clock())),
            Grant::Reentrant(guard) => guard.upgrade().map(|guard| guard.state()),
        };
        matches!(state, Some(State::Held | State::Suspect))
    }
}

impl Grants {
    fn is_any(&self) -> bool {
        self.held.lock().iter().any(|(_, grant)| !grant.is_over())
    }

    fn add(&self, mode: Mode, grant: Grant) {
        let mut held = self.held.lock();
        held.retain(|(_, grant)| !grant.is_over());
        held.push((mode, grant));
    }

    /// Notes the grant of a plain request.
    pub(crate) fn add_plain(&self, mode: Mode, guard: &Guard) {
        self.add(mode, Grant::Plain(Arc::downgrade(guard.owned.claim())));
    }

    /// Makes the grant one that its holder can enter again.
    pub(crate) fn add_reentrant(&self, mode: Mode, guard: Guard) -> ReentrantGuard {
        let guard = ReentrantGuard::new(Arc::new(guard));
        self.add(mode, Grant::Reentrant(Arc::downgrade(&guard.guard)));
        guard
    }

    /// Enters a grant that covers `mode` once more. `None`: there is none.
    ///
    /// # Errors
    /// [`is_lost`](Error::is_lost) if that grant is lost.
    pub(crate) fn enter(&self, mode: Mode) -> Result<Option<ReentrantGuard>> {
        let held = self.held.lock();
        let covers = |held: Mode| matches!((held, mode), (Mode::Exclusive, _) | (Mode::Shared, Mode::Shared));
        let mut guards = held.iter().filter(|(held, _)| covers(*held)).filter_map(|(_, grant)| match grant {
            Grant::Reentrant(guard) => guard.upgrade().map(ReentrantGuard::new),
            Grant::Plain(_) => None,
        });
        let Some(guard) = guards.next() else { return Ok(None) };
        guard.ensure_held()?;
        Ok(Some(guard))
    }

    /// Fails if a request in this mode would wait for its own holder.
    ///
    /// # Errors
    /// [`is_would_deadlock`](Error::is_would_deadlock).
    pub(crate) fn check(&self, mode: Mode) -> Result<()> {
        let held = self.held.lock();
        let modes = held.iter().filter(|(_, grant)| grant.is_held()).map(|(mode, _)| *mode);
        let blocks = match mode {
            Mode::Exclusive | Mode::Shared => modes.count() > 0,
            Mode::Permits { n, of } => {
                let taken = |mode| match mode {
                    Mode::Permits { n, .. } => n,
                    Mode::Exclusive | Mode::Shared => of,
                };
                modes.map(taken).fold(n, u32::saturating_add) > of
            }
        };
        if !blocks {
            return Ok(());
        }
        let read = held.iter().any(|(held, grant)| *held == Mode::Shared && grant.is_held());
        let message = if read && mode == Mode::Exclusive {
            "this holder reads, so a call that writes would deadlock; release the read lock first, or upgrade a plain one"
        } else {
            "this holder has the lock already, so the call would deadlock; release the lock first, or make all its calls reentrant"
        };
        Err(Error::new(ErrorKind::WouldDeadlock, message))
    }
}

/// A lock that its [`Holder`] can enter again. All guards of one holder and lock share one grant: the last one releases it.
///
/// It has the methods of [`Guard`] that neither change nor end the grant.
///
/// # Drop
/// The last guard releases the lock in the background, as [`Guard`] does. The others only lower the [count](ReentrantGuard::count).
#[derive(Debug)]
#[must_use = "the lock is left when the guard is dropped"]
pub struct ReentrantGuard {
    guard: Arc<Guard>,
    _counted: Counted,
}

/// Counts a guard on the claim, where operators see it, until it is dropped.
#[derive(Debug)]
struct Counted(Arc<Claim>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.entered.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ReentrantGuard {
    fn new(guard: Arc<Guard>) -> ReentrantGuard {
        let claim = Arc::clone(guard.owned.claim());
        claim.entered.fetch_add(1, Ordering::Relaxed);
        ReentrantGuard { guard, _counted: Counted(claim) }
    }

    /// Returns how many guards share the grant. Operators see it where the engine can tell:
    /// [`ClaimInfo::entered`](crate::ClaimInfo::entered).
    pub fn count(&self) -> usize {
        Arc::strong_count(&self.guard)
    }

    /// Leaves the lock. The last guard releases it, and waits until the engine has confirmed that.
    ///
    /// # Errors
    /// [`is_lost`](Error::is_lost) if the lock is lost. The last guard also fails as [`Guard::release`] does.
    ///
    /// # Cancel safety
    /// Dropped midway, the lock is left. If this was the last guard, the lock is released in the background.
    pub async fn release(self) -> Result<()> {
        let held = self.ensure_held();
        match Arc::into_inner(self.guard) {
            Some(guard) => guard.release().await,
            None => held,
        }
    }
}

impl Deref for ReentrantGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}
