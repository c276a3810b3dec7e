//! Lock and release of a name that nobody else wants, beside put and delete by hand.

use super::byhand::ByHand;
use super::{peer, start};
use crate::client::{connect, cycle, runtime};
use crate::figure::{Figure, Measured, Named, Rounds, p50};
use fencepost_testkit::etcd::Etcd;

const ROUNDS: usize = 9;
/// Cycles of each way in a round.
const CYCLES: usize = 500;

/// One task, with the server's data in memory.
pub(crate) fn one_task() -> Figure {
    let server = start();
    Figure {
        peers: peer::cycle(&server.url()),
        ..beside_by_hand(&server, "lock and release, p50", "≤ 1.35 ×")
    }
}

/// The same with the server's data on a disk.
pub(crate) fn on_a_disk() -> Figure {
    beside_by_hand(&super::on_a_disk(), "lock and release, data on a disk, p50", "≤ 1.15 ×")
}

fn beside_by_hand(server: &Etcd, figure: &'static str, bar: &'static str) -> Figure {
    let runtime = runtime();
    let (mut hand, locks) = runtime.block_on(async {
        let locks = connect(&server.url()).await;
        (ByHand::connect(server.address()).await, locks)
    });
    let lock = locks.mutex("uncontended").expect("a good name");
    let rounds = Rounds::run(ROUNDS, 2, |way| {
        runtime.block_on(p50(CYCLES, async || match way {
            0 => hand.cycle().await,
            _ => cycle(&lock).await,
        }))
    });
    runtime.block_on(locks.close());
    Figure {
        engine: "etcd",
        figure,
        unit: "µs",
        floor: Named { name: "put and delete by hand", value: rounds.median(0) },
        ours: rounds.median(1),
        ratio: rounds.ratio(1, 0),
        bar,
        peers: Vec::new(),
    }
}

/// Counts the requests that clients send for each cycle.
pub(crate) fn requests() -> Measured {
    let server = start();
    runtime().block_on(async {
        let locks = connect(&server.url()).await;
        let lock = locks.mutex("uncontended").expect("a good name");
        // There is a lease now.
        cycle(&lock).await;
        let count = || -> u64 { server.requests().expect("a server that counts").values().sum() };
        let before = count();
        for _ in 0..CYCLES {
            cycle(&lock).await;
        }
        let sent = count() - before;
        locks.close().await;
        Measured { figure: sent as f64 / CYCLES as f64, note: format!("{sent} requests for {CYCLES} cycles") }
    })
}
