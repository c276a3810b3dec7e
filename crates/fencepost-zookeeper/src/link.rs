//! One session with ZooKeeper: what nodes live and die with.

use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use fencepost_core::{
    Claim, Clock, Error, Loss, Moment, RenewalFailure, Reply, Result, Runtime, Session, State, Token,
    Validity,
};
use zookeeper_client as zk;

use crate::crowd::Views;
use crate::error::{broken, failure, is_over, silence};
use crate::mixed::Known;
use crate::runner;

/// A request of the driver, with what it borrows. It is sent with its first poll.
pub(crate) type Asked<T> = Pin<Box<dyn Future<Output = Result<T, zk::Error>> + Send>>;

/// A session. Its validity counts from the sending of the last request that a quorum answered: a server that has lost the others
/// still answers reads and pings. A follower tells its leader of a session at the next half tick, and no session is shorter than
/// two ticks, so that a fourth of its length is taken off.
pub(crate) struct Link {
    /// ZooKeeper's number for it, which is in the nodes as their owner.
    pub(crate) id: i64,
    /// Its length as the server has it.
    pub(crate) length: Duration,
    pub(crate) validity: Arc<Validity>,
    pub(crate) timeout: Duration,
    /// Somebody listens for evictions.
    pub(crate) listening: AtomicBool,
    /// Tokens that the bell was rung for, of grants that are not known here, or not yet.
    rung: Mutex<BTreeSet<Token>>,
    /// Folders that many wait in.
    pub(crate) views: Views,
    /// Nodes of ours that were read beside those of another kind.
    pub(crate) known: Known,
    client: Mutex<Option<Arc<zk::Client>>>,
    runtime: Runtime,
    /// When the last request was sent that a quorum answered.
    confirmed: AtomicU64,
    /// Bytes of paths of own nodes that are watched.
    pub(crate) watched: AtomicUsize,
}

impl Link {
    /// A session that was asked for at `sent`.
    pub(crate) fn new(client: zk::Client, runtime: &Runtime, sent: Moment, timeout: Duration) -> Arc<Link> {
        let link = Link {
            id: client.session_id().0,
            length: client.session_timeout(),
            validity: Arc::new(Validity::new()),
            timeout,
            listening: AtomicBool::new(false),
            rung: Mutex::default(),
            views: Views::default(),
            known: Known::default(),
            client: Mutex::new(Some(Arc::new(client))),
            runtime: runtime.clone(),
            confirmed: AtomicU64::new(0),
            watched: AtomicUsize::new(0),
        };
        link.confirm(sent);
        Arc::new(link)
    }

