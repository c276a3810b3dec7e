//! Libraries of other languages: Curator, kazoo and go-zookeeper, where their tools are.

use super::server::{start, url};
use crate::crowd::{Crowd, wait_until};
use crate::figure::{Figure, Measured, Peer, median};
use crate::redis::peers::{own_cycle, printed, program};
use crate::warm::WARM;
use fencepost_testkit::zookeeper::{ZooKeeper, ephemerals};

/// As the tables show them, and the files with their command lines.
pub(crate) const PEERS: [(&str, &str); 3] =
    [("Curator", "curator"), ("kazoo", "kazoo"), ("go-zookeeper", "go-zookeeper")];

/// How often a cycle is measured beside ours.
const ROUNDS: usize = 5;
/// How often a line drains after once.
const DRAINS: usize = 3;

fn each(mut measure: impl FnMut(&str, &ZooKeeper) -> Option<(f64, Option<f64>)>) -> Vec<Peer> {
    let there = PEERS.iter().filter(|(_, file)| program(file, &[]).is_some());
    there
        .map(|(name, file)| {
            let (value, ratio) = measure(file, &start()).unwrap_or((f64::NAN, None));
            Peer { name, value, ratio }
        })
        .collect()
}

/// The p50 of a cycle in µs, each in turns with ours, which is measured in a process of its own as well.
pub(super) fn cycle() -> Vec<Peer> {
    each(|file, server| {
        let round = |_| {
            Some((
                own_cycle(&url(server))?,
                printed(program(file, &["cycle", &server.url(), "500"])?, "p50")?,
            ))
        };
        let rounds = (0..ROUNDS).map(round).collect::<Option<Vec<_>>>()?;
        let ratio = median(rounds.iter().map(|(ours, theirs)| ours / theirs).collect());
        Some((median(rounds.into_iter().map(|(_, theirs)| theirs).collect()), Some(ratio)))
    })
}

/// Handoffs per second of a line that drains, in processes that are warm.
pub(super) fn drain(waiters: usize) -> Vec<Peer> {
    each(|file, server| {
        let command = || program(file, &["drain", &server.url(), "crowded"]).expect("it was there just now");
        let mut crowd = Crowd::try_gather(waiters, command)?;
        crowd.try_load(WARM)?;
        let (mut handoffs, mut seconds) = (0.0, 0.0);
        for round in 0..=DRAINS {
            let drained = crowd.try_drain(|count| standing(server, "all waited in the queue", count + 1))?;
            if drained.waits.len() != waiters {
                return None;
            }
            if round > 0 {
                handoffs += drained.handoffs();
                seconds += drained.seconds();
            }
            standing(server, "the line is empty", 0);
        }
        Some((handoffs / seconds, None))
    })
}

/// Waits until so many nodes stand in the line.
fn standing(server: &ZooKeeper, what: &str, count: usize) {
    wait_until(what, || {
        let all = ephemerals(server.address()).expect("a server that answers");
        all.iter().filter(|path| path.contains("lock")).count() == count
    });
}

/// How many peers are ahead: in the time of a cycle, or with more than a part of 1.3 of our handoffs. One that is there and gives no
/// figure leaves everything unproved.
pub(crate) fn ahead() -> Measured {
    let figures =
        [super::cycle::one_task(), super::handoff::beside_peers(16), super::handoff::beside_peers(128)];
    let (mut ahead, mut silent, mut rows) = (0, 0, Vec::new());
    for figure in &figures {
        rows.push(format!("{} in {}: ours {:.0}", figure.figure, figure.unit, figure.ours));
        for peer in theirs(figure) {
            // In turns with it; ours above was measured by itself.
            let beside = peer.ratio.map(|ratio| format!(" (ours {ratio:.2} ×)")).unwrap_or_default();
            rows.push(format!("{} {:.0}{beside}", peer.name, peer.value));
            let ratio = peer.ratio.unwrap_or(figure.ours / peer.value);
            silent += usize::from(peer.value.is_nan());
            ahead += usize::from(if figure.unit == "µs" { ratio >= 1.0 } else { ratio < 1.3 });
        }
    }
    let none = figures.iter().any(|figure| theirs(figure).next().is_none());
    let proved = silent == 0 && !none;
    Measured { figure: if proved { f64::from(ahead as u32) } else { f64::NAN }, note: rows.join(", ") }
}

fn theirs(figure: &Figure) -> impl Iterator<Item = &Peer> {
    figure.peers.iter().filter(|peer| PEERS.iter().any(|(name, _)| *name == peer.name))
}
