//! Other libraries: programs under benches/peers that `cargo xtask` has built and whose command lines it has left in a
//! folder. Without that folder there are no peers.

use crate::crowd::Crowd;
use crate::figure::{self, Figure, Measured, median};
use crate::handoff::Line;
use crate::side;
use crate::warm::WARM;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

/// A library, and where fencepost is to be ahead of it.
pub(crate) struct Peer {
    /// As the tables show it.
    pub(crate) name: &'static str,
    /// The file with its command line.
    pub(crate) file: &'static str,
    /// With one task as well; else with many and wherever anybody waits.
    pub(crate) alone: bool,
    /// With 64 tasks as well; else wherever anybody waits.
    pub(crate) many: bool,
    /// Where anybody waits, so many times as fast.
    pub(crate) factor: f64,
}

/// How long the program of a peer may run: it is under load for some seconds, and a waiter in it waits for 20 s at most.
const LIMIT: &str = "90";
/// A line that took longer drains but once, in seconds; else the first drain is thrown away.
const LONG: f64 = 3.0;
/// Cycles that the program of a peer measures, and how often, where it takes turns with ours.
const CYCLES: &str = "1000";
const ROUNDS: usize = 9;
/// How often a line drains after the first drain.
const DRAINS: usize = 2;

impl Peer {
    /// Whether its program is there.
    pub(crate) fn is_there(&self) -> bool {
        program(self.file, &[]).is_some()
    }
}

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

/// The figure of each peer that is there, not a number for one that gave none. Each has a server of its own: what one leaves behind is
/// no burden of the next.
fn each<L: Line>(mut measure: impl FnMut(&Peer, &L) -> Option<(f64, Option<f64>)>) -> Vec<figure::Peer> {
    let there = L::PEERS.iter().filter(|peer| peer.is_there());
    there
        .map(|peer| {
            let (value, ratio) = measure(peer, &L::start()).unwrap_or((f64::NAN, None));
            figure::Peer { name: peer.name, value, ratio }
        })
        .collect()
}

/// The field of what the program of a peer prints.
pub(crate) fn asked(file: &str, arguments: &[&str], field: &str) -> Option<f64> {
    printed(program(file, arguments)?, field)
}

fn printed(mut program: Command, field: &str) -> Option<f64> {
    let output = program.output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let json: Option<serde_json::Value> = text.lines().rev().find_map(|line| serde_json::from_str(line).ok());
    json?.get(field)?.as_f64()
}

/// The p50 of our cycle in µs, in a process of its own as those of the peers are.
pub(crate) fn own_cycle(url: &str) -> Option<f64> {
    printed(side::program(&["side-cycle", url]), "p50")
}

/// The p50 of a cycle in µs; of those that are close, in turns with ours, which is measured in a process of its own as well.
pub(crate) fn cycle<L: Line>() -> Vec<figure::Peer> {
    each(|peer, line: &L| {
        let theirs = || asked(peer.file, &["cycle", &line.peer_url(), CYCLES], "p50");
        if !peer.alone {
            return Some((theirs()?, None));
        }
        let round = |_| Some((own_cycle(&line.client_url())?, theirs()?));
        let rounds = (0..ROUNDS).map(round).collect::<Option<Vec<_>>>()?;
        let ratio = median(rounds.iter().map(|(ours, theirs)| ours / theirs).collect());
        Some((median(rounds.into_iter().map(|(_, theirs)| theirs).collect()), Some(ratio)))
    })
}

/// Cycles per second of so many tasks.
pub(crate) fn tasks<L: Line>(tasks: usize) -> Vec<figure::Peer> {
    let tasks = &tasks.to_string();
    each(|peer, line: &L| Some((asked(peer.file, &["tasks", &line.peer_url(), tasks, "2"], "rate")?, None)))
}

/// Handoffs per second of a line that drains, in processes that are warm.
pub(crate) fn drain<L: Line>(waiters: usize) -> Vec<figure::Peer> {
    each(|peer, line: &L| {
        let url = line.peer_url();
        let command =
            || program(peer.file, &["drain", &url, crate::client::NAME]).expect("it was there just now");
        let mut crowd = Crowd::try_gather(waiters, command)?;
        crowd.try_load(WARM)?;
        let (mut handoffs, mut seconds) = drained(&mut crowd, line, waiters)?;
        if seconds > LONG {
            return Some((handoffs / seconds, None));
        }
        (handoffs, seconds) = (0.0, 0.0);
        for _ in 0..DRAINS {
            let (more, took) = drained(&mut crowd, line, waiters)?;
            handoffs += more;
            seconds += took;
        }
        Some((handoffs / seconds, None))
    })
}

/// How many were granted the lock while a line drained, and how many seconds that took.
fn drained(crowd: &mut Crowd, line: &impl Line, waiters: usize) -> Option<(f64, f64)> {
    let start = Instant::now();
    let drained = crowd.try_drain(|waiting| line.wait_for_peers(waiting))?;
    let all = drained.waits.len() == waiters;
    // Where somebody has waited in vain, it took as long as that.
    let seconds = if all { drained.seconds() } else { start.elapsed().as_secs_f64() };
    line.wait_until_empty();
    Some((drained.handoffs(), seconds))
}

/// How many peers are ahead where they should not be. One that is there and gives no figure leaves everything unproved.
pub(crate) fn ahead<L: Line>(figures: &[Figure]) -> Measured {
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
            let Some(peer) = L::PEERS.iter().find(|peer| peer.name == named.name) else { continue };
            if named.value.is_nan() {
                silent.push(format!("{} in {}", peer.name, figure.figure));
                continue;
            }
            let binding = waits || if figure.unit == "µs" { peer.alone } else { peer.many };
            if !binding {
                continue;
            }
            compared += 1;
            let factor = if waits { peer.factor } else { 1.0 };
            let ratio = named.ratio.unwrap_or(figure.ours / named.value);
            let better = if figure.unit == "µs" { ratio < 1.0 } else { ratio > factor };
            if !better {
                ahead.push(format!("{} in {}", peer.name, figure.figure));
            }
        }
        rows.push(row);
    }
    let missing = L::PEERS.iter().filter(|peer| !peer.is_there());
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
