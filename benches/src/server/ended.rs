//! Streams that end although their callers did not end them: the service ends the connection, or the proxy before it is killed.

use super::Copy;
use super::caller::Caller;
use crate::client::{connect, runtime};
use crate::command::fencepost;
use crate::figure::{Measured, median};
use crate::redis;
use fencepost::Locks;
use fencepost_testkit::faults::Faults;
use fencepost_testkit::server::{TempDir, WebServer, certify};
use futures_util::future::join_all;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The longest time for anything to happen.
const TIME: Duration = Duration::from_secs(120);
/// The page with the lines of the proxy.
const PAGE: &str = include_str!("../../../docs/backends/http.md");
/// How many milliseconds after a release the next one holds at most, at the median.
const HANDOFF: f64 = 100.0;
/// Requests that are begun and cancelled. The service takes that many in a moment for an attack, and ends the connection.
const CANCELLED: u32 = 40;

/// Counts the locks that were lost before their caller stopped or released them, and 1 more if releases take too long. Of two streams
/// that end together one is released. So many pairs of streams are on connections of HTTP/2, and so many behind a proxy.
pub(crate) fn streams(over_http2: usize, behind_proxy: usize) -> Measured {
    let (server, folder) = (redis::start(), TempDir::new("ended").expect("a folder"));
    certify(folder.path()).expect("openssl makes a certificate");
    let (secure, plain) = (secure(&server.url(), folder.path()), Copy::start(&server.url()));
    let (guarded, token) = guarded(&server.url(), folder.path());
    let mut proxy = WebServer::Nginx.before(guarded.address, PAGE).expect("nginx starts");
    let (ended, seconds) = runtime().block_on(async {
        let callers = Callers { locks: connect(&server.url()).await, plain: plain.address, token };
        let client = trusting(folder.path());
        let opened = (0..over_http2).map(|number| callers.connection(&client, secure.address, number));
        let mut ended = Vec::with_capacity(over_http2 + behind_proxy);
        for (number, (connection, waiting)) in join_all(opened).await.into_iter().enumerate() {
            let holds =
                connection.end_by(if number % 2 == 0 { cancelled_requests() } else { broken_frame() });
            ended.push(callers.end(holds.await, waiting).await);
        }
        let opened = (0..behind_proxy).map(|number| callers.pair(proxy.address(), number));
        let opened = join_all(opened).await;
        proxy.kill().expect("nginx is killed");
        let closed = opened.into_iter().map(async |((kept, released), waiting)| {
            let holds = tokio::join!(kept.end(), released.end());
            ((<[_; 2]>::from(holds), Instant::now()), waiting)
        });
        for (holds, waiting) in join_all(closed).await {
            ended.push(callers.end(holds, waiting).await);
        }
        let mut seconds = Vec::with_capacity(ended.len());
        for end in &mut ended {
            seconds.push((&mut end.next).await.expect("a grant"));
        }
        (ended, seconds)
    });
    let pairs = || ended.iter().zip(&seconds);
    let early = pairs().filter(|(end, second)| **second < end.stopped).count()
        + ended.iter().filter(|end| !end.is_released).count();
    let first =
        pairs().map(|(end, second)| second.saturating_duration_since(end.at)).min().unwrap_or_default();
    let times: Vec<f64> = ended.iter().map(|end| end.after_release).collect();
    let worst = times.iter().copied().fold(0.0, f64::max);
    let median = median(times);
    let note = format!(
        "{over_http2} connections of HTTP/2 that the service ends, half of them for {CANCELLED} fast resets and half for a broken frame, \
         and {behind_proxy} pairs of streams through nginx, which is killed; of two streams one is released, at another copy before \
         the same Redis; {early} locks lost before their caller stopped or released them; the first second holder {:.1} s after the end of a stream; the next one \
         holds {median:.1} ms (median) and {worst:.1} ms (longest) after the release",
        first.as_secs_f64()
    );
    Measured { figure: early as f64 + f64::from(u8::from(median > HANDOFF)), note }
}

/// Starts a copy of the service with TLS, because it speaks HTTP/2 only there.
fn secure(engine: &str, folder: &Path) -> Copy {
    let mut command = fencepost();
    command.args(["serve", "-b", engine, "--listen", "127.0.0.1:0", "--cert"]);
    command.arg(folder.join("cert.pem")).arg("--key").arg(folder.join("key.pem"));
    command.stdin(Stdio::null()).stderr(Stdio::null());
    Copy::of(command, "the page: https://")
}

/// Starts a copy of the service with an access token, because a service without one refuses what a proxy passes on. Returns the token, too.
fn guarded(engine: &str, folder: &Path) -> (Copy, String) {
    let file = folder.join("tokens.jsonl");
    let mut command = fencepost();
    command.args(["serve", "token", "add", "--allow", "acquire:", "--tokens"]).arg(&file).arg("caller");
    let token = command.output().expect("an access token").stdout;
    let mut command = fencepost();
    command.args(["serve", "-b", engine, "--listen", "127.0.0.1:0", "--tokens"]).arg(&file);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let token = String::from_utf8(token).expect("a text").trim().to_owned();
    (Copy::of(command, "the page: http://"), token)
}

