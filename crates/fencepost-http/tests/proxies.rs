//! The service behind real proxies, with the lines of docs/backends/http.md: the name of a lock stays as it is, and streams arrive.

mod service;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fencepost_core::{Client, Eviction, Page, Registry};
use fencepost_server::{Audit, NewToken, Options, Tokens};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::server::{Server, TempDir, WebServer};
use fencepost_testkit::wait::eventually;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use service::Service;

const SOON: Duration = Duration::from_secs(20);
/// How often a test begins anew on a machine that is too slow to show anything.
const TRIES: u32 = 5;
const PAGE: &str = include_str!("../../../docs/backends/http.md");
/// The usual lines for nginx, without those of the page. Without HTTP/1.1 to the service, nginx keeps events back unless they ask it not to.
const USUAL: &str = "```nginx\nlocation /locks/ { proxy_pass http://127.0.0.1:7070/; }\n```";
/// Names that proxies change if they stand in a path.
const NAMES: [&str; 12] = [
    "a/../victim",
    "stock/42",
    "stock//42",
    "a/./b",
    "../../b",
    "..",
    "%2e%2e/b",
    "a%2Fb",
    "a b+c",
    "a?b=c&d",
    "ü#;\\",
    "/",
];

/// An access token with all rights, and the file that has it.
struct Access {
    dir: TempDir,
    token: String,
}

/// Starts a service with access tokens for an engine in memory, and the proxy before it.
async fn start(proxy: WebServer, page: &str) -> (Client, Service, Server, Access) {
    let engine = Client::builder().connect(&Registry::new(), "memory:").await.unwrap();
    let dir = TempDir::new("access").unwrap();
    let file = dir.path().join("tokens");
    let rights = vec!["acquire,read,evict:".parse().unwrap()];
    let new = NewToken { caller: "ci".to_owned(), rights, expires: None, waiting: None, rate: None };
    let token = Tokens::add(&file, &new).unwrap();
    std::fs::write(dir.path().join("token"), &token).unwrap();
    let tokens = Some(Arc::new(Tokens::read(&file).unwrap()));
    let service = Service::with(engine.clone(), Options { tokens, ..Options::default() });
    let proxy = proxy.before(service.address(), page).unwrap();
    (engine, service, proxy, Access { dir, token })
}

/// A service without access tokens serves nobody behind a proxy.
async fn others_need_access_tokens(proxy: WebServer) {
    let engine = Client::builder().connect(&Registry::new(), "memory:").await.unwrap();
    let service = Service::in_front_of(engine);
    let proxy = proxy.before(service.address(), PAGE).unwrap();
    let (head, problem) = browse(proxy.address(), "none", "GET /locks/v1/locks", "").await;
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    assert!(problem.contains("\"proxied\"") && problem.contains("--tokens"), "{problem}");
}

#[tokio::test]
async fn others_need_access_tokens_behind_nginx() {
    needs!(NGINX);
    others_need_access_tokens(WebServer::Nginx).await;
}

#[tokio::test]
async fn others_need_access_tokens_behind_apache() {
    needs!(APACHE);
    others_need_access_tokens(WebServer::Apache).await;
}

async fn names_stay(proxy: WebServer, page: &str) {
    let (engine, _service, proxy, access) = start(proxy, page).await;
    let registry = fencepost_http::register(Registry::new());
    let token = access.dir.path().join("token");
    let url = format!("http://{}/locks?token_file={}", proxy.address(), token.display());
    let builder = Client::builder().attempt_timeout(SOON).release_timeout(SOON);
    let locks = builder.connect(&registry, &url).await.unwrap();
    for name in NAMES {
        let guard = locks.mutex(name).unwrap().lock().await.unwrap();
        let held = engine.list("", &Page::default()).await.unwrap().resources;
        assert_eq!(held.iter().map(|info| info.name.as_str()).collect::<Vec<_>>(), [name]);
        assert_eq!(locks.inspect(name).await.unwrap().last_token, Some(guard.token()), "{name}");
        let listed = locks.list(name, &Page::default()).await.unwrap().resources;
        assert_eq!(listed.iter().map(|info| info.name.as_str()).collect::<Vec<_>>(), [name]);
        let waits = locks.mutex(name).unwrap().try_lock().wait(Duration::from_millis(100)).await.unwrap();
        assert!(waits.is_none(), "{name} has a second holder");
        locks.evict(name, guard.token(), &Eviction::new(true)).await.unwrap();
        assert!(guard.release().await.unwrap_err().is_lost(), "{name}");
        let all = engine.list("", &Page::default()).await.unwrap().resources;
        for info in all {
            for claim in info.holders().filter_map(|claim| claim.token) {
                engine.evict(info.name.as_str(), claim, &Eviction::new(true)).await.unwrap();
            }
        }
    }
}

