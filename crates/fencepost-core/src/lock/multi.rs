use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::Outcome;
use crate::acquire::options::{Request, options};
use crate::client::handle::Handle;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::guard::holder::Holder;
use crate::guard::multi::{MultiGuard, join_all};
use crate::lock::Kind;
use crate::name::Name;
use crate::operator::holder::HolderInfo;
use crate::time::Moment;

/// Several resources at once, all or none, in one order and one time budget. Grants from before the budget ended are released.
///
/// [`Client::multi`](crate::Client::multi) locks names of one engine, [`across`](MultiLock::across) those of several.
#[derive(Clone)]
#[doc(alias("RedissonMultiLock", "InterProcessMultiLock"))]
pub struct MultiLock {
    names: Vec<Name>,
    /// That of each name.
    parts: Vec<Part>,
}

/// Where and how one name is locked.
#[derive(Clone)]
struct Part {
    client: Handle,
    kind: Kind,
}

impl MultiLock {
    pub(crate) fn new(client: Handle, mut names: Vec<Name>) -> Result<MultiLock> {
        names.sort_unstable();
        names.dedup();
        if names.is_empty() {
            return Err(Error::invalid(NO_NAME));
        }
        let parts = vec![Part { client, kind: Kind::Mutex }; names.len()];
        Ok(MultiLock { names, parts })
    }

    /// Joins the names of several engines into one lock, all or none. Each engine has a key, which this program chooses.
    ///
    /// The names are locked in the order of the keys, and those of one key in their own order. So **all processes give an engine the
    /// same key**, in whatever order they list the engines: else two of them can wait for each other until their waiting times end.
    /// Each engine has one client here: a second one for the same engine counts as another engine.
    ///
    /// A name keeps the [`Kind`] that it has in its part. `ttl` and `replicas` are those of each client, unless the request sets them.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) without a name, for one key of two engines or two keys of one, for a part that is of several
    /// engines itself, or for a name that two parts lock as different kinds.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let connect = async || fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await;
    /// use fencepost_core::{Kind, MultiLock};
    /// use std::time::Duration;
    ///
    /// let (bank, shop) = (connect().await?, connect().await?); // say, PostgreSQL and Redis
    /// let order = MultiLock::across([
    ///     ("shop", shop.multi(["stock/42", "stock/43"])?.kind(Kind::Write)),
    ///     ("bank", bank.multi(["account/7"])?),
    /// ])?;
    /// let guard = order.lock().wait(Duration::from_secs(5)).await?;
    /// assert_eq!(guard.guards()[0].name().as_str(), "account/7"); // `bank` comes first
    /// assert!(shop.mutex("stock/42")?.try_lock().await?.is_none());
    /// guard.release().await?;
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    pub fn across<'a>(parts: impl IntoIterator<Item = (&'a str, MultiLock)>) -> Result<MultiLock> {
        let mut engines: Vec<(&str, Handle)> = Vec::new();
        let mut all: Vec<(&str, Name, Part)> = Vec::new();
        for (key, lock) in parts {
            for (name, part) in lock.names.into_iter().zip(lock.parts) {
                let same =
                    |(known, client): &&(&str, Handle)| *known == key || Arc::ptr_eq(client, &part.client);
                match engines.iter().find(same) {
                    None => engines.push((key, part.client.clone())),
                    Some((known, client)) if *known == key && Arc::ptr_eq(client, &part.client) => {}
                    Some((known, _)) => {
                        let message = format!(
                            "the engine keys '{known}' and '{key}' do not tell the engines apart; give each engine one key, and take all \
                             its names from one client"
                        );
                        return Err(Error::invalid(message).of(name));
                    }
                }
                all.push((key, name, part));
            }
        }
        all.sort_by(|(one, a, _), (other, b, _)| (one, a).cmp(&(other, b)));
        all.dedup_by(|again, first| (again.0, &again.1, again.2.kind) == (first.0, &first.1, first.2.kind));
        if let Some(pair) = all.windows(2).find(|pair| (pair[0].0, &pair[0].1) == (pair[1].0, &pair[1].1)) {
            let message = "two parts lock this name as different kinds, so the second would wait for the first; name it once";
            return Err(Error::invalid(message).of(pair[0].1.clone()));
        }
        if all.is_empty() {
            return Err(Error::invalid(NO_NAME));
        }
        let (names, parts) = all.into_iter().map(|(_, name, part)| (name, part)).unzip();
        Ok(MultiLock { names, parts })
    }

    /// Locks all names as this kind instead of as mutexes.
    #[must_use]
    pub fn kind(mut self, kind: Kind) -> MultiLock {
        self.parts.iter_mut().for_each(|part| part.kind = kind);
        self
    }

    /// Locks one of the names as this kind, at each engine that has it here.
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
        let mut found = false;
        for (_, part) in self.names.iter().zip(&mut self.parts).filter(|(known, _)| known.as_str() == name) {
            (part.kind, found) = (kind, true);
        }
        if found {
            return Ok(self);
        }
        let message = "this name is not one of the multi-lock; give it to Client::multi as well";
        Err(Error::invalid(message).of(name))
    }

    /// The names, in the order in which they are locked: by the keys of their engines, if there are several, then by name.
    pub fn names(&self) -> &[Name] {
        &self.names
    }

    /// Waits for all of them. It asks for all names at once, so free names cost one round trip. That first round joins no queue. If a
    /// name is busy, or its engine fails, it gives back those behind it, and waits for one after the other in their
    /// [order](MultiLock::names). So nobody waits in a circle. The first ones are held (and renewed) while it waits for the rest.
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

