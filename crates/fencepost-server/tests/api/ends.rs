//! The end of a stream that holds a lock: the next holder is granted after this one has stopped.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::http::{Request, StatusCode, header};
use fencepost_core::{Client, Eviction};
use fencepost_server::{Options, Streams};
use fencepost_testkit::needs;
use fencepost_testkit::server::TempDir;
use fencepost_testkit::wait::eventually;
use h2::RecvStream;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::kit::{Events, acquire, answer, lease, pause, post, service};
use crate::network::{connect, listen_on, make_certificate, tls};

const SOON: Duration = Duration::from_secs(20);
/// How long a lock with a long lease stays after the end of its stream.
const STOPS: Duration = Duration::from_secs(10);

async fn is_free(locks: &Client) -> bool {
    locks.inspect("a").await.unwrap().claims.is_empty()
}

/// Waits until the lock is free, and returns how long that takes.
async fn time_until_free(locks: &Client) -> Duration {
    let start = Instant::now();
    let look = async {
        while !is_free(locks).await {
            pause().await;
        }
    };
    tokio::time::timeout(SOON, look).await.expect("it is released");
    start.elapsed()
}

/// Returns the `valid_ms` of the last event in this text. The lock was granted at once.
fn stop_after(text: &str) -> Option<Duration> {
    let data =
        text.lines().rev().find_map(|line| line.strip_prefix("data: ").filter(|data| data.ends_with('}')))?;
    let data: Value = serde_json::from_str(data).unwrap();
    data["valid_ms"].as_u64().map(Duration::from_millis)
}

/// The lease of a lock that is expected to be free at once, or after its caller has stopped.
fn ttl(is_free_at_once: bool) -> &'static str {
    // A long one, so that a busy machine frees the lock before its caller would have stopped.
    if is_free_at_once { "60s" } else { "5s" }
}

/// When a caller has asked for the lock, and the time after which it stops.
#[derive(Clone, Copy)]
struct Asked {
    sent: Instant,
    stop_after: Duration,
}

/// Holds the lock by a connection. Returns it with the times of its caller.
async fn hold<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, ttl: &str) -> (S, Asked) {
    let sent = Instant::now();
    let body = json!({ "name": "a", "ttl": ttl }).to_string();
    let head = format!(
        "POST /v1/hold HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let (mut text, mut bytes) = (String::new(), [0; 1000]);
    loop {
        let count = tokio::time::timeout(SOON, stream.read(&mut bytes)).await.unwrap().unwrap();
        text.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
        if let Some(stop_after) = stop_after(&text) {
            return (stream, Asked { sent, stop_after });
        }
    }
}

#[tokio::test]
async fn a_lost_lock_stays_until_its_holder_has_stopped_or_released_it() {
    let (router, locks) = service().await;
    for releases in [true, false] {
        let ttl = if releases { "60s" } else { "3s" };
        let mut events = Events::hold(&router, "a", &json!({ "ttl": ttl })).await;
        let granted = events.next_of("granted").await;
        let (token, lost) = (granted["token"].as_u64().unwrap(), Instant::now());
        locks.evict("a", token.into(), &Eviction::new(false)).await.unwrap();
        events.next_of("lost").await;
        let is_held = !is_free(&locks).await;
        assert!(is_held || lost.elapsed() > Duration::from_secs(1), "its holder may still work");
        if releases {
            // It was lost, so its holder is told so.
            assert_eq!(release(&router, &granted).await, StatusCode::GONE);
            let time = time_until_free(&locks).await;
            assert!(time < STOPS / 2, "{time:?}");
        } else {
            assert_eq!(events.next().await, None);
            assert!(lost.elapsed() > Duration::from_secs(1), "{:?}", lost.elapsed());
            time_until_free(&locks).await;
        }
    }
}

/// Releases the lease of this event.
async fn release(router: &Router, granted: &Value) -> StatusCode {
    answer(router, post("/v1/leases/release", &lease(granted))).await.0
}

#[tokio::test]
async fn a_stream_is_ended_by_its_lease() {
    let (router, locks) = service().await;
    let other_copy = fencepost_server::router(locks.clone(), &Options::default()).unwrap();
    for (copy, ends_before) in [(&router, false), (&router, true), (&other_copy, false), (&other_copy, true)]
    {
        // The stream of another copy learns of the release when its lock is renewed.
        let learns_late = !ends_before && !std::ptr::eq(copy, &router);
        let ttl = if learns_late { "6s" } else { "60s" };
        let mut events = Events::hold(&router, "a", &json!({ "ttl": ttl })).await;
        let granted = events.next_of("granted").await;
        for request in ["extend", "show"] {
            let (status, problem) =
                answer(&router, post(&format!("/v1/leases/{request}"), &lease(&granted))).await;
            assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("invalid")));
            assert!(!problem.to_string().contains("fencepost1-"), "{problem}");
        }
        let events = if ends_before {
            drop(events);
            None
        } else {
            Some(events)
        };
        assert!(!is_free(&locks).await);
        let start = Instant::now();
        assert_eq!(release(copy, &granted).await, StatusCode::NO_CONTENT);
        assert!(is_free(&locks).await && (learns_late || start.elapsed() < STOPS / 2));
        assert_eq!(release(copy, &granted).await, StatusCode::GONE);
        if let Some(mut events) = events {
            let lost = events.next_of("lost").await;
            assert!(!std::ptr::eq(copy, &router) || lost["loss"] == "released", "{lost}");
            assert_eq!(events.next().await, None);
        }
    }
}

