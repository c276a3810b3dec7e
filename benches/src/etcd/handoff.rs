//! Handoffs over several processes: their rate, what they cost, how long one waits.

use super::{peer, start};
use crate::client::{NAME, connect, runtime};
use crate::crowd::{Crowd, Drained, ours};
use crate::figure::{Figure, Measured, Named, median};
use std::time::Duration;

/// Claims of one process that wait at the server.
const WAITING: usize = 64;
/// Lengths of the line.
pub(crate) const LINES: [usize; 3] = [16, 128, 1_000];
/// Waiters and processes of the table.
pub(crate) const CROWDS: [(usize, usize); 5] = [(16, 4), (128, 4), (1_000, 4), (128, 16), (128, 64)];
/// The handoffs per second of the design that the present one replaced, one watch for all waiters, on two cores and in memory.
const BEFORE: Named = Named { name: "our earlier design, one shared watch", value: 1_445.0 };

/// How often a run lets a line of this length drain.
fn drains(waiters: usize) -> usize {
    (3_000 / waiters).clamp(3, 60)
}

/// Handoffs per second with so many waiters in so many processes.
pub(crate) fn rate((waiters, processes): (usize, usize)) -> Figure {
    let (rate, _, _) = run(waiters, processes);
    let figure = match (waiters, processes) {
        (16, _) => "handoffs, 16 waiters in 4 processes",
        (1_000, _) => "handoffs, 1,000 waiters in 4 processes",
        (_, 16) => "handoffs, 128 waiters in 16 processes",
        (_, 64) => "handoffs, 128 waiters in 64 processes",
        _ => "handoffs, 128 waiters in 4 processes",
    };
    Figure {
        engine: "etcd",
        figure,
        unit: "1/s",
        floor: BEFORE,
        ours: rate,
        ratio: rate / BEFORE.value,
        bar: if processes == 4 { "≥ 1,400 1/s" } else { "" },
        peers: Vec::new(),
    }
}

/// The same in four processes beside the peer.
pub(crate) fn beside_peer(waiters: usize) -> Figure {
    Figure { peers: peer::drain(waiters), ..rate((waiters, 4)) }
}

/// The rate as a line of the proof.
pub(crate) fn measured(waiters: usize, processes: usize) -> Measured {
    let (rate, longest, requests) = run(waiters, processes);
    let note = format!(
        "{} drains of {waiters} waiters in {processes} processes, data in memory; longest step between two grants {longest:.1} ms, \
         {requests:.2} requests a handoff",
        drains(waiters)
    );
    Measured { figure: rate, note }
}

/// The longest time between two grants of a drain, in ms: the median over the drains.
pub(crate) fn longest(waiters: usize) -> Measured {
    let (rate, longest, _) = run(waiters, 4);
    Measured {
        figure: longest,
        note: format!("{waiters} waiters in 4 processes at {rate:.0} handoffs a second"),
    }
}

/// Requests that clients send for a handoff.
pub(crate) fn requests() -> Measured {
    let (figures, notes): (Vec<f64>, Vec<String>) = LINES
        .into_iter()
        .map(|waiters| {
            let (_, _, requests) = run(waiters, 4);
            (requests, format!("{waiters} waiters: {requests:.3}"))
        })
        .unzip();
    Measured { figure: figures.into_iter().fold(0.0, f64::max), note: notes.join("; ") }
}

/// Handoffs a second, the longest step in ms, and the requests of each.
fn run(waiters: usize, processes: usize) -> (f64, f64, f64) {
    let server = start();
    let runtime = runtime();
    let locks = runtime.block_on(connect(&server.url()));
    // The others wait in their processes.
    let there = |waiting: usize| waiting.min(processes * WAITING);
    let in_line = |count: usize| {
        for _ in 0..6_000 {
            let info = runtime.block_on(locks.inspect(NAME)).expect("a server that answers");
            if info.waiters().count() == there(count) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the line did not form");
    };
    let mut crowd = Crowd::of(processes, waiters, || ours(&server.url()));
    let count = || -> u64 { server.requests().expect("a server that counts").values().sum() };
    crowd.drain(in_line);
    let before = count();
    let mut looks = 0u64;
    let (mut handoffs, mut seconds, mut steps) = (0.0, 0.0, Vec::new());
    for _ in 0..drains(waiters) {
        let drained = crowd.drain(|waiting| {
            // Looks are requests as well, one for the line and one for the holder's lease.
            for _ in 0..6_000 {
                looks += 2;
                let info = runtime.block_on(locks.inspect(NAME)).expect("a server that answers");
                if info.waiters().count() == there(waiting) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            panic!("the line did not form");
        });
        handoffs += drained.handoffs();
        seconds += drained.seconds();
        steps.push(longest_step(&drained));
    }
    let sent = count().saturating_sub(before + looks);
    drop(crowd);
    runtime.block_on(locks.close());
    // The holder of each drain has its cycle as well.
    (handoffs / seconds, median(steps), sent as f64 / (handoffs + drains(waiters) as f64))
}

fn longest_step(drained: &Drained) -> f64 {
    drained.waits.windows(2).map(|pair| (pair[1] - pair[0]) / 1e3).fold(0.0, f64::max)
}
