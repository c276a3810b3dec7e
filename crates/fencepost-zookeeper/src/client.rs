//! The parts that all entries of one client share.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::{Arc, MutexGuard, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Backoff, Claim, ClaimRecord, Error, ErrorKind, Loss, Name, Result, Runtime, Token};
use fencepost_tls::TlsError;
use zookeeper_client as zk;

use crate::claim::held::{HeldGrants, give_back};
use crate::config::Config;
use crate::error::{closed, no_session};
use crate::recipe::kinds::OtherKinds;
use crate::recipe::names::to_node;
use crate::session::tls::Tls;
use crate::session::{Session, ask_quorum, runner};
use crate::watch::folders::Folders;

/// The first and the longest pause between two attempts to make a session.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct Client {
    pub(crate) config: Config,
    pub(crate) runtime: Runtime,
    pub(crate) held: Arc<HeldGrants>,
    pub(crate) folders: Arc<Folders>,
    pub(crate) kinds: OtherKinds,
    pub(crate) tls: Option<Tls>,
    current: Mutex<Current>,
}

/// The current session.
#[derive(Default)]
struct Current {
    session: Option<Arc<Session>>,
    /// Why there is none.
    last: Option<zk::Error>,
    /// The failures of TLS, at most one for each server.
    tls: Vec<TlsError>,
    closed: bool,
    waiting: Vec<Waker>,
}

impl Client {
    /// Makes a session, and a new one whenever it ends.
    ///
    /// # Errors
    /// A file of the URL's TLS options is not as it should be.
    pub(crate) fn start(config: Config, runtime: Runtime) -> Result<Arc<Client>> {
        let client = Arc::new(Client {
            tls: config.tls.as_ref().map(|tls| Tls::read(tls, config.timeout)).transpose()?,
            folders: Arc::new(Folders::new(config.folders)),
            config,
            runtime,
            held: Arc::default(),
            kinds: OtherKinds::default(),
            current: Mutex::default(),
        });
        client.runtime.spawn(connect_again(Arc::downgrade(&client)));
        client.runtime.spawn(give_back(Arc::downgrade(&client.held), client.runtime.clock().clone()));
        Ok(client)
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock()
    }

    fn change(&self, change: impl FnOnce(&mut Current)) {
        let mut current = self.current();
        change(&mut current);
        let waiting = std::mem::take(&mut current.waiting);
        drop(current);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Returns the current session; waits for one as long as a request may take.
    pub(crate) async fn session(&self) -> Result<Arc<Session>> {
        let connected = poll_fn(|cx| {
            let mut current = self.current();
            if current.closed {
                return Poll::Ready(Err(closed()));
            }
            if let Some(session) = current.session.clone().filter(|session| !session.is_over()) {
                return Poll::Ready(Ok(session));
            }
            if self.is_hopeless(&current) {
                return Poll::Ready(Err(self.no_session(&current)));
            }
            if !current.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                current.waiting.push(cx.waker().clone());
            }
            Poll::Pending
        });
        let clock = self.runtime.clock();
        match clock.within(clock.now() + self.config.timeout, connected).await {
            Some(answer) => answer,
            None => Err(self.no_session(&self.current())),
        }
    }

    /// Returns whether there can be no session before somebody changes a setting.
    fn is_hopeless(&self, current: &Current) -> bool {
        let refused = matches!(current.last, Some(zk::Error::AuthFailed));
        let all = current.tls.len() == self.config.servers.len();
        refused || all && current.tls.iter().all(is_setting)
    }

    fn no_session(&self, current: &Current) -> Error {
        // First the trouble that needs a changed setting.
        let trouble = current.tls.iter().find(|trouble| is_setting(trouble)).or(current.tls.first());
        no_session(&self.config.hosts(), current.last.as_ref(), trouble.cloned())
    }

    /// Returns the path of a lock's folder.
    pub(crate) fn folder(&self, name: &Name) -> String {
        let node = to_node(name.as_str(), self.config.root.is_empty());
        self.config.layout.folder(&self.config.root, &node)
    }