/// A caller that gives up in the moment of the grant has not read the event with the grant.
#[tokio::test]
async fn a_stream_that_waits_has_told_the_lease_that_ends_it() {
    let (router, locks) = service().await;
    let other_copy = fencepost_server::router(locks.clone(), &Options::default()).unwrap();
    for copy in [&router, &other_copy] {
        let (_, before) = acquire(&router, "a", &json!({})).await;
        let mut events = Events::hold(&router, "a", &json!({ "wait": "30s" })).await;
        let waiting = events.next_of("waiting").await;
        assert_eq!(release(copy, &waiting).await, StatusCode::GONE, "it holds nothing");
        assert_eq!(release(&router, &before).await, StatusCode::NO_CONTENT);
        let is_granted = async || locks.inspect("a").await.unwrap().holders().any(|holder| !holder.detached);
        eventually(SOON, "it is granted", is_granted).await;
        drop(events);
        assert!(!is_free(&locks).await, "its holder may work");
        let start = Instant::now();
        assert_eq!(release(copy, &waiting).await, StatusCode::NO_CONTENT);
        assert!(is_free(&locks).await && start.elapsed() < STOPS / 2);
        assert_eq!(release(copy, &waiting).await, StatusCode::GONE);
    }
}

/// Checks how long the lock of a stream that has ended stays.
async fn check_end(locks: &Client, asked: Asked, is_free_at_once: bool) {
    let time = time_until_free(locks).await;
    let Asked { sent, stop_after } = asked;
    match is_free_at_once {
        true => assert!(time < STOPS / 2, "{time:?} of {stop_after:?}"),
        // Its caller counts from the moment at which it sent the request.
        false => assert!(sent.elapsed() >= stop_after, "{:?} of {stop_after:?}", sent.elapsed()),
    }
}

/// `proxy`: the caller's connection comes from a proxy of this address.
async fn connections_that_fail(is_direct: bool, proxy: Option<&str>) {
    let (_, locks) = service().await;
    let proxies = proxy.into_iter().map(|proxy| proxy.parse().unwrap()).collect();
    let address = listen_on(&locks, Options { is_direct, proxies, ..Options::default() });
    let is_direct = is_direct && proxy.is_none_or(|proxy| proxy != "127.0.0.1");
    let connect = || async { TcpStream::connect(address).await.unwrap() };
    let (stream, asked) = hold(connect().await, ttl(is_direct)).await;
    // The end of what the caller sends, or of what a proxy sends in its place.
    drop(stream);
    check_end(&locks, asked, is_direct).await;
    let (stream, asked) = hold(connect().await, ttl(false)).await;
    // A reset, as a firewall sends it: the caller may not know.
    stream.set_zero_linger().unwrap();
    drop(stream);
    check_end(&locks, asked, false).await;
}

