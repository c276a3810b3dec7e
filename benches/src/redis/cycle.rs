//! Lock and release of names that nobody else wants, beside the same by hand over the same driver.

use super::Observed;
use super::byhand::ByHand;
use super::server::start;
use crate::client::runtime;
use crate::cycle::{self, ByHand as _, Counts, TASKS};
use crate::figure::{Figure, Row};
use crate::peers;
use std::time::Duration;

const COUNTS: Counts = Counts { rounds: 9, cycles: 1_000, warm: 0 };
/// How long many tasks are measured in a round.
const SPAN: Duration = Duration::from_millis(300);

const BY_HAND: &str = "SET NX PX, then compare and delete, by hand";

/// One task: released, and dropped.
pub(crate) fn one_task() -> [Figure; 2] {
    let (server, runtime) = (start(), runtime());
    let mut hand = runtime.block_on(ByHand::connect(&server.url()));
    let rounds = cycle::one_task(&runtime, &server.url(), &COUNTS, 3, async |way, lock| match way {
        0 => hand.cycle(0).await,
        _ => drop(lock.lock().await.expect("nobody else wants it")),
    });
    let row = |figure, bar| Row { engine: "redis", figure, unit: "µs", floor: BY_HAND, bar };
    let peers = peers::cycle::<Observed>();
    [
        Figure { peers, ..row("lock and release, p50", "≤ 1.2 ×").of(&rounds, 1) },
        row("lock and drop of the guard, p50", "≤ 0.8 ×").of(&rounds, 2),
    ]
}

/// Many tasks on one connection, each with a name of its own.
pub(crate) fn many_tasks() -> Figure {
    let (server, runtime) = (start(), runtime());
    let hand = runtime.block_on(ByHand::connect(&server.url()));
    let rounds = cycle::many_tasks(&runtime, &server.url(), &hand, COUNTS.rounds, SPAN);
    let figure = "lock and release, 64 tasks on one connection";
    let row = Row { engine: "redis", figure, unit: "1/s", floor: BY_HAND, bar: "≥ 0.5 ×" };
    Figure { peers: peers::tasks::<Observed>(TASKS), ..row.of(&rounds, 1) }
}
