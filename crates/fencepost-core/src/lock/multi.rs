use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::acquire::Outcome;
use crate::acquire::options::{Request, options};
use crate::client::handle::Handle;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::guard::holder::Holder;
use crate::lock::Kind;
use crate::name::Name;
use crate::operator::holder::HolderInfo;
use crate::time::Moment;
use crate::token::Token;
use crate::validity::Loss;

/// Several resources at once, all or none: sorted, in one time budget. Grants from before the budget ended are released.
#[derive(Clone)]
#[doc(alias("RedissonMultiLock", "InterProcessMultiLock"))]
pub struct MultiLock {
    client: Handle,
    names: Vec<Name>,
    /// That of each name.
    kinds: Vec<Kind>,
}

impl MultiLock {
    pub(crate) fn new(client: Handle, mut names: Vec<Name>) -> Result<MultiLock> {
        names.sort_unstable();
        names.dedup();
        if names.is_empty() {
            return Err(Error::invalid("a multi-lock has at least one name"));
        }
        let kinds = vec![Kind::Mutex; names.len()];
        Ok(MultiLock { client, names, kinds })
    }

    /// Client all names as this kind instead of as mutexes.
    #[must_use]
    pub fn kind(mut self, kind: Kind) -> MultiLock {
        self.kinds.fill(kind);
        self
    }

    /// Client one of the names as this kind.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a name that is not among them.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let locks = fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await?;
    /// use fencepost_core::Kind;
    ///
    /// let both = locks.multi(["prices", "stock"])?.kind_of("prices", Kind::Read)?.kind_of("stock", Kind::Write)?;
    /// let guard = both.lock().await?;
    /// assert!(locks.rwlock("prices")?.try_read().await?.is_some(), "readers read together");
    /// assert!(locks.rwlock("stock")?.try_read().await?.is_none());
    /// guard.release().await?;
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    pub fn kind_of(mut self, name: &str, kind: Kind) -> Result<MultiLock> {
        let Some(at) = self.names.iter().position(|known| known.as_str() == name) else {
            let message = "this name is not one of the multi-lock; give it to Client::multi as well";
            return Err(Error::invalid(message).of(name));
        };
        self.kinds[at] = kind;
        Ok(self)
    }

    /// The names, sorted.
    pub fn names(&self) -> &[Name] {
        &self.names
    }

    /// Waits for all of them. It asks for all names at once, so free names cost one round trip. If a name is busy, it gives back those
    /// behind it, and waits for one after the other in the order of the names. So nobody waits in a circle. The first ones are held
    /// (and renewed) while it waits for the rest.
    ///
    /// # Errors
    /// As for [`Mutex::lock`](crate::Mutex::lock), of the name that failed; nothing is held then.
    ///
    /// # Cancel safety
    /// Dropped at any await it leaves nothing behind.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let locks = fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await?;
    /// let both = locks.multi(["account/2", "account/1"])?;
    /// let guard = both.lock().await?;
    /// assert!(locks.mutex("account/1")?.try_lock().await?.is_none());
    /// guard.release().await?;
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    pub fn lock(&self) -> AcquireAll<'_> {
        AcquireAll(Options::new(self, true))
    }

    /// All of them, or `None` if one is busy.
    ///
    /// # Errors
    /// Errors of the engine; nothing is held then.
    ///
    /// # Cancel safety
    /// Dropped at any await it leaves nothing behind.
    pub fn try_lock(&self) -> TryAcquireAll<'_> {
        TryAcquireAll(Options::new(self, false))
    }
}

impl fmt::Debug for MultiLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiLock").field("names", &self.names).finish_non_exhaustive()
    }
}

/// A request for several locks that waits: see [`MultiLock::lock`].
#[must_use = "nothing is asked for until it is awaited"]
pub struct AcquireAll<'a>(Options<'a>);

/// A request for several locks that answers `None` when one is busy: see [`MultiLock::try_lock`].
#[must_use = "nothing is asked for until it is awaited"]
pub struct TryAcquireAll<'a>(Options<'a>);

options!(
    AcquireAll,
    "an error that [`is_timeout`](crate::Error::is_timeout) and names who holds the one that was busy"
);
options!(TryAcquireAll, "`None`");

#[derive(Clone)]
struct Options<'a> {
    lock: &'a MultiLock,
    ttl: Duration,
    renewed: bool,
    wait: Option<Duration>,
    join: bool,
    replicas: u32,
    at_least: Option<Duration>,
    max_hold: Option<Duration>,
    by: Option<Holder>,
    holder: Option<Arc<HolderInfo>>,
    reason: Option<Arc<str>>,
}