#[tokio::test]
async fn a_connection_that_fails_keeps_its_lock_until_its_holder_has_stopped() {
    tokio::join!(
        connections_that_fail(false, None),
        connections_that_fail(true, None),
        connections_that_fail(true, Some("10.0.0.0/8")),
        connections_that_fail(true, Some("127.0.0.1"))
    );
}

async fn encrypted_connections_that_their_callers_end(is_direct: bool) {
    let (dir, (_, locks)) = (TempDir::new("tls").unwrap(), service().await);
    make_certificate(dir.path());
    let address = listen_on(&locks, Options { is_direct, ..tls(dir.path(), None) });
    for in_order in [false, true] {
        let connection = connect(address, dir.path(), None, b"http/1.1").await.unwrap();
        let (mut stream, asked) = hold(connection, ttl(is_direct)).await;
        if in_order {
            stream.shutdown().await.unwrap();
        } else {
            // As when the process is killed: the connection ends, and TLS does not.
            drop(stream.into_inner().0);
        }
        check_end(&locks, asked, is_direct).await;
    }
}

#[tokio::test]
async fn an_encrypted_connection_that_its_caller_ends_releases_its_lock_where_no_proxy_is() {
    needs!(OPENSSL);
    let ends = encrypted_connections_that_their_callers_end;
    tokio::join!(ends(false), ends(true));
}

/// A connection of HTTP/2 that holds the lock.
struct Http2 {
    response: RecvStream,
    asked: Asked,
    /// Sends these bytes between the frames of the client.
    raw: mpsc::UnboundedSender<Vec<u8>>,
    /// Pass on what both sides send.
    pumps: [JoinHandle<()>; 2],
    /// Sends requests. Without it the connection ends.
    _requests: h2::client::SendRequest<Bytes>,
}

impl Http2 {
    async fn hold(address: SocketAddr, dir: &Path, ttl: &str) -> Http2 {
        let sent = Instant::now();
        let (from_server, mut to_server) =
            tokio::io::split(connect(address, dir, None, b"h2").await.unwrap());
        let (own, far) = tokio::io::duplex(64 * 1024);
        let (mut from_client, to_client) = tokio::io::split(far);
        let (raw, mut to_send) = mpsc::unbounded_channel::<Vec<u8>>();
        let from = tokio::spawn(async move {
            let (mut from_server, mut to_client) = (from_server, to_client);
            let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
            let _ = to_client.shutdown().await;
        });
        let to = tokio::spawn(async move {
            let mut buffer = vec![0; 16 * 1024];
            loop {
                let written = tokio::select! {
                    read = from_client.read(&mut buffer) => match read {
                        Ok(count @ 1..) => to_server.write_all(&buffer[..count]).await,
                        _ => break,
                    },
                    Some(bytes) = to_send.recv() => to_server.write_all(&bytes).await,
                };
                if written.and(to_server.flush().await).is_err() {
                    break;
                }
            }
            let _ = to_server.shutdown().await;
        });
        let (mut requests, connection) = h2::client::handshake(own).await.unwrap();
        tokio::spawn(connection);
        let request = Request::post("https://localhost/v1/hold");
        let request = request.header(header::CONTENT_TYPE, "application/json").body(()).unwrap();
        let (response, mut body) = requests.send_request(request, false).unwrap();
        body.send_data(json!({ "name": "a", "ttl": ttl }).to_string().into(), true).unwrap();
        let mut response = response.await.unwrap().into_body();
        let mut text = String::new();
        let stop_after = loop {
            let data = response.data().await.unwrap().unwrap();
            text.push_str(std::str::from_utf8(&data).unwrap());
            if let Some(time) = stop_after(&text) {
                break time;
            }
        };
        let asked = Asked { sent, stop_after };
        Http2 { response, asked, raw, pumps: [from, to], _requests: requests }
    }

    /// Sends bytes that make the service end the connection, and returns when it has.
    async fn break_by(&mut self, bytes: Vec<u8>) {
        self.raw.send(bytes).unwrap();
        let error = tokio::time::timeout(SOON, async {
            loop {
                if let Err(error) = self.response.data().await.expect("an error") {
                    return error;
                }
            }
        });
        let error = error.await.expect("the service ends the connection");
        assert!(!error.is_reset(), "{error:?}");
    }
}

