//! Random requests and bodies that are cut off: the service neither panics nor grows.

use super::Copy;
use super::caller::Caller;
use crate::client::runtime;
use crate::command::Place;
use crate::figure::Measured;
use crate::usage::resident_of;
use fencepost_testkit::sim::Rng;
use serde_json::{Value, json};
use std::fs::File;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

/// Callers at the same time.
const CALLERS: usize = 32;
/// The requests of a connection that are sound, before the one that is not.
const SOUND: usize = 4;
/// How much memory the allocator may have kept, in bytes.
const ROOM: u64 = 8 << 20;
/// The longest time for an answer to a request that is not sound.
const TIME: Duration = Duration::from_secs(15);

/// Counts panics, answers with status 500, and 1 for memory that grows.
pub(crate) fn requests(count: usize) -> Measured {
    let place = Place::new("garbled");
    let errors = place.file("errors");
    let file = File::create(&errors).expect("a file for the errors");
    let service = Copy::listen("memory:", ([127, 0, 0, 1], 0).into(), file.into());
    // The first tenth makes the locks, the buffers and the threads that stay.
    let faults = send(service.address, count / 10, 0);
    let before = resident_of(service.pid());
    let faults = faults + send(service.address, count - count / 10, 1);
    let after = resident_of(service.pid());
    let grown = usize::from(after > before + ROOM);
    let text = std::fs::read_to_string(&errors).unwrap_or_default();
    let panics = text.matches("panicked").count();
    let [before, after] = [before, after].map(|bytes| bytes as f64 / f64::from(1 << 20));
    let note = format!(
        "{count} requests, one in {} cut off or garbled; {panics} panics, {faults} answers with status 500; memory {before:.1} MiB \
         after a tenth, {after:.1} MiB at the end",
        SOUND + 1
    );
    Measured { figure: (panics + faults + grown) as f64, note }
}

/// Sends requests, and counts the answers with status 500.
fn send(to: SocketAddr, count: usize, seed: u64) -> usize {
    runtime().block_on(async {
        let mut callers = JoinSet::new();
        for number in 0..CALLERS {
            let rng = Rng::new(seed * 1_000 + number as u64);
            callers.spawn(caller(to, rng, count / CALLERS));
        }
        callers.join_all().await.into_iter().sum()
    })
}

async fn caller(to: SocketAddr, mut rng: Rng, count: usize) -> usize {
    let (mut sent, mut faults) = (0, 0);
    while sent < count {
        let mut caller = Caller::connect(to).await;
        for _ in 0..SOUND {
            let (path, body) = (path(&mut rng), body(&mut rng).to_string());
            let (status, _) = caller.ask(&path, &body).await;
            faults += usize::from(status == 500);
        }
        // No port waits for the end of this connection.
        caller.stream.set_zero_linger().expect("a socket");
        let mut bytes = request(&mut rng);
        match rng.below(2) {
            0 => bytes.truncate(rng.below(bytes.len() as u64) as usize),
            _ => {
                for _ in 0..=rng.below(8) {
                    let at = rng.below(bytes.len() as u64) as usize;
                    bytes[at] ^= 1 + rng.below(255) as u8;
                }
            }
        }
        // The service may close the connection before it has read all.
        let _ = caller.stream.write_all(&bytes).await;
        if rng.chance(100) {
            let _ = caller.stream.shutdown().await;
            let _ = tokio::time::timeout(TIME, caller.answer()).await;
        }
        sent += SOUND + 1;
    }
    faults
}

/// A whole request, with headers that may be odd.
fn request(rng: &mut Rng) -> Vec<u8> {
    let (path, body) = (path(rng), body(rng).to_string());
    let mut head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n");
    for _ in 0..rng.below(4) {
        let name = pick(
            rng,
            &["Idempotency-Key", "Prefer", "Authorization", "Origin", "X-A", "Expect", "traceparent"],
        );
        head.push_str(&format!("{name}: {}\r\n", word(rng)));
    }
    head.push_str(&match rng.below(4) {
        0 => "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"a\":\r\n".to_owned(),
        1 => format!("Content-Length: {}\r\n\r\n", rng.below(40_000)),
        _ => format!("Content-Length: {}\r\n\r\n", body.len()),
    });
    [head.into_bytes(), body.into_bytes()].concat()
}

fn path(rng: &mut Rng) -> String {
    let paths = [
        "/v1/acquire".to_owned(),
        "/v1/withdraw".to_owned(),
        "/v1/evict".to_owned(),
        "/v1/leases/extend".to_owned(),
        "/v1/leases/release".to_owned(),
        "/v1/leases/show".to_owned(),
        format!("/v1/{}", word(rng)),
        format!("/{}?{}", word(rng), word(rng)),
    ];
    pick(rng, &paths).clone()
}

/// An object with fields of the API, most of them of the right type. Nothing waits, and nothing stays for long.
fn body(rng: &mut Rng) -> Value {
    let mut body = json!({});
    for _ in 0..rng.below(6) {
        let field = *pick(
            rng,
            &["mode", "permits", "take", "holder", "reason", "process", "unfair", "lease", "token", "now"],
        );
        body[field] = match (field, rng.below(4)) {
            ("mode", 0..=2) => (*pick(rng, &["exclusive", "shared", "permits"])).into(),
            ("permits" | "take" | "token", 0..=2) => rng.below(5).into(),
            ("unfair" | "now", 0..=2) => rng.chance(500).into(),
            ("process", 0..=2) => json!({ "host": word(rng), "pid": rng.below(1 << 33) }),
            ("lease", 0..=2) => format!("fencepost1-{}", "0f".repeat(rng.below(60) as usize)).into(),
            _ => value(rng),
        };
    }
    body["name"] = if rng.chance(900) { rng.below(50).to_string() } else { word(rng) }.into();
    body["ttl"] = "1s".into();
    body
}

fn value(rng: &mut Rng) -> Value {
    match rng.below(6) {
        0 => Value::Null,
        1 => rng.draw().into(),
        2 => (-1.5e300).into(),
        3 => json!([[{ "a": word(rng) }]]),
        4 => "x".repeat(rng.below(3_000) as usize).into(),
        _ => word(rng).into(),
    }
}

fn word(rng: &mut Rng) -> String {
    let letters = ["a", "/", "%2F", "%00", "%ff", "..", "#", "ü", "😀", "'", "\\", "~", "Bearer%20", "0"];
    (0..=rng.below(12)).map(|_| *pick(rng, &letters)).collect()
}

fn pick<'a, T>(rng: &mut Rng, all: &'a [T]) -> &'a T {
    &all[rng.below(all.len() as u64) as usize]
}