    pub(crate) fn rung(&self) -> MutexGuard<'_, BTreeSet<Token>> {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn clock(&self) -> &Clock {
        self.runtime.clock()
    }

    /// A quorum answered a request that was sent then.
    pub(crate) fn confirm(&self, sent: Moment) {
        if self.validity.confirm(self.clock(), sent, self.length * 3 / 4) {
            self.confirmed.fetch_max(sent.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Has it ended, as far as anybody can know?
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.validity.state(self.clock().now()), State::Lost(_))
    }

    /// The driver's client, as long as the session may live.
    pub(crate) fn client(&self) -> Result<Arc<zk::Client>, zk::Error> {
        if self.is_over() {
            return Err(zk::Error::SessionExpired);
        }
        self.client.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or(zk::Error::SessionExpired)
    }

    /// It is over, and is never used again. The driver closes what the server still has of it: nodes of a session that we take
    /// for dead must not stay because its connection comes back.
    pub(crate) fn end(&self, why: Loss) {
        self.validity.end(why);
        drop(self.client.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// A request of the driver, made of its client.
    pub(crate) fn ask<T, F>(&self, request: impl FnOnce(Arc<zk::Client>) -> F + Send + 'static) -> Asked<T>
    where
        F: Future<Output = Result<T, zk::Error>> + Send + 'static,
        T: Send + 'static,
    {
        match self.client() {
            Ok(client) => Box::pin(request(client)),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    pub(crate) fn list(&self, path: String) -> Asked<Vec<String>> {
        self.ask(move |client| async move { client.list_children(&path).await })
    }

    pub(crate) fn data(&self, path: String) -> Asked<(Vec<u8>, zk::Stat)> {
        self.ask(move |client| async move { client.get_data(&path).await })
    }

    pub(crate) fn stat(&self, path: String) -> Asked<Option<zk::Stat>> {
        self.ask(move |client| async move { client.check_stat(&path).await })
    }

    pub(crate) fn delete(&self, path: String) -> Asked<()> {
        self.ask(move |client| async move { client.delete(&path, None).await })
    }

    pub(crate) fn sync(&self) -> Asked<()> {
        self.ask(move |client| async move { client.sync("/").await })
    }

    /// The answer, or [`silence`] when none comes in time.
    pub(crate) async fn within<F: Future>(&self, work: F) -> Result<F::Output> {
        let until = self.clock().now() + self.timeout;
        let mut work = pin!(work);
        // What it asks is sent by this thread, and together.
        let work = poll_fn(|cx| runner::at_once(|| work.as_mut().poll(cx)));
        self.clock().within(until, work).await.ok_or_else(silence)
    }

    /// The same of a request whose failures are all for the caller.
    pub(crate) async fn answer<T>(&self, asked: Asked<T>) -> Result<T> {
        self.within(asked).await?.map_err(|error| failure(&error))
    }

    /// Sleeps, or until the session has ended.
    pub(crate) async fn sleep(&self, until: Moment) {
        let mut watch = self.validity.watch();
        let mut sleep = self.clock().sleep_until(until);
        poll_fn(|cx| {
            watch.set(cx.waker());
            if self.validity.ended().is_some() { Poll::Ready(()) } else { Pin::new(&mut sleep).poll(cx) }
        })
        .await;
    }

    /// Keeps the session, and returns when it has ended.
    pub(crate) async fn serve(self: Arc<Link>) {
        if let Ok(client) = self.client() {
            let link = Arc::clone(&self);
            let mut states = client.state_watcher();
            drop(client);
            self.runtime.spawn(async move { link.heed(&mut states).await });
        }
        let every = self.length / 6;
        while !self.is_over() {
            let next = Moment::from_nanos(self.confirmed.load(Ordering::Relaxed)) + every;
            if self.clock().now() < next {
                self.sleep(next).await;
                continue;
            }
            self.probe().await;
        }
        let why = self.validity.ended().unwrap_or(Loss::SessionEnded);
        self.end(why);
    }

    /// One question that a majority answers.
    async fn probe(&self) {
        let sent = self.clock().now();
        let mut asked = self.ask(|client| async move { majority(&client).await });
        let patience = sent + self.length / 3;
        match self.clock().within(patience.min(self.validity.until()), asked.as_mut()).await {
            Some(Ok(())) => self.confirm(sent),
            Some(Err(error)) => {
                tracing::debug!(%error, "a probe of the session failed");
                self.doubt(failure(&error));
                if is_over(&error) {
                    self.end(Loss::SessionEnded);
                }
                self.sleep(sent + self.length / 20).await;
            }
            None => self.doubt(silence()),
        }
    }

    fn doubt(&self, error: Error) {
        self.validity.renewal_failed(Some(RenewalFailure::of(error)));
    }

    /// Heeds what the driver says of the connection: it is late with the end, not with the break.
    async fn heed(&self, states: &mut zk::StateWatcher) {
        loop {
            let state = states.changed().await;
            if state.is_terminated() {
                self.end(Loss::SessionEnded);
                return;
            }
            if state == zk::SessionState::Disconnected {
                self.doubt(broken());
            }
        }
    }
}

/// A request that a majority answers, and that changes nothing: the end of a node that nobody makes. It is proposed to all, and
/// fails when they have agreed; a `sync` is answered by a leader alone, which may have been deposed and not know that yet
/// (ZooKeeper's Leader.processSync, PrepRequestProcessor.pRequest). A user who may not delete there has no other answer than that, and
/// it comes the same way, unless the servers have `enableEagerACLCheck`: see docs/backends/zookeeper.md.
pub(crate) async fn majority(client: &zk::Client) -> Result<(), zk::Error> {
    match client.delete("/.fencepost-nothing", Some(i32::MAX)).await {
        Ok(()) | Err(zk::Error::NoNode | zk::Error::NoAuth | zk::Error::BadVersion) => Ok(()),
        Err(error) => Err(error),
    }
}

impl Session for Link {
    fn id(&self) -> u64 {
        self.id as u64
    }

    fn validity(&self) -> &Arc<Validity> {
        &self.validity
    }

    /// The session is what the server keeps, and it is kept by its probes. A claim's own lease is this client's word, which it
    /// keeps itself, see [`crate::holding`].
    fn keep<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        let now = self.clock().now();
        for claim in due {
            crate::holding::extend(claim, now);
        }
        Reply::ready(Ok(()))
    }
}
