//! The parts that all entries of one client share.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::{
    Backoff, Claim, ClaimRecord, Clock, Connectivity, Error, ErrorKind, Name, Result, Runtime, Supervisor,
    Token,
};
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
    pub(crate) tls: Option<Arc<Tls>>,
    supervisor: Supervisor<Arc<Session>, Trouble>,
}

/// Why there is no session.
#[derive(Clone, Default)]
struct Trouble {
    last: Option<zk::Error>,
    /// The failures of TLS, at most one for each server.
    tls: Vec<TlsError>,
}

type State = Connectivity<Arc<Session>, Trouble>;

impl Client {
    /// Makes a session, and a new one whenever it ends.
    ///
    /// # Errors
    /// A file of the URL's TLS options is not as it should be.
    pub(crate) fn start(config: Config, runtime: Runtime) -> Result<Arc<Client>> {
        let client = Arc::new(Client {
            tls: config.tls.as_ref().map(|tls| Tls::read(tls, config.timeout)).transpose()?.map(Arc::new),
            folders: Arc::new(Folders::new(config.folders)),
            held: Arc::new(HeldGrants::new(&config.root)),
            config,
            runtime,
            kinds: OtherKinds::default(),
            supervisor: Supervisor::default(),
        });
        let clock = client.runtime.clock().clone();
        let supervisor = client.supervisor.clone();
        client.runtime.spawn(connect_again(Arc::downgrade(&client), supervisor, clock.clone()));
        client.runtime.spawn(give_back(Arc::downgrade(&client.held), clock));
        Ok(client)
    }

    /// Returns the current session; waits for one as long as a request may take.
    pub(crate) async fn session(&self) -> Result<Arc<Session>> {
        let is_settled = |state: &State| match state {
            Connectivity::Up(session) => !session.is_over(),
            Connectivity::Down(trouble) => trouble.as_ref().is_some_and(|trouble| self.is_hopeless(trouble)),
            Connectivity::Closed => true,
        };
        let answer = |state: &State| match state {
            Connectivity::Up(session) if !session.is_over() => Ok(Arc::clone(session)),
            Connectivity::Up(_) => Err(self.no_session(&Trouble::default())),
            Connectivity::Down(trouble) => {
                Err(self.no_session(trouble.as_ref().unwrap_or(&Trouble::default())))
            }
            Connectivity::Closed => Err(closed()),
        };
        let clock = self.runtime.clock();
        self.supervisor.settled(clock, clock.now() + self.config.timeout, is_settled, answer).await
    }

    /// Returns whether there can be no session before somebody changes a setting.
    fn is_hopeless(&self, trouble: &Trouble) -> bool {
        let refused = matches!(trouble.last, Some(zk::Error::AuthFailed));
        let all = trouble.tls.len() == self.config.servers.len();
        refused || all && trouble.tls.iter().all(is_setting)
    }

    fn no_session(&self, trouble: &Trouble) -> Error {
        // First the trouble that needs a changed setting.
        let tls = trouble.tls.iter().find(|tls| is_setting(tls)).or(trouble.tls.first());
        no_session(&self.config.hosts(), trouble.last.as_ref(), tls.cloned())
    }

    /// Returns why there is no session, as far as is known.
    fn trouble(&self) -> Trouble {
        self.supervisor.look(|state| match state {
            Connectivity::Down(Some(trouble)) => trouble.clone(),
            _ => Trouble::default(),
        })
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

    /// Returns the record that a claim writes into its node. `position`: the claim's earlier position in the queue, for a node that is made
    /// later.
    pub(crate) fn record(&self, claim: &Claim, position: Option<Token>) -> Vec<u8> {
        let position = position.map(Token::get);
        ClaimRecord { position, data: self.config.data.clone(), ..ClaimRecord::of(claim) }.to_bytes()
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
        let Some(session) = self.supervisor.close() else { return };
        let states = session.driver().ok().map(|driver| driver.state_watcher());
        session.end();
        let Some(mut states) = states else { return };
        let ended = async { while !states.changed().await.is_terminated() {} };
        let clock = self.runtime.clock();
        clock.within(clock.now() + self.config.timeout.min(LONGEST_PAUSE), ended).await;
    }

    async fn connect(&self) -> Result<Arc<Session>, zk::Error> {
        let mut connector = zk::Client::connector()
            .with_session_timeout(self.config.session)
            .with_connection_timeout(self.config.silence())
            .with_fail_eagerly();
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
        Ok(Session::new(driver, self.tls.clone(), &self.runtime, sent, self.config.timeout))
    }

    /// Connects, and finds out meanwhile why that fails if it does: the driver does not say what is wrong with TLS.
    async fn connect_or_examine(&self) -> Result<Arc<Session>, zk::Error> {
        let Some(tls) = &self.tls else { return self.connect().await };
        let clock = self.runtime.clock();
        let examine = async || {
            let tls = tls.examine(&self.config.servers).await;
            self.supervisor.fail(Some(Trouble { tls, ..self.trouble() }));
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
        if let Some(session) = self.supervisor.close() {
            session.end();
        }
    }
}

/// Makes one session after the other until the client is closed or dropped.
async fn connect_again(weak: Weak<Client>, supervisor: Supervisor<Arc<Session>, Trouble>, clock: Clock) {
    let connect = async |_| {
        // The client closes the supervisor when it is dropped.
        let Some(client) = weak.upgrade() else { return Err(Trouble::default()) };
        let connected = client.connect_or_examine().await;
        connected.map_err(|error| {
            tracing::debug!(%error, "no session with ZooKeeper");
            Trouble { last: Some(error), ..client.trouble() }
        })
    };
    let serve = async |session: Arc<Session>| {
        if supervisor.is_closed() {
            session.end();
            return;
        }
        tracing::debug!(session = session.id, length = ?session.length, "a session with ZooKeeper");
        session.serve().await;
    };
    supervisor.run(&clock, Backoff::new(PAUSE, LONGEST_PAUSE), connect, serve).await;
}
