//! A server for all tests, a path of nodes for each, and ways to read both.

use fencepost_core::sync::Mutex;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use fencepost_core::{Client, ClientBuilder, Clock, Registry, Result, Runtime, Spawner, Task};
use fencepost_testkit::zookeeper::{Config, ZooKeeper, ephemerals, word};

/// The bound of each wait for an event.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// The options of a URL whose client loses nothing while a busy machine holds it or its server up.
pub(crate) const LASTING: &str = "session=60s&timeout=20s";

static SERVER: LazyLock<Mutex<ZooKeeper>> =
    LazyLock::new(|| Mutex::new(ZooKeeper::start(&Config::new()).expect("a server starts")));

/// The server that all tests share.
pub(crate) fn address() -> SocketAddr {
    SERVER.lock().address()
}

/// A path of nodes that no other test has.
pub(crate) fn path() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("/test{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) async fn try_client(url: &str) -> Result<Client> {
    connect(Client::builder(), url).await
}

async fn connect(builder: ClientBuilder, url: &str) -> Result<Client> {
    builder.connect(&fencepost_zookeeper::register(Registry::new()), url).await
}

/// A client that gives a busy server time to answer a call that does not wait, and a release.
pub(crate) async fn client(url: &str) -> Client {
    let start = Instant::now();
    loop {
        match connect(Client::builder().attempt_timeout(2 * SOON).release_timeout(SOON), url).await {
            // On a busy machine it may take longer than a request may.
            Err(error) if error.is_unreachable() && start.elapsed() < SOON => {}
            done => return done.expect("it connects"),
        }
    }
}

/// A client whose time passes only when the test moves the clock, so that no limit ends a wait for a slow server.
pub(crate) async fn client_of(clock: &Clock, url: &str) -> Client {
    let tasks = Arc::new(Tasks(tokio::runtime::Handle::current()));
    let runtime = Runtime::for_client(1, clock.clone(), tasks);
    connect(Client::builder().runtime(runtime), url).await.expect("it connects")
}

struct Tasks(tokio::runtime::Handle);

impl Spawner for Tasks {
    fn spawn(&self, task: Task) {
        self.0.spawn(task);
    }
}

/// A client below `path` on the shared server. A machine that is busy for seconds ends neither its session nor its requests.
pub(crate) async fn near(path: &str) -> Client {
    client(&format!("zookeeper://{}{path}?{LASTING}", address())).await
}

/// The bare driver, to look and to disturb.
pub(crate) async fn bare() -> zookeeper_client::Client {
    bare_at(address()).await
}

/// The same at another server. By default its session would end after 6 s, and its requests would fail after 2.4 s.
pub(crate) async fn bare_at(at: SocketAddr) -> zookeeper_client::Client {
    let connector = zookeeper_client::Client::connector().with_session_timeout(3 * SOON);
    connector.with_connection_timeout(SOON).connect(&at.to_string()).await.expect("it connects")
}

/// The claims' nodes below a path.
pub(crate) fn nodes(at: SocketAddr, path: &str) -> Vec<String> {
    let below = format!("{path}/");
    let all = ephemerals(at).expect("the server answers");
    all.into_iter().filter(|node| node.starts_with(&below)).collect()
}

/// How many requests the server has got.
pub(crate) fn requests(at: SocketAddr) -> u64 {
    let text = word(at, "mntr").expect("the server answers");
    let line = text.lines().find_map(|line| line.strip_prefix("zk_packets_received"));
    line.and_then(|number| number.trim().parse().ok()).expect("a count")
}

/// Waits until it is so.
pub(crate) async fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    fencepost_testkit::wait::eventually(SOON, what, || std::future::ready(is())).await;
}