    /// Returns the ACL of this client's nodes.
    pub(crate) fn acls(&self) -> zk::Acls<'static> {
        if self.config.open { zk::Acls::anyone_all() } else { zk::Acls::creator_all() }
    }

    /// Returns the record that a claim writes into its node. `place`: the claim's earlier place in the queue, for a node that is made
    /// later.
    pub(crate) fn record(&self, claim: &Claim, place: Option<Token>) -> Vec<u8> {
        let place = place.map(Token::get);
        ClaimRecord { place, data: self.config.data.clone(), ..ClaimRecord::of(claim) }.to_bytes()
    }

    /// Makes a folder and all above it. The server removes an empty container; a layout may ask for folders that stay.
    pub(crate) async fn make_folder(&self, session: &Session, path: &str) -> Result<()> {
        self.make(session, path, self.acls()).await
    }

    /// Makes a folder that all users below our root share.
    pub(crate) async fn make_open_folder(&self, session: &Session, path: &str) -> Result<()> {
        if !self.config.open && !self.config.root.is_empty() {
            self.make_folder(session, &self.config.root).await?;
        }
        self.make(session, path, zk::Acls::anyone_all()).await
    }

    async fn make(&self, session: &Session, path: &str, acls: zk::Acls<'static>) -> Result<()> {
        let path = path.to_owned();
        let persistent = self.config.layout.keeps_folders();
        let made = session.request(move |driver| async move {
            let persist = zk::CreateMode::Persistent.with_acls(acls);
            if persistent {
                return driver.mkdir(&path, &persist).await;
            }
            match driver.mkdir(&path, &zk::CreateMode::Container.with_acls(acls)).await {
                // A server before 3.5.3.
                Err(zk::Error::Unimplemented) => driver.mkdir(&path, &persist).await,
                answer => answer,
            }
        });
        session.answer(made).await
    }

    /// Closes the session; waits for that at most 1 s ([`LONGEST_PAUSE`]).
    pub(crate) async fn close(&self) {
        let mut session = None;
        self.change(|current| {
            current.closed = true;
            session = current.session.take();
        });
        let Some(session) = session else { return };
        let states = session.driver().ok().map(|driver| driver.state_watcher());
        session.end(Loss::SessionEnded);
        let Some(mut states) = states else { return };
        let ended = async { while !states.changed().await.is_terminated() {} };
        let clock = self.runtime.clock();
        clock.within(clock.now() + self.config.timeout.min(LONGEST_PAUSE), ended).await;
    }

    async fn connect(&self) -> Result<Arc<Session>, zk::Error> {
        let mut connector =
            zk::Client::connector().with_session_timeout(self.config.session).with_fail_eagerly();
        if let Some(silence) = self.config.silence() {
            connector = connector.with_connection_timeout(silence);
        }
        if let Some(login) = &self.config.login {
            let auth = format!("{}:{}", login.user, login.password);
            connector = connector.with_auth("digest", auth.as_bytes());
        }
        let hosts = self.config.hosts().join(",");
        let driver = match &self.tls {
            None => runner::with_sessions_here(connector.connect(&hosts)).await?,
            Some(tls) => runner::with_sessions_here(tls.connect(connector, &hosts)).await?,
        };
        // Connecting may have taken longer than the session lasts: its validity counts from a request of its own.
        let sent = self.runtime.clock().now();
        ask_quorum(&driver).await?;
        Ok(Session::new(driver, &self.runtime, sent, self.config.timeout))
    }

    /// Connects, and finds out meanwhile why that fails if it does: the driver does not say what is wrong with TLS.
    async fn connect_or_examine(&self) -> Result<Arc<Session>, zk::Error> {
        let Some(tls) = &self.tls else { return self.connect().await };
        let clock = self.runtime.clock();
        let examine = async || {
            let trouble = tls.examine(&self.config.servers).await;
            self.change(|current| current.tls = trouble);
        };
        let mut examined = false;
        let answer = {
            let mut connecting = pin!(self.connect());
            let mut late = pin!(async {
                clock.sleep_until(clock.now() + self.config.timeout / 4).await;
                examine().await;
            });
            poll_fn(|cx| {
                examined = examined || late.as_mut().poll(cx).is_ready();
                connecting.as_mut().poll(cx)
            })
            .await
        };
        if answer.is_err() && !examined {
            examine().await;
        }
        answer
    }
}

/// Returns whether the connection fails until somebody changes a setting.
fn is_setting(trouble: &TlsError) -> bool {
    trouble.kind == ErrorKind::Configuration
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(session) = self.current().session.take() {
            session.end(Loss::SessionEnded);
        }
    }
}

/// Makes one session after the other until the client is closed or dropped.
async fn connect_again(weak: Weak<Client>) {
    let mut backoff = Backoff::new(PAUSE, LONGEST_PAUSE);
    while let Some(client) = weak.upgrade().filter(|client| !client.current().closed) {
        match client.connect_or_examine().await {
            Ok(session) => {
                backoff.reset();
                let closed = client.current().closed;
                if closed {
                    session.end(Loss::SessionEnded);
                    return;
                }
                client.change(|current| {
                    (current.session, current.last) = (Some(Arc::clone(&session)), None);
                    current.tls.clear();
                });
                tracing::debug!(session = session.id, length = ?session.length, "a session with ZooKeeper");
                drop(client);
                session.serve().await;
            }
            Err(error) => {
                tracing::debug!(%error, "no session with ZooKeeper");
                client.change(|current| (current.session, current.last) = (None, Some(error)));
                let clock = client.runtime.clock().clone();
                drop(client);
                backoff.sleep(&clock).await;
            }
        }
    }
}