impl<'a> Options<'a> {
    fn new(lock: &'a MultiLock, join: bool) -> Options<'a> {
        let (ttl, replicas) = (lock.client.ttl, lock.client.replicas);
        Options {
            lock,
            ttl,
            renewed: true,
            wait: None,
            join,
            replicas,
            at_least: None,
            max_hold: None,
            by: None,
            holder: None,
            reason: None,
        }
    }

    async fn run(self) -> Result<std::result::Result<MultiGuard, Outcome>> {
        let clock = self.lock.client.runtime.clock();
        let began = clock.now();
        loop {
            match self.all(began).await? {
                // The first lease may have ended while the last locks were waited for: then all are acquired again.
                Ok(guards) if guards.iter().any(|guard| guard.ensure_held().is_err()) => {}
                answer => return Ok(answer.map(|guards| MultiGuard { guards })),
            }
        }
    }

    /// All at once where they are free, then one after the other.
    async fn all(&self, began: Moment) -> Result<std::result::Result<Vec<Guard>, Outcome>> {
        // An error or a drop ends this early: then the guards release the locks that were granted.
        let mut guards = Vec::new();
        // Two that only try would take names from each other, and both find the set busy.
        if self.join && self.lock.names.len() > 1 {
            guards = self.free_ones(began).await?;
        }
        for number in guards.len()..self.lock.names.len() {
            match self.request(number, began, self.join).run().await? {
                Outcome::Granted(guard) => guards.push(guard),
                other => return Ok(Err(other)),
            }
        }
        Ok(Ok(guards))
    }

    /// Tries all names at once, without a place in any queue. Returns the guards of those before the first name that is busy. The
    /// others are given back: a caller that waits for a name holds none behind it, so nobody waits in a circle.
    async fn free_ones(&self, began: Moment) -> Result<Vec<Guard>> {
        let all = 0..self.lock.names.len();
        let mut tries: Vec<_> =
            all.map(|number| Try::Asking(Box::pin(self.request(number, began, false).run()))).collect();
        poll_fn(|cx| {
            let mut ready = true;
            for attempt in &mut tries {
                if let Try::Asking(asking) = attempt {
                    match asking.as_mut().poll(cx) {
                        Poll::Ready(answer) => *attempt = Try::Answered(answer),
                        Poll::Pending => ready = false,
                    }
                }
            }
            if ready { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let mut guards = Vec::with_capacity(self.lock.names.len());
        for attempt in tries {
            match attempt {
                Try::Answered(Ok(Outcome::Granted(guard))) => guards.push(guard),
                Try::Answered(Err(error)) => return Err(error),
                Try::Answered(Ok(Outcome::Busy | Outcome::Timeout(_))) | Try::Asking(_) => break,
            }
        }
        Ok(guards)
    }

    /// The request for one of the names.
    fn request(&self, number: usize, began: Moment, join: bool) -> Request<'_> {
        let kind = self.lock.kinds[number];
        Request {
            client: &self.lock.client,
            name: &self.lock.names[number],
            mode: kind.mode(),
            ttl: self.ttl,
            renewed: self.renewed,
            wait: self.wait,
            began: Some(began),
            join,
            paired: kind == Kind::Write,
            replicas: self.replicas,
            at_least: self.at_least,
            max_hold: self.max_hold,
            history: self.lock.client.history,
            by: self.by.clone(),
            holder: self.holder.clone(),
            reason: self.reason.clone(),
        }
    }
}

/// One name of the first round.
enum Try<'a> {
    Asking(Pin<Box<dyn Future<Output = Result<Outcome>> + Send + 'a>>),
    Answered(Result<Outcome>),
}

impl AcquireAll<'_> {
    /// The same request once more.
    pub(crate) fn again(&self) -> Self {
        AcquireAll(self.0.clone())
    }
}

impl<'a> IntoFuture for AcquireAll<'a> {
    type Output = Result<MultiGuard>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            match self.0.run().await? {
                Ok(guard) => Ok(guard),
                Err(Outcome::Timeout(error)) => Err(error),
                Err(_) => unreachable!("a claim in line is not answered busy"),
            }
        })
    }
}

impl<'a> IntoFuture for TryAcquireAll<'a> {
    type Output = Result<Option<MultiGuard>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            match self.0.run().await? {
                Ok(guard) => Ok(Some(guard)),
                Err(Outcome::Timeout(error)) if !error.is_timeout() => Err(error),
                Err(_) => Ok(None),
            }
        })
    }
}

/// Several locks that are held together. Lost as soon as one of them is. Dropped, it releases all.
#[must_use = "the locks are released when the guard is dropped"]
#[derive(Debug)]
pub struct MultiGuard {
    guards: Vec<Guard>,
}

impl From<Guard> for MultiGuard {
    fn from(guard: Guard) -> MultiGuard {
        MultiGuard { guards: vec![guard] }
    }
}

impl MultiGuard {
    /// The guards, in the order of their names.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// The same, to be taken apart or asked for their engine's own strength.
    pub fn into_guards(self) -> Vec<Guard> {
        self.guards
    }

    /// The fencing tokens, in the order of the names.
    pub fn tokens(&self) -> impl Iterator<Item = Token> + '_ {
        self.guards.iter().map(Guard::token)
    }

    /// How long all of them are still valid if no renewal gets through.
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(Guard::remaining).min().unwrap_or_default()
    }

    /// Until when all of them are valid if no renewal gets through.
    pub fn valid_until(&self) -> Moment {
        self.guards.iter().map(Guard::valid_until).min().unwrap_or(Moment::ZERO)
    }

    /// Fails if one of them is lost. No I/O.
    ///
    /// # Errors
    /// [`is_lost`](Error::is_lost), of the first that is.
    pub fn ensure_held(&self) -> Result<()> {
        self.guards.iter().try_for_each(Guard::ensure_held)
    }

    /// Completes when one of them is lost.
    ///
    /// # Cancel safety
    /// Safe; it only looks.
    pub async fn lost(&self) -> (Name, Loss) {
        let mut waits: Vec<_> =
            self.guards.iter().map(|guard| (guard.name(), Box::pin(guard.lost()))).collect();
        poll_fn(|cx| {
            for (name, lost) in &mut waits {
                if let Poll::Ready(why) = lost.as_mut().poll(cx) {
                    return Poll::Ready((name.clone(), why));
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Releases all of them and waits until that is confirmed.
    ///
    /// # Errors
    /// The first one; all are released or being released all the same.
    ///
    /// # Cancel safety
    /// Dropped midway, the rest is released in the background.
    pub async fn release(self) -> Result<()> {
        let mut first = Ok(());
        let until = self.guards.first().map_or(Moment::ZERO, Guard::release_until);
        for guard in self.guards.into_iter().rev() {
            let result = guard.released_by(until).await;
            first = first.and(result);
        }
        first
    }
}
