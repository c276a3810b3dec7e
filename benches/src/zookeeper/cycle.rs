//! Lock and release of a name that nobody else wants, beside the making and deleting of a node by hand.

use super::server::{start, url};
use super::{WARM, peer};
use crate::client::runtime;
use crate::cycle::{self, Counts};
use crate::figure::{Figure, Measured, Peer, Row};
use crate::peers;
use fencepost_testkit::zookeeper::ZooKeeper;

const COUNTS: Counts = Counts { rounds: 21, cycles: 100, warm: WARM };

/// One task.
pub(crate) fn one_task() -> Figure {
    let (server, runtime) = (start(), runtime());
    let url = url(&server);
    let client = runtime.block_on(peer::connect(&url));
    let rounds = cycle::one_task(&runtime, &url, &COUNTS, 3, async |way, _| match way {
        0 => peer::by_hand(&client).await,
        _ => peer::cycle(&client).await,
    });
    let (name, ratio) = ("zookeeper-client's lock", Some(rounds.ratio(1, 2)));
    let mut peers = vec![Peer { name, value: rounds.median(2), ratio }];
    peers.extend(peers::cycle::<ZooKeeper>());
    let (figure, floor) = ("lock and release, p50", "create and delete by hand");
    let row = Row { engine: "zookeeper", figure, unit: "µs", floor, bar: "≤ 1.5 ×" };
    Figure { peers, ..row.of(&rounds, 1) }
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
