use std::borrow::Cow;
use std::sync::Arc;

use futures_util::future::join_all;
use tracing::Instrument;

use crate::acquire::options::{Options, Single};
use crate::acquire::request::Boxed;
use crate::acquire::{Acquire, How, Outcome, Try, What};
use crate::client::handle::Handle;
use crate::error::{Error, Result};
use crate::guard::multi::MultiGuard;
use crate::guard::unfinished::Unfinished;
use crate::lock::Kind;
use crate::name::Name;
use crate::time::Moment;

/// Locks several resources, all or none, in a fixed order and within one waiting time. If the time ends first, the locks that were
/// granted are released.
///
/// [`Client::multi`](crate::Client::multi) locks names of one engine, [`across`](MultiLock::across) those of several.
#[derive(Clone, Debug)]
#[doc(alias("RedissonMultiLock", "InterProcessMultiLock"))]
pub struct MultiLock {
    names: Vec<Name>,
    /// The client and the kind of each name, in the order of `names`.
    parts: Vec<Part>,
}

/// Where and how one name is locked.
#[derive(Clone, Debug)]
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

    pub(super) fn of(client: Handle, name: Name, kind: Kind) -> MultiLock {
        MultiLock { names: vec![name], parts: vec![Part { client, kind }] }
    }

    /// Joins the names of several engines into one lock, all or none. Each engine has a key, which the caller chooses.
    ///
    /// The names are locked in the order of the keys, and names with the same key in their own order. **All processes must give an
    /// engine the same key**; the order of `parts` has no effect. With different keys two processes can wait for each other until their
    /// waiting times end. Give one client for each engine: a second client of the same engine counts as another engine.
    ///
    /// A name keeps the [`Kind`] that it has in its part. `ttl` and `replicas` are those of each client, unless the request sets them.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) if there is no name, if two engines have one key, if one engine has two keys, if a part already
    /// joins several engines, or if two parts lock a name as different kinds.
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

    /// Locks one of the names as this kind. If several engines have this name, the kind applies at each of them.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) if the lock does not have this name.
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

    /// Returns the names in the order in which they are locked: by the keys of their engines, if there are several, then by name.
    pub fn names(&self) -> &[Name] {
        &self.names
    }

    /// Locks all names, and waits for those that are busy.
    ///
    /// The call first tries all names at once, without joining a queue. So if all are free, it takes one round trip. If a name is busy,
    /// or its engine fails, the call releases the names behind it. Then it waits for one name after the other, in their
    /// [order](MultiLock::names). So two callers never wait for each other. The names before are held, and renewed, during the wait.
    ///
    /// # Errors
    /// As for [`Mutex::lock`](crate::Mutex::lock), for the name that failed. After an error nothing is held.
    ///
    /// # Cancel safety
    /// Dropped at any await, the future releases what it was granted and withdraws its claims.
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
    pub fn lock(&self) -> Acquire<Several<'_>> {
        Several::request(Cow::Borrowed(self))
    }

    /// Locks all names, or returns `None` if one is busy.
    ///
    /// # Errors
    /// Errors of the engine. After an error nothing is held.
    ///
    /// # Cancel safety
    /// Dropped at any await, the future releases what it was granted and withdraws its claims.
    pub fn try_lock(&self) -> Acquire<Several<'_>, Try> {
        Several::request(Cow::Borrowed(self))
    }
}

const NO_NAME: &str = "a multi-lock has at least one name";

/// A request for several locks, all or none: see [`MultiLock::lock`].
#[derive(Clone, Debug)]
pub struct Several<'a> {
    lock: Cow<'a, MultiLock>,
    options: Options,
}

impl<'a> Several<'a> {
    pub(super) fn request<H: How>(lock: Cow<'a, MultiLock>) -> Acquire<Several<'a>, H> {
        Acquire::of(Several { lock, options: Options { join: H::WAITS, ..Options::default() } })
    }
}

impl<'a> What for Several<'a> {
    type Granted = MultiGuard;
    type Work = Boxed<'a, MultiGuard>;

    fn options(&mut self) -> &mut Options {
        &mut self.options
    }

    fn perform(self) -> Self::Work {
        Box::pin(self.run())
    }
}

impl Several<'_> {
    async fn run(self) -> Result<Outcome<MultiGuard>> {
        let mut began = self.now();
        for (number, began) in began.iter().enumerate() {
            let request = self.part(number, *began, self.options.join);
            request.named(request.check_evict_overdue())?;
        }
        loop {
            match self.all(&began).await? {
                // The lease of an early name may have ended during the wait for a later one. Then all are acquired again.
                Outcome::Granted(guards) if guards.iter().any(|guard| guard.ensure_held().is_err()) => {
                    // Without a waiting time each attempt at all names has a limit of its own.
                    if self.options.wait.is_none() {
                        began = self.now();
                    }
                }
                answer => {
                    let finish = |guards: Vec<Unfinished>| guards.into_iter().map(Unfinished::finish);
                    return Ok(answer.map(|guards| MultiGuard::new(finish(guards).collect())));
                }
            }
        }
    }

    /// Returns the time by the clock of each name's client.
    fn now(&self) -> Vec<Moment> {
        self.lock.parts.iter().map(|part| part.client.runtime.clock().now()).collect()
    }

    /// Tries all names at once if the request waits. Then requests the remaining names one after the other.
    async fn all(&self, began: &[Moment]) -> Result<Outcome<Vec<Unfinished>>> {
        // After an error, or if this future is dropped, the drop of the guards withdraws the grants.
        let mut guards = Vec::new();
        // Two calls of `try_lock` that try all names at once could each get some of the names, and both would find the set busy.
        if self.options.join && began.len() > 1 {
            guards = self.free_ones(began).await?;
        }
        for (number, began) in began.iter().enumerate().skip(guards.len()) {
            match self.one(number, *began, self.options.join).await? {
                Outcome::Granted(guard) => guards.push(guard),
                other => return Ok(other.map(|_| Vec::new())),
            }
        }
        Ok(Outcome::Granted(guards))
    }

    /// Tries all names at once, without a position in any queue. Returns the guards of the names before the first one that is not granted,
    /// and releases the others. So a caller that waits for a name holds no name behind it, and two callers never wait for each other.
    async fn free_ones(&self, began: &[Moment]) -> Result<Vec<Unfinished>> {
        let tries = began.iter().enumerate().map(|(number, began)| self.one(number, *began, false));
        // If this future is dropped here, each try withdraws its claim or its grant.
        let mut guards = Vec::with_capacity(began.len());
        for answer in join_all(tries).await {
            match answer {
                Ok(Outcome::Granted(guard)) => guards.push(guard),
                Err(error) if !error.is_transient() => return Err(error),
                // `all` requests this name again in its turn, and waits for it as for a single lock.
                Ok(_) | Err(_) => break,
            }
        }
        Ok(guards)
    }

    /// Requests one of the names.
    async fn one(&self, number: usize, began: Moment, join: bool) -> Result<Outcome<Unfinished>> {
        let request = self.part(number, began, join);
        let span = request.span();
        Ok(request.run().instrument(span).await?.map(Unfinished::new))
    }

    /// Returns the request for one of the names.
    fn part(&self, number: usize, began: Moment, join: bool) -> Single<'_> {
        let Part { client, kind } = &self.lock.parts[number];
        let mut options = Options { join, ..self.options.clone() };
        // The tries of a request that waits do not wait themselves.
        options.evict_overdue &= join == self.options.join;
        let read_write = *kind == Kind::Write;
        let request = Single::new(client, &self.lock.names[number], kind.mode(), join);
        Single { options, began: Some(began), read_write, ..request }
    }
}
