//! Lock and release of a name that nobody else wants, beside put and delete by hand.

use super::byhand::ByHand;
use super::{Observed, on_a_disk, start};
use crate::client::runtime;
use crate::cycle::{self, ByHand as _, Counts};
use crate::figure::{Figure, Row};
use crate::peers;
use fencepost_testkit::etcd::Etcd;

const COUNTS: Counts = Counts { rounds: 9, cycles: 500, warm: 0 };

/// One task, with the server's data in memory.
pub(crate) fn one_task() -> Figure {
    let server = start();
    let figure = beside_by_hand(&server, "lock and release, p50", "≤ 1.35 ×");
    Figure { peers: peers::cycle::<Observed>(), ..figure }
}

/// The same with the server's data on a disk.
pub(crate) fn one_task_on_a_disk() -> Figure {
    beside_by_hand(&on_a_disk(), "lock and release, data on a disk, p50", "≤ 1.15 ×")
}

fn beside_by_hand(server: &Etcd, figure: &'static str, bar: &'static str) -> Figure {
    let runtime = runtime();
    let mut hand = runtime.block_on(ByHand::connect(server.address()));
    let by_hand = async |_, _: &_| hand.cycle(0).await;
    let rounds = cycle::one_task(&runtime, &server.url(), &COUNTS, 2, by_hand);
    Row { engine: "etcd", figure, unit: "µs", floor: "put and delete by hand", bar }.of(&rounds, 1)
}
