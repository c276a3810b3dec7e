//! Lock and release of a name that nobody else wants, beside put and delete by hand.

use super::byhand::ByHand;
use super::{peer, start};
use crate::client::{connect, cycle, runtime};
use crate::figure::{Figure, Measured, Named, Rounds, p50};

const ROUNDS: usize = 9;
/// Cycles of each way in a round.
const CYCLES: usize = 500;

/// One task.
pub(crate) fn one_task() -> Figure {
    let server = start();
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
        figure: "lock and release, p50",
        unit: "µs",
        floor: Named { name: "put and delete by hand", value: rounds.median(0) },
        ours: rounds.median(1),
        ratio: rounds.ratio(1, 0),
        bar: "≤ 1.15 ×",
        peers: peer::cycle(&server.url()),
    }
}

/// What clients send for each cycle.
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