const NO_NAME: &str = "a multi-lock has at least one name";

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
    /// `None`: that of each client.
    ttl: Option<Duration>,
    renewed: bool,
    wait: Option<Duration>,
    join: bool,
    /// `None`: those of each client.
    replicas: Option<u32>,
    at_least: Option<Duration>,
    max_hold: Option<Duration>,
    by: Option<Holder>,
    holder: Option<Arc<HolderInfo>>,
    reason: Option<Arc<str>>,
}

impl<'a> Options<'a> {
    fn new(lock: &'a MultiLock, join: bool) -> Options<'a> {
        Options {
            lock,
            ttl: None,
            renewed: true,
            wait: None,
            join,
            replicas: None,
            at_least: None,
            max_hold: None,
            by: None,
            holder: None,
            reason: None,
        }
    }

    async fn run(self) -> Result<std::result::Result<MultiGuard, Outcome>> {
        // Clients may have clocks of their own, and the budget begins on all of them now.
        let began: Vec<_> = self.lock.parts.iter().map(|part| part.client.runtime.clock().now()).collect();
        loop {
            match self.all(&began).await? {
                // The first lease may have ended while the last locks were waited for: then all are acquired again.
                Ok(guards) if guards.iter().any(|guard| guard.ensure_held().is_err()) => {}
                answer => return Ok(answer.map(MultiGuard::new)),
            }
        }
    }

    /// All at once where they are free, then one after the other.
    async fn all(&self, began: &[Moment]) -> Result<std::result::Result<Vec<Guard>, Outcome>> {
        // An error or a drop ends this early: then the guards release the locks that were granted.
        let mut guards = Vec::new();
        // Two that only try would take names from each other, and both find the set busy.
        if self.join && began.len() > 1 {
            guards = self.free_ones(began).await?;
        }
        for (number, began) in began.iter().enumerate().skip(guards.len()) {
            match self.request(number, *began, self.join).run().await? {
                Outcome::Granted(guard) => guards.push(guard),
                other => return Ok(Err(other)),
            }
        }
        Ok(Ok(guards))
    }

    /// Tries all names at once, without a place in any queue. Returns the guards of those before the first name that is not granted.
    /// The others are given back: a caller that waits for a name holds none behind it, so nobody waits in a circle.
    async fn free_ones(&self, began: &[Moment]) -> Result<Vec<Guard>> {
        let tries = began.iter().enumerate().map(|(number, began)| self.request(number, *began, false).run());
        // Dropped here, each try withdraws its claim, and each grant is released.
        let mut guards = Vec::with_capacity(began.len());
        for answer in join_all(tries).await {
            match answer {
                Ok(Outcome::Granted(guard)) => guards.push(guard),
                Err(error) if !error.is_transient() => return Err(error),
                // It is asked for again in its turn, and waited for as long as a single lock is.
                Ok(Outcome::Busy | Outcome::Timeout(_)) | Err(_) => break,
            }
        }
        Ok(guards)
    }

    /// The request for one of the names.
    fn request(&self, number: usize, began: Moment, join: bool) -> Request<'_> {
        let Part { client, kind } = &self.lock.parts[number];
        Request {
            ttl: self.ttl.unwrap_or(client.ttl),
            renewed: self.renewed,
            wait: self.wait,
            began: Some(began),
            paired: *kind == Kind::Write,
            replicas: self.replicas.unwrap_or(client.replicas),
            at_least: self.at_least,
            max_hold: self.max_hold,
            by: self.by.clone(),
            holder: self.holder.clone(),
            reason: self.reason.clone(),
            ..Request::new(client, &self.lock.names[number], kind.mode(), join)
        }
    }
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
