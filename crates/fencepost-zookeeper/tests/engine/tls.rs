//! Servers that are reached by TLS.

use fencepost_testkit::needs;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use fencepost_core::Client;
use fencepost_testkit::faults::Faults;
use fencepost_testkit::server::free_port;
use fencepost_testkit::zookeeper::{Config, Proxied, ZooKeeper, word};

use crate::kit::{LASTING, SOON, client, eventually, nodes, path, try_client};

/// The addresses and files of a server.
#[derive(Clone)]
struct Known {
    url: String,
    plain: SocketAddr,
    secure: SocketAddr,
    ca: PathBuf,
    key: PathBuf,
}

impl Known {
    fn of(server: &ZooKeeper) -> Known {
        let (ca, key) = (server.certificate(), server.key());
        Known { url: server.url(), plain: server.address(), secure: server.entrance(), ca, key }
    }

    /// A URL by which it is trusted.
    fn trusted(&self, path: &str) -> String {
        format!("{}{path}?{LASTING}&ca={}", self.url, self.ca.display())
    }

    /// One that says who we are, too.
    fn known(&self, path: &str) -> String {
        format!("{}&cert={}&key={}", self.trusted(path), self.ca.display(), self.key.display())
    }
}

/// A server that everybody may speak with. It stays until the process ends.
fn open() -> Known {
    static SERVER: LazyLock<Known> = LazyLock::new(|| started(&Config::new().tls()));
    SERVER.clone()
}

/// A server that wants certificates.
fn mutual() -> Known {
    static SERVER: LazyLock<Known> = LazyLock::new(|| started(&Config::new().mutual_tls()));
    SERVER.clone()
}

fn started(config: &Config) -> Known {
    let server = ZooKeeper::start(config).expect("a server starts");
    let known = Known::of(&server);
    // Its warden ends it with this process.
    std::mem::forget(server);
    known
}

async fn cycle(locks: &Client) {
    let guard = locks.mutex("lock").expect("a good name").lock().wait(SOON).await.expect("it is free");
    guard.release().await.expect("it was held");
}

