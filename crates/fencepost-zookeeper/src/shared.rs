//! What all entries of one client share.

use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use fencepost_core::{Claim, ClaimRecord, Error, Loss, Moment, Name, Result, Runtime, Token};
use zookeeper_client as zk;

use crate::config::Config;
use crate::error::{closed, no_session};
use crate::holding::{Holdings, give_back};
use crate::link::{Link, majority};
use crate::name::to_node;
use crate::runner;
use crate::tunnel::Tunnel;

/// How soon a session is tried for again, at first and at most.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) runtime: Runtime,
    pub(crate) holdings: Arc<Holdings>,
    state: Mutex<Current>,
}

/// The session of now.
#[derive(Default)]
struct Current {
    /// The way there, with TLS.
    tunnel: Option<Arc<Tunnel>>,
    link: Option<Arc<Link>>,
    /// Why there is none.
    last: Option<zk::Error>,
    closed: bool,
    waiting: Vec<Waker>,
}

impl Current {
    /// Does somebody have to mend something before there can be a session?
    fn is_hopeless(&self) -> bool {
        match self.last {
            None => false,
            Some(zk::Error::AuthFailed) => true,
            Some(_) => self.tunnel.as_ref().is_some_and(|tunnel| tunnel.is_hopeless()),
        }
    }
}

impl Shared {
    /// Makes a session, and a new one whenever it ends.
    ///
    /// # Errors
    /// The URL asks for a TLS that cannot be had here.
    pub(crate) fn start(config: Config, runtime: Runtime) -> Result<Arc<Shared>> {
        let tunnel = config.tls.as_ref().map(|tls| Tunnel::open(&config.servers, tls, config.timeout));
        let tunnel = tunnel.transpose()?.map(Arc::new);
        let holdings = Arc::new(Holdings::default());
        let state = Mutex::new(Current { tunnel, ..Current::default() });
        let shared = Arc::new(Shared { config, runtime, holdings, state });
        shared.runtime.spawn(pump(Arc::downgrade(&shared)));
        shared.runtime.spawn(give_back(Arc::downgrade(&shared.holdings), shared.runtime.clock().clone()));
        Ok(shared)
    }