/// A stream through a proxy that holds the lock `a`.
struct Hold {
    stream: TcpStream,
    text: String,
}

impl Hold {
    async fn start(proxy: SocketAddr, token: &str) -> Hold {
        let mut stream = TcpStream::connect(proxy).await.unwrap();
        let body = "{\"name\":\"a\",\"ttl\":\"5s\"}";
        let head = format!(
            "POST /locks/v1/hold HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        Hold { stream, text: String::new() }
    }

    /// Returns the data of an event.
    async fn next_of(&mut self, event: &str) -> Value {
        let begin = format!("event: {event}\ndata: ");
        let mut bytes = [0; 1000];
        loop {
            let data = self.text.split_once(&begin).and_then(|(_, rest)| rest.split_once('\n'));
            if let Some((data, _)) = data {
                return serde_json::from_str(data).unwrap();
            }
            let count = self.stream.read(&mut bytes).await.unwrap();
            assert!(count > 0, "{}", self.text);
            self.text.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
        }
    }

    /// Returns when the stream has ended.
    async fn end(mut self) {
        let _ = self.stream.read_to_end(&mut Vec::new()).await;
    }
}

/// A killed proxy ends the streams of callers that still work.
async fn a_killed_proxy_frees_nothing(proxy: WebServer) {
    let (engine, service, mut proxy, access) = start(proxy, PAGE).await;
    'releases: for releases in [false, true] {
        for _ in 0..TRIES {
            if is_early(&engine, &service, &mut proxy, &access, releases).await == releases {
                continue 'releases;
            }
            // Nothing may be granted before the holder has stopped. After that, a busy machine may be late.
            assert!(releases, "it was granted too early");
        }
        panic!("a release freed nothing in {TRIES} tries");
    }
}

/// Kills the proxy of a stream that holds a lock. Returns whether the next claim is granted before the holder of the stream has stopped.
async fn is_early(
    engine: &Client,
    service: &Service,
    proxy: &mut Server,
    access: &Access,
    releases: bool,
) -> bool {
    let sent = Instant::now();
    let mut hold = Hold::start(proxy.address(), &access.token).await;
    let granted = hold.next_of("granted").await;
    let stop_after = Duration::from_millis(granted["valid_ms"].as_u64().unwrap());
    let lock = engine.mutex("a").unwrap();
    let next = tokio::spawn(async move { lock.lock().await.map(|guard| (guard, Instant::now())) });
    eventually(SOON, "the queue", || async {
        next.is_finished() || engine.inspect("a").await.unwrap().waiters().count() == 1
    })
    .await;
    proxy.kill().unwrap();
    hold.end().await;
    if releases {
        let body = format!("{{\"lease\":{}}}", granted["lease"]);
        let head = format!(
            "POST /v1/leases/release HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            access.token,
            body.len()
        );
        let (mut stream, mut answer) = (TcpStream::connect(service.address()).await.unwrap(), String::new());
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 204 ") || sent.elapsed() >= stop_after, "{answer}");
    }
    let (guard, at) = tokio::time::timeout(SOON, next).await.expect("a grant").unwrap().unwrap();
    guard.release().await.unwrap();
    proxy.restart().unwrap();
    // The holder counts from the moment at which it sent the request.
    at - sent < stop_after
}

#[tokio::test]
async fn a_killed_nginx_frees_nothing() {
    needs!(NGINX);
    a_killed_proxy_frees_nothing(WebServer::Nginx).await;
}

#[tokio::test]
async fn a_killed_apache_frees_nothing() {
    needs!(APACHE);
    a_killed_proxy_frees_nothing(WebServer::Apache).await;
}

async fn streams_arrive(proxy: WebServer, page: &str) {
    let mut times = Vec::new();
    for _ in 0..TRIES {
        let (granted, held) = time_of_events(proxy, page).await;
        times.push((granted, held));
        if granted < Duration::from_secs(2) && held < Duration::from_secs(3) {
            return;
        }
    }
    panic!("the proxy keeps events back: {times:?}");
}

/// Returns how long the first two events take that a holder is sent.
async fn time_of_events(proxy: WebServer, page: &str) -> (Duration, Duration) {
    let (_engine, _service, proxy, access) = start(proxy, page).await;
    let arrivals = async {
        let sent = Instant::now();
        let mut hold = Hold::start(proxy.address(), &access.token).await;
        hold.next_of("granted").await;
        let granted = sent.elapsed();
        hold.next_of("held").await;
        (granted, sent.elapsed())
    };
    tokio::time::timeout(SOON, arrivals).await.expect("the proxy passes events on")
}

#[tokio::test]
async fn nginx_changes_no_name() {
    needs!(NGINX);
    names_stay(WebServer::Nginx, PAGE).await;
    names_stay(WebServer::Nginx, USUAL).await;
}