/// Checks that no client can be had, and that the reason has these parts.
async fn refused(url: &str, parts: &[&str]) {
    let start = Instant::now();
    loop {
        let error = try_client(url).await.expect_err(url);
        assert!(error.is_configuration() || error.is_unreachable(), "{error}");
        let why = error.to_string();
        if parts.iter().all(|part| why.contains(part)) {
            return;
        }
        // On a busy machine the time of a request may end before the reason is found.
        assert!(start.elapsed() < SOON, "{parts:?}: {why}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_exclude_each_other() {
    needs!(ZOOKEEPER);
    let (server, path) = (open(), path());
    let (one, other) = (client(&server.trusted(&path)).await, client(&server.trusted(&path)).await);
    let guard = one.mutex("lock").expect("a good name").lock().await.expect("it is free");
    let mutex = other.mutex("lock").expect("a good name");
    assert!(mutex.try_lock().await.expect("it answers").is_none());
    let waiting = tokio::spawn(async move { mutex.lock().wait(SOON).await });
    eventually("it is in the queue", || nodes(server.plain, &path).len() == 2).await;
    guard.release().await.expect("it was held");
    waiting.await.expect("no panic").expect("its turn comes").release().await.expect("it was held");
    eventually("nothing is left", || nodes(server.plain, &path).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_may_go_by_its_name() {
    needs!(ZOOKEEPER);
    let server = open();
    let url = server.trusted("/named").replace("127.0.0.1", "localhost");
    cycle(&client(&url).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_trusted_is_refused_with_the_reason() {
    needs!(ZOOKEEPER);
    let server = open();
    let (untrusted, named) = ("no certificate that is trusted here", server.secure.to_string());
    refused(&server.url, &[untrusted, "ca=/path", &named]).await;
    refused(&format!("{}?ca={}", server.url, mutual().ca.display()), &[untrusted]).await;
    refused(&format!("{}?ca=/nowhere", server.url), &["ca names /nowhere"]).await;
    let elsewhere = started(&Config::new().tls_for("DNS:elsewhere.example"));
    refused(&elsewhere.trusted(""), &["for another name"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_speaks_something_else_is_told() {
    needs!(ZOOKEEPER);
    let server = open();
    let tls_to = |address: &str| format!("zookeepers://{address}?timeout=2s&ca={}", server.ca.display());
    let without_tls = ["does not answer in TLS", "one with zookeeper: goes without"];
    refused(&tls_to(&server.plain.to_string()), &without_tls).await;
    refused(&format!("zookeeper://{}?timeout=2s", server.secure), &["zookeepers:"]).await;
    let nobody = format!("127.0.0.1:{}", free_port().expect("a port"));
    refused(&tls_to(&nobody), &[&nobody, "cannot be reached"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_wants_certificates_gets_one() {
    needs!(ZOOKEEPER);
    let server = mutual();
    cycle(&client(&server.known("/mutual")).await).await;
    refused(&server.trusted("/mutual"), &["wants to know its clients by certificates", "cert=/path"]).await;
    let stranger = open();
    let url = format!(
        "{}&cert={}&key={}",
        server.trusted("/mutual"),
        stranger.ca.display(),
        stranger.key.display()
    );
    refused(&url, &["does not take our certificate"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_examination_goes_by_tls_as_well() {
    needs!(ZOOKEEPER);
    let server = open();
    let both = format!("{},127.0.0.1:1", server.secure);
    let locks = client(&server.trusted("/look").replace(&server.secure.to_string(), &both)).await;
    let start = Instant::now();
    loop {
        let report = locks.examine().await.expect("it can look");
        let says = |subject: &str, what: &str| {
            report.findings.iter().any(|finding| finding.subject == subject && finding.says.contains(what))
        };
        if says("version", "ZooKeeper 3.") && says("reach", "127.0.0.1:1 cannot be reached") {
            break;
        }
        // A server that is busy may not say it in time.
        assert!(start.elapsed() < SOON, "{report:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server_that_hangs_holds_up_no_other() {
    needs!(ZOOKEEPER);
    let server = open();
    let hangs = TcpListener::bind("127.0.0.1:0").expect("a port");
    let both = format!("{},{}", hangs.local_addr().expect("an address"), server.secure);
    // The server that hangs is given up after a fifth of the session.
    let url = server
        .trusted("/hangs")
        .replace(&server.secure.to_string(), &both)
        .replace("session=60s", "session=8s");
    // Which one is tried first is a matter of chance.
    for _ in 0..3 {
        let locks = client(&url).await;
        cycle(&locks).await;
        locks.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_back_finds_its_clients() {
    needs!(ZOOKEEPER);
    let mut server = ZooKeeper::start(&Config::new().tls()).expect("a server starts");
    // The guard is held again with a probe of the session, which comes within a sixth of its time.
    let url = Known::of(&server).trusted("/back").replace("session=60s", "session=40s");
    let locks = client(&url).await;
    let guard = locks.mutex("lock").expect("a good name").lock().await.expect("it is free");
    server.kill().expect("it runs");
    eventually("the guard is suspect", || guard.state() == fencepost_core::State::Suspect).await;
    server.restart().expect("it starts again");
    eventually("the guard is held again", || guard.state() == fencepost_core::State::Held).await;
    guard.release().await.expect("it was held all the time");
    cycle(&locks).await;
    let connections = || {
        let text = word(server.address(), "mntr").expect("it answers");
        let line = text.lines().find_map(|line| line.strip_prefix("zk_num_alive_connections"));
        line.and_then(|number| number.trim().parse::<u32>().ok()).expect("a count")
    };
    locks.close().await;
    // The question is a connection itself.
    eventually("no other connection is left", || connections() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_cut_off_learns_of_its_loss() {
    needs!(ZOOKEEPER);
    let mut server = Proxied::start(&Config::new().tls()).expect("a server starts");
    let ca = server.certificate();
    let locks = client(&format!("{}/cut?session=2s&ca={}", server.url(), ca.display())).await;
    let mutex = locks.mutex("lock").expect("a good name");
    for silent in [true, false] {
        let guard = mutex.lock().wait(SOON).await.expect("it is free");
        if silent { server.silence() } else { server.cut() }.expect("the network can fail");
        let near = client(&format!("{}/cut?{LASTING}&ca={}", server.direct_url(), ca.display())).await;
        let next = near.mutex("lock").expect("a good name").lock().wait(SOON).await.expect("its turn comes");
        assert!(guard.ensure_held().is_err(), "two hold it");
        tokio::time::timeout(Duration::ZERO, guard.lost()).await.expect("the holder is told");
        server.mend().expect("the network can be mended");
        next.release().await.expect("it was held");
    }
    // On a busy machine its short session may end once more.
    let start = Instant::now();
    while mutex.lock().wait(SOON).await.expect("it is free").release().await.is_err() {
        assert!(start.elapsed() < SOON, "it cannot be held");
    }
}
