//! The service behind real proxies, with the lines of docs/backends/http.md: the name of a lock stays as it is, and streams arrive.

mod service;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fencepost_core::{Client, Eviction, Page, Registry};
use fencepost_testkit::needs;
use fencepost_testkit::server::{Server, WebServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use service::Service;

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

/// Starts a service for an engine in memory, and the proxy before it.
async fn start(proxy: WebServer, page: &str) -> (Client, Service, Server) {
    let engine = Client::builder().connect(&Registry::new(), "memory:").await.unwrap();
    let service = Service::in_front_of(engine.clone());
    let proxy = proxy.before(service.address(), page).unwrap();
    (engine, service, proxy)
}

async fn names_stay(proxy: WebServer, page: &str) {
    let (engine, _service, proxy) = start(proxy, page).await;
    let registry = fencepost_http::register(Registry::new());
    let url = format!("http://{}/locks", proxy.address());
    let locks = Client::builder().connect(&registry, &url).await.unwrap();
    for name in NAMES {
        let guard = locks.mutex(name).unwrap().lock().await.unwrap();
        let held = engine.list("", &Page::default()).await.unwrap().resources;
        let held: Vec<_> = held.iter().map(|info| info.name.as_str()).collect();
        // The other one is the record of the request's key.
        assert!(held.len() == 2 && held.contains(&name), "{name}: {held:?}");
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

/// Returns when the events of a stream that holds the lock `a` arrive: `waiting`, `granted` and `held`.
async fn arrivals(address: SocketAddr) -> [Duration; 3] {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let body = "{\"name\":\"a\"}";
    let head = format!(
        "POST /locks/v1/hold HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let (sent, mut text, mut bytes) = (Instant::now(), String::new(), [0; 1000]);
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut times = [Duration::ZERO; 3];
    for (time, event) in times.iter_mut().zip(["waiting", "granted", "held"]) {
        while !text.contains(&format!("event: {event}\n")) {
            let count = stream.read(&mut bytes).await.unwrap();
            assert!(count > 0, "{text}");
            text.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
        }
        *time = sent.elapsed();
    }
    times
}

async fn streams_arrive(proxy: WebServer, page: &str) {
    let (_engine, _service, proxy) = start(proxy, page).await;
    let times = tokio::time::timeout(Duration::from_secs(20), arrivals(proxy.address()));
    let [waiting, granted, held] = times.await.expect("the proxy passes events on");
    println!("after {waiting:?}, {granted:?} and {held:?}");
    // An event of a lock that is held comes every 3 s.
    assert!(granted < Duration::from_secs(2) && held > granted, "{granted:?} {held:?}");
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
