//! Other libraries: programs under benches/peers that `cargo xtask` has built and whose command lines it has left in a
//! folder. Without that folder there are no peers.

use super::observer::a_second;
use super::server::start;
use crate::crowd::Crowd;
use crate::figure::{self, Figure, Measured, median};
use crate::side;
use crate::warm::WARM;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

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

/// The names and files of all.
pub(crate) const NAMES: [(&str, &str); PEERS.len()] = {
    let (mut names, mut at) = ([("", ""); PEERS.len()], 0);
    while at < PEERS.len() {
        names[at] = (PEERS[at].name, PEERS[at].file);
        at += 1;
    }
    names
};

/// How long the program of a peer may run: it is under load for some seconds, and a waiter in it waits for 20 s at most.
const LIMIT: &str = "90";
/// A line that took longer drains but once, in seconds; else the first drain is thrown away.
const LONG: f64 = 3.0;
/// How often a cycle is measured beside ours.
const ROUNDS: usize = 9;
/// How often a line drains after that.
const DRAINS: usize = 2;

/// The program of a peer, if it is there, with a bound on its time.
pub(crate) fn program(file: &str, arguments: &[&str]) -> Option<Command> {
    bounded(file, arguments, LIMIT)
}

/// The same with another bound, in seconds.
pub(crate) fn bounded(file: &str, arguments: &[&str], limit: &str) -> Option<Command> {
    let folder = PathBuf::from(std::env::var_os("FENCEPOST_PEERS")?);
    let line = std::fs::read_to_string(folder.join(file).with_extension("command")).ok()?;
    let mut command = Command::new("timeout");
    // In the group of this program, so that it ends with it.
    command.args(["--foreground", "--kill-after=1", limit]).args(line.lines()).args(arguments);
    command.env("PEERS_NODE", folder.join("node"));
    Some(command)
}

/// The version of the library of a peer's program.
pub(crate) fn version(file: &str) -> Option<String> {
    let folder = PathBuf::from(std::env::var_os("FENCEPOST_PEERS")?);
    let version = std::fs::read_to_string(folder.join(file).with_extension("version")).ok()?;
    Some(version.trim().to_owned())
}

/// The figure of each peer that is there, not a number for one that gave none.
fn each(mut measure: impl FnMut(&Peer) -> Option<f64>) -> Vec<figure::Peer> {
    let there = PEERS.iter().filter(|peer| program(peer.file, &[]).is_some());
    there
        .map(|peer| figure::Peer { name: peer.name, value: measure(peer).unwrap_or(f64::NAN), ratio: None })
        .collect()
}

/// The same of a peer's.
fn asked(file: &str, arguments: &[&str], field: &str) -> Option<f64> {
    printed(program(file, arguments)?, field)
}

/// The field of what a program prints.
pub(crate) fn printed(mut program: Command, field: &str) -> Option<f64> {
    let output = program.output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let json: Option<serde_json::Value> = text.lines().rev().find_map(|line| serde_json::from_str(line).ok());
    json?.get(field)?.as_f64()
}

/// The p50 of our cycle in µs, in a process of its own as those of the peers are.
pub(crate) fn own_cycle(url: &str) -> Option<f64> {
    printed(side::program(&["redis-side-cycle", url]), "p50")
}

/// The p50 of a cycle in µs; of those that are close, in turns with ours, which is measured in a process of its own as well.
pub(super) fn cycle(url: &str) -> Vec<figure::Peer> {
    let mut ratios = Vec::new();
    let mut peers = each(|peer| {
        let theirs = || asked(peer.file, &["cycle", url, "1000"], "p50");
        let mut ratio = None;
        let value = if peer.alone {
            let rounds: Option<Vec<_>> = (0..ROUNDS).map(|_| Some((own_cycle(url)?, theirs()?))).collect();
            rounds.map(|rounds| {
                ratio = Some(median(rounds.iter().map(|(ours, theirs)| ours / theirs).collect()));
                median(rounds.into_iter().map(|(_, theirs)| theirs).collect())
            })
        } else {
            theirs()
        };
        ratios.push(ratio);
        value
    });
    peers.iter_mut().zip(ratios).for_each(|(peer, ratio)| peer.ratio = ratio);
    peers
}