/// Two streams that have ended, of which one was released.
struct Ended {
    at: Instant,
    /// When the caller of the other one stops.
    stopped: Instant,
    /// Whether the released one still held its lock.
    is_released: bool,
    /// How many milliseconds after the release the next one held.
    after_release: f64,
    /// Returns when another one holds the lock that was not released.
    next: JoinHandle<Instant>,
}

/// Those who wait for the locks of a pair of streams.
type Waiting = [JoinHandle<Instant>; 2];

/// Where callers wait and release.
struct Callers {
    locks: Locks,
    plain: SocketAddr,
    /// The access token for the service behind the proxy.
    token: String,
}

impl Callers {
    /// Holds two locks by one connection, and queues a caller for each.
    async fn connection(&self, client: &TlsConnector, to: SocketAddr, number: usize) -> (Http2, Waiting) {
        let names = ["kept", "released"].map(|name| format!("http2/{number}/{name}"));
        let mut connection = Http2::connect(client, to).await;
        connection.hold(&names).await;
        (connection, self.wait(&names).await)
    }

    /// Holds two locks through the proxy, and queues a caller for each.
    async fn pair(&self, proxy: SocketAddr, number: usize) -> ((Http1, Http1), Waiting) {
        let names = ["kept", "released"].map(|name| format!("proxy/{number}/{name}"));
        let hold = |name| Http1::hold(proxy, &self.token, name);
        let streams = tokio::join!(hold(&names[0]), hold(&names[1]));
        (streams, self.wait(&names).await)
    }

    /// Queues a caller for each of two locks that are held. The tasks return when they hold.
    async fn wait(&self, names: &[String; 2]) -> Waiting {
        tokio::join!(self.wait_for(&names[0]), self.wait_for(&names[1])).into()
    }

    async fn wait_for(&self, name: &str) -> JoinHandle<Instant> {
        let mut caller = Caller::connect(self.plain).await;
        caller.send("/v1/acquire", &body(name)).await;
        while self.locks.inspect(name).await.expect("a server that answers").waiters().count() == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::spawn(async move {
            let answer = timeout(TIME, caller.answer()).await.expect("a grant in time");
            let (status, answer) = answer.expect("an answer");
            assert_eq!(status, 200, "{answer}");
            Instant::now()
        })
    }

    /// Releases the second of two streams that have ended, and waits for its next holder.
    async fn end(&self, ([kept, released], at): ([Hold; 2], Instant), [next, after]: Waiting) -> Ended {
        let start = Instant::now();
        let lease = json!({ "lease": released.lease }).to_string();
        let mut caller = Caller::connect(self.plain).await;
        let (status, answer) = caller.ask("/v1/leases/release", &lease).await;
        assert!(matches!(status, 204 | 410), "{answer}");
        let after = after.await.expect("a grant").saturating_duration_since(start);
        let stopped = kept.stopped.expect("an event");
        let is_released = status == 204;
        Ended { at, stopped, is_released, after_release: after.as_secs_f64() * 1e3, next }
    }
}

/// What a caller knows from the events of its stream.
struct Hold {
    sent: Instant,
    /// What was read of the last line.
    text: String,
    lease: String,
    /// When the caller stops if no more events come.
    stopped: Option<Instant>,
}

impl Hold {
    fn new() -> Hold {
        Hold { sent: Instant::now(), text: String::new(), lease: String::new(), stopped: None }
    }

    /// Reads a part of the stream.
    fn read(&mut self, bytes: &[u8]) {
        self.text.push_str(&String::from_utf8_lossy(bytes));
        let whole = self.text.rfind('\n').map_or(0, |at| at + 1);
        let lines: String = self.text.drain(..whole).collect();
        for data in lines.lines().filter_map(|line| line.strip_prefix("data: ")) {
            let data: Value = serde_json::from_str(data).expect("JSON");
            let time = |field: &str| data[field].as_u64().map(Duration::from_millis);
            if let Some(lease) = data["lease"].as_str() {
                lease.clone_into(&mut self.lease);
            }
            if let Some(valid) = time("valid_ms") {
                self.stopped = Some(self.sent + valid);
            }
        }
    }
}

fn body(name: &str) -> String {
    json!({ "name": name, "ttl": "30s", "wait": "120s" }).to_string()
}

/// A stream over HTTP/1.1.
struct Http1 {
    stream: TcpStream,
    hold: Hold,
}