/// Makes a frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Makes requests that are begun and cancelled at once.
fn cancelled_requests(count: u32) -> Vec<u8> {
    // POST https://localhost/, by the numbers of HPACK's table.
    let head = [&[0x83, 0x87, 0x84, 0x01, 9], "localhost".as_bytes()].concat();
    let frames = (0..count).flat_map(|number| {
        let stream = 101 + 2 * number;
        [frame(1, 4, stream, &head), frame(3, 0, stream, &8_u32.to_be_bytes())].concat()
    });
    frames.collect()
}

/// A change of the flow control by nothing, which breaks a rule.
fn broken_frame() -> Vec<u8> {
    frame(8, 0, 0, &[0; 4])
}

async fn service_ends_the_connection(is_direct: bool, bytes: Vec<u8>) {
    let (dir, (_, locks)) = (TempDir::new("tls").unwrap(), service().await);
    make_certificate(dir.path());
    let address = listen_on(&locks, Options { is_direct, ..tls(dir.path(), None) });
    let mut http2 = Http2::hold(address, dir.path(), ttl(false)).await;
    http2.break_by(bytes).await;
    check_end(&locks, http2.asked, false).await;
}

#[tokio::test]
async fn a_connection_that_the_service_ends_for_its_resets_keeps_its_lock() {
    needs!(OPENSSL);
    let ends = |is_direct| service_ends_the_connection(is_direct, cancelled_requests(40));
    tokio::join!(ends(false), ends(true));
}

#[tokio::test]
async fn a_connection_that_the_service_ends_for_a_broken_frame_keeps_its_lock() {
    needs!(OPENSSL);
    let ends = |is_direct| service_ends_the_connection(is_direct, broken_frame());
    tokio::join!(ends(false), ends(true));
}

async fn stream_of_http2_that_its_caller_ends(is_direct: bool) {
    let (dir, (_, locks)) = (TempDir::new("tls").unwrap(), service().await);
    make_certificate(dir.path());
    let address = listen_on(&locks, Options { is_direct, ..tls(dir.path(), None) });
    let Http2 { response, asked, _requests, raw: _raw, pumps: _pumps } =
        Http2::hold(address, dir.path(), ttl(false)).await;
    // A reset, while the connection stays open. The service may have reset the stream as well.
    drop(response);
    check_end(&locks, asked, false).await;
    let http2 = Http2::hold(address, dir.path(), ttl(is_direct)).await;
    // The end of the connection alone, as when the process is killed.
    http2.pumps.iter().for_each(JoinHandle::abort);
    check_end(&locks, http2.asked, is_direct).await;
}

#[tokio::test]
async fn a_connection_of_http2_that_its_caller_ends_releases_its_lock_where_no_proxy_is() {
    needs!(OPENSSL);
    tokio::join!(stream_of_http2_that_its_caller_ends(false), stream_of_http2_that_its_caller_ends(true));
}

#[tokio::test]
async fn the_end_of_the_service_tells_holders_and_waits_for_them() {
    let (_, locks) = service().await;
    let streams = Streams::default();
    let options = Options { streams: streams.clone(), ..Options::default() };
    let router = fencepost_server::router(locks.clone(), &options).unwrap();
    let mut events = Events::hold(&router, "a", &json!({})).await;
    let granted = events.next_of("granted").await;
    let mut queued = Events::hold(&router, "a", &json!({ "wait": "1m" })).await;
    queued.next().await.unwrap();
    let ends = tokio::spawn(async move { streams.end().await });
    assert!(events.next_of("lost").await["detail"].as_str().unwrap().contains("ends"));
    assert_eq!(queued.next_of("refused").await["code"], "closing");
    assert_eq!(queued.next().await, None);
    assert!(!ends.is_finished() && !is_free(&locks).await, "its holder may still work");
    assert_eq!(release(&router, &granted).await, StatusCode::NO_CONTENT);
    tokio::time::timeout(SOON, ends).await.expect("it ends with the last stream").unwrap();
    time_until_free(&locks).await;
}