/// The same of one peer over a quorum, whose nodes' URLs stand behind each other with commas; nothing if it is not there.
pub(super) fn quorum_cycle(file: &str, urls: &str) -> Option<f64> {
    asked(file, &["cycle", urls, "500"], "p50")
}

/// Cycles per second of so many tasks.
pub(super) fn tasks(url: &str, tasks: usize) -> Vec<figure::Peer> {
    each(|peer| asked(peer.file, &["tasks", url, &tasks.to_string(), "2"], "rate"))
}

/// Handoffs per second of a line that drains, in processes that are warm.
pub(super) fn drain(waiters: usize) -> Vec<figure::Peer> {
    each(|peer| {
        // A server of its own: what one peer leaves behind is no burden of the next.
        let server = start();
        let url = server.url();
        let command = || program(peer.file, &["drain", &url, peer.file]).expect("it was there just now");
        let mut crowd = Crowd::try_gather(waiters, command)?;
        crowd.try_load(WARM)?;
        let (mut handoffs, mut seconds) = drained(&mut crowd, waiters)?;
        if seconds > LONG {
            return Some(handoffs / seconds);
        }
        (handoffs, seconds) = (0.0, 0.0);
        for _ in 0..DRAINS {
            let (more, took) = drained(&mut crowd, waiters)?;
            handoffs += more;
            seconds += took;
        }
        Some(handoffs / seconds)
    })
}

/// How many were granted the lock while a line drained, and how many seconds that took.
fn drained(crowd: &mut Crowd, waiters: usize) -> Option<(f64, f64)> {
    let start = Instant::now();
    let drained = crowd.try_drain(a_second)?;
    let all = drained.waits.len() == waiters;
    // Where somebody has waited in vain, it took as long as that.
    let seconds = if all { drained.seconds() } else { start.elapsed().as_secs_f64() };
    Some((drained.handoffs(), seconds))
}

/// How many peers are ahead where they should not be; Redisson is ahead when fencepost is not five times as fast.
/// One that is there and gives no figure leaves everything unproved.
pub(super) fn ahead(figures: &[Figure]) -> Measured {
    let (mut ahead, mut silent, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    let mut compared = 0;
    for figure in figures.iter().filter(|figure| !figure.peers.is_empty()) {
        let waits = figure.figure.starts_with("handoffs");
        let mut row = format!("{} in {}: ours {:.0}", figure.figure, figure.unit, figure.ours);
        for named in &figure.peers {
            row.push_str(&format!(", {} {:.0}", named.name, named.value));
            if let Some(ratio) = named.ratio {
                row.push_str(&format!(" (ours {ratio:.2} ×)"));
            }
            let Some(peer) = PEERS.iter().find(|peer| peer.name == named.name) else { continue };
            if named.value.is_nan() {
                silent.push(format!("{} in {}", peer.name, figure.figure));
                continue;
            }
            let binding = waits || if figure.unit == "µs" { peer.alone } else { peer.many };
            if !binding {
                continue;
            }
            compared += 1;
            let factor = if waits && peer.file.starts_with("redisson") { 5.0 } else { 1.0 };
            let ratio = named.ratio.unwrap_or(figure.ours / named.value);
            let better = if figure.unit == "µs" { ratio < 1.0 } else { ratio > factor };
            if !better {
                ahead.push(format!("{} in {}", peer.name, figure.figure));
            }
        }
        rows.push(row);
    }
    let missing = PEERS.iter().filter(|peer| program(peer.file, &[]).is_none());
    let missing: Vec<String> = missing.map(|peer| peer.name.to_owned()).collect();
    // With no peer at all nothing is proved.
    let proved = compared > 0 && silent.is_empty();
    let mut note = format!("{compared} figures of peers compared");
    for (what, names) in [("ahead", &ahead), ("without a figure", &silent), ("not here", &missing)] {
        if !names.is_empty() {
            note.push_str(&format!("; {what}: {}", names.join(", ")));
        }
    }
    for row in rows {
        note.push_str(&format!("; {row}"));
    }
    Measured { figure: if proved { ahead.len() as f64 } else { f64::NAN }, note }
}