impl Http1 {
    /// Holds a lock through the proxy.
    async fn hold(proxy: SocketAddr, token: &str, name: &str) -> Http1 {
        let mut stream = TcpStream::connect(proxy).await.expect("a proxy that accepts");
        let body = body(name);
        let head = format!(
            "POST /locks/v1/hold HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let hold = Hold::new();
        stream.write_all(format!("{head}{body}").as_bytes()).await.expect("a connection");
        let mut held = Http1 { stream, hold };
        while held.hold.stopped.is_none() {
            assert!(held.next().await, "the stream ended without a grant");
        }
        held
    }

    /// Reads a part. Returns `false` at the end of the stream.
    async fn next(&mut self) -> bool {
        let mut bytes = [0; 4096];
        let read = timeout(TIME, self.stream.read(&mut bytes)).await.expect("an event in time");
        let count = read.unwrap_or(0);
        self.hold.read(&bytes[..count]);
        count > 0
    }

    /// Reads until the stream ends.
    async fn end(mut self) -> Hold {
        while self.next().await {}
        self.hold
    }
}

/// Makes a client that trusts the certificate in the folder and speaks HTTP/2.
fn trusting(folder: &Path) -> TlsConnector {
    let certificate = CertificateDer::from_pem_file(folder.join("cert.pem")).expect("a certificate");
    let mut roots = RootCertStore::empty();
    roots.add(certificate).expect("a certificate");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = builder.expect("versions of TLS").with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsConnector::from(Arc::new(config))
}

/// A connection of HTTP/2 whose frames are written by hand, because no client breaks the rules. The streams 1 and 3 hold locks.
struct Http2 {
    stream: TlsStream<TcpStream>,
    holds: [Hold; 2],
}

impl Http2 {
    async fn connect(client: &TlsConnector, to: SocketAddr) -> Http2 {
        let stream = TcpStream::connect(to).await.expect("a service that accepts");
        stream.set_nodelay(true).expect("a socket");
        let name = ServerName::try_from("localhost").expect("a name");
        let stream = client.connect(name, stream).await.expect("TLS");
        let mut connection = Http2 { stream, holds: [Hold::new(), Hold::new()] };
        let preface = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(SETTINGS, 0, 0, &[])].concat();
        connection.send(&preface).await;
        connection
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("a connection");
        self.stream.flush().await.expect("a connection");
    }

    /// Holds two locks.
    async fn hold(&mut self, names: &[String; 2]) {
        self.holds = [Hold::new(), Hold::new()];
        for (name, stream) in names.iter().zip([1, 3]) {
            let body = frame(DATA, END_STREAM, stream, body(name).as_bytes());
            self.send(&[frame(HEADERS, END_HEADERS, stream, &head()), body].concat()).await;
        }
        while self.holds.iter().any(|hold| hold.stopped.is_none()) {
            let kind = self.next().await;
            assert!(!matches!(kind, None | Some(GOAWAY)), "the service ended the connection");
        }
    }

    /// Reads a frame, and returns its kind. `None`: the connection has ended.
    async fn next(&mut self) -> Option<u8> {
        let mut head = [0; 9];
        timeout(TIME, self.stream.read_exact(&mut head)).await.expect("a frame in time").ok()?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        timeout(TIME, self.stream.read_exact(&mut payload)).await.expect("a frame in time").ok()?;
        match (kind, u32::from_be_bytes(stream)) {
            (DATA, 1) => self.holds[0].read(&payload),
            (DATA, 3) => self.holds[1].read(&payload),
            (SETTINGS, _) if flags & ACKNOWLEDGED == 0 => {
                self.send(&frame(SETTINGS, ACKNOWLEDGED, 0, &[])).await;
            }
            _ => {}
        }
        Some(kind)
    }

    /// Sends these bytes, and returns when the service has ended the connection for them.
    async fn end_by(mut self, bytes: Vec<u8>) -> ([Hold; 2], Instant) {
        self.send(&bytes).await;
        let mut says_so = false;
        while let Some(kind) = self.next().await {
            says_so |= kind == GOAWAY;
        }
        assert!(says_so, "the connection ended without GOAWAY");
        (self.holds, Instant::now())
    }
}

// Kinds of frames, and their flags.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACKNOWLEDGED: u8 = 1;
const END_HEADERS: u8 = 4;

/// Makes requests that are begun and cancelled at once.
fn cancelled_requests() -> Vec<u8> {
    let frames = (0..CANCELLED).flat_map(|number| {
        let stream = 101 + 2 * number;
        let cancel = frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes());
        [frame(HEADERS, END_HEADERS, stream, &head()), cancel].concat()
    });
    frames.collect()
}

/// Makes a change of the flow control by nothing, which breaks a rule.
fn broken_frame() -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, 0, &[0; 4])
}

/// Makes a frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short frame").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The head of a request to hold a lock, by the numbers of HPACK's table.
fn head() -> Vec<u8> {
    let text = |name: &[u8], value: &str| [name, &[value.len() as u8], value.as_bytes()].concat();
    [vec![0x83, 0x87], text(&[4], "/v1/hold"), text(&[1], "localhost"), text(&[15, 16], "application/json")]
        .concat()
}
