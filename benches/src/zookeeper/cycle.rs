//! Lock and release of a name that nobody else wants, beside the making and deleting of a node by hand.

use super::server::{requests, start, url};
use super::{WARM, peer, peers};
use crate::client::{connect, cycle, runtime};
use crate::figure::{Figure, Measured, Named, Peer, Rounds, p50};

const ROUNDS: usize = 21;
/// Cycles of each way in a round.
const CYCLES: usize = 100;

/// One task.
pub(crate) fn one_task() -> Figure {
    let server = start();
    let runtime = runtime();
    let url = url(&server);
    let (client, locks) = runtime.block_on(async { (peer::connect(&url).await, connect(&url).await) });
    let lock = locks.mutex("uncontended").expect("a good name");
    let measure = |way| {
        runtime.block_on(p50(CYCLES, async || match way {
            0 => peer::by_hand(&client).await,
            1 => cycle(&lock).await,
            _ => peer::cycle(&client).await,
        }))
    };
    for round in 0..WARM / CYCLES {
        measure(round % 3);
    }
    let rounds = Rounds::run(ROUNDS, 3, measure);
    runtime.block_on(locks.close());
    Figure {
        engine: "zookeeper",
        figure: "lock and release, p50",
        unit: "µs",
        floor: Named { name: "create and delete by hand", value: rounds.median(0) },
        ours: rounds.median(1),
        ratio: rounds.ratio(1, 0),
        bar: "≤ 1.5 ×",
        peers: {
            let driver = Peer {
                name: "zookeeper-client's lock",
                value: rounds.median(2),
                ratio: Some(rounds.ratio(1, 2)),
            };
            std::iter::once(driver).chain(peers::cycle()).collect()
        },
    }
}

/// The p50 of a cycle as a multiple of the driver's own lock.
pub(crate) fn beside_the_driver() -> Measured {
    let figure = one_task();
    let ratio = figure.peers.first().and_then(|peer| peer.ratio).unwrap_or(f64::NAN);
    let peer = figure.peers.first().map_or(f64::NAN, |peer| peer.value);
    Measured {
        figure: ratio, note: format!("{:.1} µs; zookeeper-client's lock: {peer:.1} µs", figure.ours)
    }
}

/// Counts the requests that a client sends for each cycle.
pub(crate) fn commands() -> Measured {
    let server = start();
    let runtime = runtime();
    runtime.block_on(async {
        let locks = connect(&url(&server)).await;
        let lock = locks.mutex("uncontended").expect("a good name");
        // Folders are made now, and evictions listened for.
        for _ in 0..10 {
            cycle(&lock).await;
        }
        let before = requests(&server);
        for _ in 0..CYCLES {
            cycle(&lock).await;
        }
        let sent = requests(&server) - before;
        locks.close().await;
        Measured {
            figure: (sent / CYCLES as f64 * 10.0).round() / 10.0,
            note: format!("{CYCLES} cycles: {sent} requests, pings, probes and the count itself among them"),
        }
    })
}
