//! etcd's own lock, of the concurrency package of its client in Go: a program under benches/peers, if `cargo xtask` has built it.

use super::start;
use crate::client::{NAME, connect, runtime};
use crate::crowd::{Crowd, PROCESSES, wait_until};
use crate::figure::{self, Figure, Measured};
use crate::redis::peers::{printed, program};
use crate::warm::WARM;

/// The file with its command line.
pub(crate) const FILE: &str = "etcd";
pub(crate) const PEER: &str = "etcd's own lock in Go";
/// Cycles of one task.
const CYCLES: &str = "1000";
/// How often a line drains, after once that does not count.
const DRAINS: usize = 2;

/// The p50 of its cycle in µs.
pub(super) fn cycle(url: &str) -> Vec<figure::Peer> {
    named(|| printed(program(FILE, &["cycle", url, CYCLES])?, "p50"))
}

/// Its handoffs per second with so many waiters in four processes that are warm.
pub(super) fn drain(waiters: usize) -> Vec<figure::Peer> {
    named(|| rate(waiters))
}

/// Nothing if it is not there.
fn named(measure: impl FnOnce() -> Option<f64>) -> Vec<figure::Peer> {
    let there = program(FILE, &[]).is_some();
    let value = there.then(|| measure().unwrap_or(f64::NAN));
    value.into_iter().map(|value| figure::Peer { name: PEER, value, ratio: None }).collect()
}

fn rate(waiters: usize) -> Option<f64> {
    let server = start();
    let url = server.url();
    let runtime = runtime();
    // Its keys are those of ours, so we see them wait in the queue.
    let locks = runtime.block_on(connect(&url));
    let command = || program(FILE, &["drain", &url, NAME]).expect("it was there just now");
    let mut crowd = Crowd::try_of(PROCESSES, waiters, command)?;
    crowd.try_load(WARM)?;
    let (mut handoffs, mut seconds) = (0.0, 0.0);
    for drain in 0..=DRAINS {
        let drained = crowd.try_drain(|waiting| {
            wait_until("the line formed", || {
                let info = runtime.block_on(locks.inspect(NAME)).expect("a server that answers");
                info.waiters().count() == waiting
            });
        })?;
        // One that has waited in vain has no time of its own.
        if drained.waits.len() < waiters {
            return None;
        }
        if drain > 0 {
            handoffs += drained.handoffs();
            seconds += drained.seconds();
        }
    }
    drop(crowd);
    runtime.block_on(locks.close());
    Some(handoffs / seconds)
}

/// In how many figures it is ahead, or has none; not a number if it is not there.
pub(crate) fn ahead(figures: &[Figure]) -> Measured {
    let (mut ahead, mut compared, mut rows) = (0, 0, Vec::new());
    for figure in figures {
        let Some(peer) = figure.peers.first() else { continue };
        compared += 1;
        let better = if figure.unit == "µs" { figure.ours < peer.value } else { figure.ours > peer.value };
        ahead += usize::from(!better);
        rows.push(format!("{}: {:.0} {}, ours {:.0}", figure.figure, peer.value, figure.unit, figure.ours));
    }
    let note = format!("{compared} figures of {PEER}; {}", rows.join("; "));
    Measured { figure: if compared > 0 { ahead as f64 } else { f64::NAN }, note }
}