    fn state(&self) -> MutexGuard<'_, Current> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Current)) {
        let mut state = self.state();
        change(&mut state);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// The session of now, waited for until then.
    pub(crate) async fn link_until(&self, until: Moment) -> Result<Arc<Link>> {
        let come = poll_fn(|cx| {
            let mut state = self.state();
            if state.closed {
                return Poll::Ready(Err(closed()));
            }
            if let Some(link) = state.link.clone().filter(|link| !link.is_over()) {
                return Poll::Ready(Ok(link));
            }
            if state.is_hopeless() {
                return Poll::Ready(Err(self.no_session(&state)));
            }
            if !state.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.waiting.push(cx.waker().clone());
            }
            Poll::Pending
        });
        match self.runtime.clock().within(until, come).await {
            Some(answer) => answer,
            None => Err(self.no_session(&self.state())),
        }
    }

    /// The way to the servers, with TLS.
    pub(crate) fn tunnel(&self) -> Option<Arc<Tunnel>> {
        self.state().tunnel.clone()
    }

    fn no_session(&self, state: &Current) -> Error {
        let trouble = state.tunnel.as_ref().and_then(|tunnel| tunnel.trouble());
        no_session(&self.config.hosts(), state.last.as_ref(), trouble)
    }

    /// The same, waited for as long as a request may take.
    pub(crate) async fn link(&self) -> Result<Arc<Link>> {
        self.link_until(self.runtime.clock().now() + self.config.timeout).await
    }

    /// A lock's folder.
    pub(crate) fn folder(&self, name: &Name) -> String {
        let node = to_node(name.as_str(), self.config.root.is_empty());
        self.config.layout.folder(&self.config.root, &node)
    }

    /// Who may do what with our nodes.
    pub(crate) fn acls(&self) -> zk::Acls<'static> {
        if self.config.open { zk::Acls::anyone_all() } else { zk::Acls::creator_all() }
    }

    /// What a claim writes into its node, and into one that is made when it has had its place in line for a while.
    pub(crate) fn payload(&self, claim: &Claim, place: Option<Token>) -> Vec<u8> {
        let place = place.map(Token::get);
        ClaimRecord { place, data: self.config.data.clone(), ..ClaimRecord::of(claim) }.to_bytes()
    }

    /// Makes a folder and all above it. They are containers, which the server removes when they have become empty, unless the layout keeps
    /// them.
    pub(crate) async fn make_folder(&self, link: &Link, path: &str) -> Result<()> {
        self.make(link, path, self.acls()).await
    }

    /// Makes a folder that all users below our root share.
    pub(crate) async fn make_open_folder(&self, link: &Link, path: &str) -> Result<()> {
        if !self.config.open && !self.config.root.is_empty() {
            self.make_folder(link, &self.config.root).await?;
        }
        self.make(link, path, zk::Acls::anyone_all()).await
    }

    async fn make(&self, link: &Link, path: &str, acls: zk::Acls<'static>) -> Result<()> {
        let path = path.to_owned();
        let persistent = self.config.layout.keeps_folders();
        let made = link.ask(move |client| async move {
            if persistent {
                return client.mkdir(&path, &zk::CreateMode::Persistent.with_acls(acls)).await;
            }
            match client.mkdir(&path, &zk::CreateMode::Container.with_acls(acls)).await {
                // A server before 3.5.3.
                Err(zk::Error::Unimplemented) => {
                    client.mkdir(&path, &zk::CreateMode::Persistent.with_acls(acls)).await
                }
                answer => answer,
            }
        });
        link.answer(made).await
    }

    /// Closes the session, and waits for that as long as one request may take.
    pub(crate) async fn close(&self) {
        let mut link = None;
        self.change(|state| {
            state.closed = true;
            state.tunnel = None;
            link = state.link.take();
        });
        self.holdings.wake();
        let Some(link) = link else { return };
        let states = link.client().ok().map(|client| client.state_watcher());
        link.end(Loss::SessionEnded);
        let Some(mut states) = states else { return };
        let ended = async { while !states.changed().await.is_terminated() {} };
        self.runtime
            .clock()
            .within(self.runtime.clock().now() + self.config.timeout.min(LONGEST_PAUSE), ended)
            .await;
    }

    async fn connect(&self) -> Result<Arc<Link>, zk::Error> {
        let mut connector =
            zk::Client::connector().with_session_timeout(self.config.session).with_fail_eagerly();
        if let Some(silence) = self.config.silence() {
            connector = connector.with_connection_timeout(silence);
        }
        if let Some(login) = &self.config.login {
            let auth = format!("{}:{}", login.user, login.password);
            connector = connector.with_auth("digest", auth.as_bytes());
        }
        let tunnel = self.tunnel();
        let client = match &tunnel {
            None if self.config.tls.is_some() => return Err(zk::Error::ClientClosed),
            None => runner::with_sessions_here(connector.connect(&self.config.hosts().join(","))).await?,
            Some(tunnel) => {
                let client = runner::with_sessions_here(connector.connect(tunnel.addresses())).await?;
                tunnel.stays_for(&client);
                client
            }
        };
        // Connecting may have taken longer than the session lasts: it counts from a question of its own.
        let sent = self.runtime.clock().now();
        majority(&client).await?;
        let link = Link::new(client, &self.runtime, sent, self.config.timeout);
        link.views.off.store(!self.config.folders, Ordering::Relaxed);
        Ok(link)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(link) = self.state().link.take() {
            link.end(Loss::SessionEnded);
        }
        self.holdings.wake();
    }
}

/// One session after the other.
async fn pump(weak: Weak<Shared>) {
    let mut pause = PAUSE;
    while let Some(shared) = weak.upgrade().filter(|shared| !shared.state().closed) {
        match shared.connect().await {
            Ok(link) => {
                pause = PAUSE;
                let closed = shared.state().closed;
                if closed {
                    link.end(Loss::SessionEnded);
                    return;
                }
                shared.change(|state| (state.link, state.last) = (Some(Arc::clone(&link)), None));
                tracing::debug!(session = link.id, length = ?link.length, "a session with ZooKeeper");
                drop(shared);
                link.serve().await;
            }
            Err(error) => {
                tracing::debug!(%error, "no session with ZooKeeper");
                shared.change(|state| (state.link, state.last) = (None, Some(error)));
                let clock = shared.runtime.clock().clone();
                drop(shared);
                clock.sleep_until(clock.now() + pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}