#[tokio::test]
async fn apache_changes_no_name() {
    needs!(APACHE);
    names_stay(WebServer::Apache, PAGE).await;
}

#[tokio::test]
async fn the_audit_log_has_the_address_that_nginx_tells() {
    needs!(NGINX);
    let dir = TempDir::new("tokens").unwrap();
    let (tokens, log) = (dir.path().join("tokens"), dir.path().join("audit"));
    std::fs::write(&tokens, "").unwrap();
    let audit = Audit::to_file(&log).unwrap();
    let options = Options {
        tokens: Some(Arc::new(Tokens::read(&tokens).unwrap())),
        audit: audit.clone(),
        proxies: ["127.0.0.1".parse().unwrap()].into(),
        ..Options::default()
    };
    let engine = Client::builder().connect(&Registry::new(), "memory:").await.unwrap();
    let service = Service::with(engine, options);
    let proxy = WebServer::Nginx.before(service.address(), PAGE).unwrap();
    // A caller on another address of this machine, which claims to be somebody else.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut stream = socket.connect(proxy.address()).await.unwrap();
    let head = "GET /locks/v1/locks HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer guess\r\n\
                Forwarded: for=198.51.100.1\r\nConnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    audit.flush().await;
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.contains("\"peer\":\"127.0.0.2\""), "{log}");
}

#[tokio::test]
async fn nginx_passes_streams_on() {
    needs!(NGINX);
    streams_arrive(WebServer::Nginx, PAGE).await;
    streams_arrive(WebServer::Nginx, USUAL).await;
}

#[tokio::test]
async fn apache_passes_streams_on() {
    needs!(APACHE);
    streams_arrive(WebServer::Apache, PAGE).await;
}

/// Sends a request to the service's page through a proxy, as a browser does, and returns the head of the answer and the rest.
async fn browse(proxy: SocketAddr, token: &str, line: &str, form: &str) -> (String, String) {
    let request = format!(
        "{line} HTTP/1.1\r\nHost: localhost:7443\r\nOrigin: http://localhost:7443\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
        form.len()
    );
    let mut stream = TcpStream::connect(proxy).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    tokio::time::timeout(SOON, stream.read_to_string(&mut answer)).await.expect("an answer").unwrap();
    let (head, rest) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), rest.to_owned())
}

/// Returns the address that the page names after `before`, as a browser that is at `/locks/` resolves it.
fn linked(page: &str, before: &str) -> String {
    let link = page.split_once(before).expect(before).1.split_once('"').unwrap().0.replace("&amp;", "&");
    if link.starts_with('/') { link } else { format!("/locks/{}", link.trim_start_matches("./")) }
}

/// The page, its style and its forms work below the path of the proxy.
async fn the_page_works_below_a_path(proxy: WebServer) {
    let (engine, _service, proxy, access) = start(proxy, PAGE).await;
    let guard = engine.mutex("a").unwrap().lock().await.unwrap();
    let (_, page) = browse(proxy.address(), &access.token, "GET /locks/", "").await;
    for before in ["rel=\"stylesheet\" href=\"", "<script src=\""] {
        let (head, _) =
            browse(proxy.address(), &access.token, &format!("GET {}", linked(&page, before)), "").await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{before}: {head}");
    }
    let (_, question) = browse(
        proxy.address(),
        &access.token,
        &format!("GET /locks/evict?name=a&token={}", guard.token()),
        "",
    )
    .await;
    let form = linked(&question, "action=\"");
    let token = guard.token();
    let (head, _) = browse(
        proxy.address(),
        &access.token,
        &format!("POST {form}"),
        &format!("name=a&token={token}&reason=deploy"),
    )
    .await;
    assert!(head.starts_with("HTTP/1.1 303 "), "{form}: {head}");
    assert!(engine.inspect("a").await.unwrap().holders().next().is_none_or(|claim| claim.evicted));
    let next =
        head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("location: ").map(str::to_owned));
    let next = next.expect("an address");
    let next = if next.starts_with('/') { next } else { format!("/locks/{}", next.trim_start_matches("./")) };
    let (head, page) = browse(proxy.address(), &access.token, &format!("GET {next}"), "").await;
    assert!(head.starts_with("HTTP/1.1 200 ") && page.contains("<bdi>a</bdi></h1>"), "{next}: {head}");
}

#[tokio::test]
async fn the_page_works_below_a_path_of_nginx() {
    needs!(NGINX);
    the_page_works_below_a_path(WebServer::Nginx).await;
}

#[tokio::test]
async fn the_page_works_below_a_path_of_apache() {
    needs!(APACHE);
    the_page_works_below_a_path(WebServer::Apache).await;
}
