//! Other libraries: programs under benches/peers that `cargo xtask` has built and whose command lines it has left in a
//! folder. Without that folder there are no peers.

use super::crowd::{Crowd, a_second};
use super::server::url;
use crate::figure::{Figure, Measured, Named};
use fencepost_testkit::redis::Redis;
use std::path::PathBuf;
use std::process::Command;

/// A library, and where fencepost is to be ahead of it.
struct Peer {
    /// As the tables show it.
    name: &'static str,
    /// The file with its command line.
    file: &'static str,
    /// With one task as well; else with many and wherever anybody waits.
    alone: bool,
    /// With 64 tasks as well; else wherever anybody waits.
    many: bool,
}

const PEERS: [Peer; 9] = [
    Peer { name: "rslock", file: "rslock", alone: false, many: false },
    Peer { name: "redsync", file: "redsync", alone: false, many: true },
    Peer { name: "Redisson", file: "redisson", alone: false, many: true },
    Peer { name: "Redisson's fair lock", file: "redisson-fair", alone: false, many: true },
    Peer { name: "distributed-lock", file: "distributed-lock", alone: true, many: true },
    Peer { name: "redlock for Rust", file: "redlock", alone: true, many: true },
    Peer { name: "redis-py", file: "redis-py", alone: true, many: true },
    Peer { name: "python-redis-lock", file: "python-redis-lock", alone: true, many: true },
    Peer { name: "redlock for Node.js", file: "node-redlock", alone: true, many: true },
];

/// The program of a peer, if it is there, with a bound on its time.
fn program(file: &str, arguments: &[&str]) -> Option<Command> {
    let folder = PathBuf::from(std::env::var_os("FENCEPOST_PEERS")?);
    let line = std::fs::read_to_string(folder.join(file).with_extension("command")).ok()?;
    let mut command = Command::new("timeout");
    // In the group of this program, so that it ends with it.
    command.args(["--foreground", "--kill-after=1", "240"]).args(line.lines()).args(arguments);
    command.env("PEERS_NODE", folder.join("node"));
    Some(command)
}

/// The field of what it prints, from each peer that is there and `wanted`.
fn asked(arguments: &[&str], field: &str, wanted: impl Fn(&Peer) -> bool) -> Vec<Named> {
    let ask = |peer: &Peer| {
        let output = program(peer.file, arguments)?.output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let json: Option<serde_json::Value> =
            text.lines().rev().find_map(|line| serde_json::from_str(line).ok());
        let value = json.and_then(|json| json.get(field)?.as_f64());
        if value.is_none() {
            eprintln!("fencepost-bench: {} gave no figure", peer.name);
        }
        Some(Named { name: peer.name, value: value? })
    };
    PEERS.iter().filter(|peer| wanted(peer)).filter_map(ask).collect()
}

/// The p50 of a cycle in µs.
pub(super) fn cycle(url: &str) -> Vec<Named> {
    asked(&["cycle", url, "1000"], "p50", |_| true)
}

/// The same of one peer over a quorum, whose nodes' URLs stand behind each other with commas; nothing if it is not there.
pub(super) fn quorum_cycle(file: &str, urls: &str) -> Option<f64> {
    asked(&["cycle", urls, "500"], "p50", |peer| peer.file == file).pop().map(|named| named.value)
}

/// Cycles per second of so many tasks.
pub(super) fn tasks(url: &str, tasks: usize) -> Vec<Named> {
    asked(&["tasks", url, &tasks.to_string(), "2"], "rate", |_| true)
}

/// Handoffs per second of a line that drains.
pub(super) fn drain(server: &Redis, waiters: usize) -> Vec<Named> {
    let ask = |peer: &Peer| {
        let url = url(server);
        let arguments = ["drain", &url, peer.file];
        program(peer.file, &arguments)?;
        let mut crowd =
            Crowd::try_gather(waiters, || program(peer.file, &arguments).expect("it was there just now"))?;
        let drained = crowd.try_drain(a_second);
        if drained.as_ref().is_none_or(|drained| drained.waits.len() < waiters) {
            let granted = drained.as_ref().map_or(0, |drained| drained.waits.len());
            eprintln!("fencepost-bench: {} granted {granted} of {waiters} waiters", peer.name);
        }
        let drained = drained.filter(|drained| !drained.waits.is_empty())?;
        Some(Named { name: peer.name, value: drained.handoffs() / drained.seconds() })
    };
    PEERS.iter().filter_map(ask).collect()
}

/// How many peers are ahead where they should not be; Redisson is ahead when fencepost is not five times as fast.
pub(super) fn ahead(figures: &[Figure]) -> Measured {
    let (mut ahead, mut compared) = (Vec::new(), 0);
    for figure in figures {
        let waits = figure.figure.starts_with("handoffs");
        for named in &figure.peers {
            let Some(peer) = PEERS.iter().find(|peer| peer.name == named.name) else { continue };
            let binding = waits || if figure.unit == "µs" { peer.alone } else { peer.many };
            if !binding {
                continue;
            }
            compared += 1;
            let factor = if waits && peer.file.starts_with("redisson") { 5.0 } else { 1.0 };
            let better = match figure.unit {
                "µs" => figure.ours < named.value,
                _ => figure.ours > named.value * factor,
            };
            if !better {
                ahead.push(format!(
                    "{} in {}: {:.1}, ours {:.1}",
                    peer.name, figure.figure, named.value, figure.ours
                ));
            }
        }
    }
    // With no peer at all nothing is proved.
    let figure = if compared == 0 { f64::NAN } else { ahead.len() as f64 };
    let first = if ahead.is_empty() { String::new() } else { format!("; ahead: {}", ahead.join("; ")) };
    Measured { figure, note: format!("{compared} figures of peers compared{first}") }
}
