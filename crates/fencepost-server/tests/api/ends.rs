//! The end of a stream that holds a lock: the next holder is granted after this one has stopped.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Request, header};
use fencepost_core::{Client, Eviction};
use fencepost_server::{Options, Streams};
use fencepost_testkit::needs;
use fencepost_testkit::server::TempDir;
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::kit::{Events, service};
use crate::network::{connect, listen_on, make_certificate, tls};

const SOON: Duration = Duration::from_secs(20);

async fn is_free(locks: &Client) -> bool {
    locks.inspect("a").await.unwrap().claims.is_empty()
}

/// Waits until the lock is free, and returns how long that takes.
async fn time_until_free(locks: &Client) -> Duration {
    let start = Instant::now();
    let look = async {
        while !is_free(locks).await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, look).await.expect("it is released");
    start.elapsed()
}

/// Returns the `stop_after_ms` of the last event in this text.
fn stop_after(text: &str) -> Option<Duration> {
    let data =
        text.lines().rev().find_map(|line| line.strip_prefix("data: ").filter(|data| data.ends_with('}')))?;
    let data: Value = serde_json::from_str(data).unwrap();
    data["stop_after_ms"].as_u64().map(Duration::from_millis)
}

/// Holds the lock by a connection. Returns it with the time after which its caller stops.
async fn hold(address: SocketAddr) -> (TcpStream, Duration) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let body = json!({ "name": "a", "ttl": "5s" }).to_string();
    let head = format!(
        "POST /v1/hold HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let (mut text, mut bytes) = (String::new(), [0; 1000]);
    loop {
        let count = tokio::time::timeout(SOON, stream.read(&mut bytes)).await.unwrap().unwrap();
        text.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
        if let Some(time) = stop_after(&text) {
            return (stream, time);
        }
    }
}

#[tokio::test]
async fn a_lost_lock_stays_until_its_holder_has_closed_the_stream() {
    let (router, locks) = service().await;
    for closes in [true, false] {
        let mut events = Events::hold(&router, "a", &json!({ "ttl": "3s" })).await;
        let granted = events.next_of("granted").await;
        let (token, lost) = (granted["token"].as_u64().unwrap(), Instant::now());
        locks.evict("a", token.into(), &Eviction::new(false)).await.unwrap();
        events.next_of("lost").await;
        assert!(!is_free(&locks).await, "its holder may still work");
        if closes {
            drop(events);
            time_until_free(&locks).await;
        } else {
            assert_eq!(events.next().await, None);
            assert!(lost.elapsed() > Duration::from_secs(1), "{:?}", lost.elapsed());
            time_until_free(&locks).await;
        }
    }
}

#[tokio::test]
async fn a_connection_that_fails_keeps_its_lock_until_its_holder_has_stopped() {
    let (_, locks) = service().await;
    let address = listen_on(&locks, Options::default());
    let (stream, stop_after) = hold(address).await;
    // The end of what the caller sends.
    drop(stream);
    let time = time_until_free(&locks).await;
    assert!(time < stop_after, "{time:?}");
    let (stream, stop_after) = hold(address).await;
    // A reset, as a firewall sends it: the caller may not know.
    stream.set_zero_linger().unwrap();
    drop(stream);
    let time = time_until_free(&locks).await;
    assert!(time > stop_after - Duration::from_millis(200), "{time:?} of {stop_after:?}");
}

#[tokio::test]
async fn a_stream_of_http2_that_is_reset_releases_its_lock() {
    needs!(OPENSSL);
    let (dir, (_, locks)) = (TempDir::new("tls").unwrap(), service().await);
    make_certificate(dir.path());
    let address = listen_on(&locks, tls(dir.path(), None));
    let stream = connect(address, dir.path(), None, b"h2").await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post("https://localhost/v1/hold");
    let request = request.header(header::CONTENT_TYPE, "application/json");
    let body = Body::from(json!({ "name": "a", "ttl": "5s" }).to_string());
    let mut response = sender.send_request(request.body(body).unwrap()).await.unwrap();
    let mut text = String::new();
    let stop_after = loop {
        let frame = response.frame().await.unwrap().unwrap();
        text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
        if let Some(time) = stop_after(&text) {
            break time;
        }
    };
    // The connection stays open.
    drop(response);
    let time = time_until_free(&locks).await;
    assert!(time < stop_after, "{time:?}");
}

#[tokio::test]
async fn the_end_of_the_service_tells_holders_and_waits_for_them() {
    let (_, locks) = service().await;
    let streams = Streams::default();
    let options = Options { streams: streams.clone(), ..Options::default() };
    let router = fencepost_server::router(locks.clone(), &options).unwrap();
    let mut events = Events::hold(&router, "a", &json!({})).await;
    events.next_of("granted").await;
    let mut queued = Events::hold(&router, "a", &json!({ "wait": "1m" })).await;
    queued.next().await.unwrap();
    let ends = tokio::spawn(async move { streams.end().await });
    assert!(events.next_of("lost").await["why"].as_str().unwrap().contains("ends"));
    assert_eq!(queued.next_of("refused").await["code"], "closing");
    assert_eq!(queued.next().await, None);
    assert!(!ends.is_finished() && !is_free(&locks).await, "its holder may still work");
    drop(events);
    tokio::time::timeout(Duration::from_secs(5), ends).await.expect("it ends with the last stream").unwrap();
    time_until_free(&locks).await;
}
