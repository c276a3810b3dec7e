//! Lock and release of names that nobody else wants, beside the same statements by hand.

use super::table::{Bare as _, Table};
use super::{ByHand as _, Sql, Stage, Way};
use crate::client::runtime;
use crate::cycle::{self, ByHand, Counts};
use crate::figure::{Figure, Row};
use std::time::Duration;

const COUNTS: Counts = Counts { rounds: 9, cycles: 1_000, warm: 0 };
/// The same of the lease table beside its own statements.
const OF_THE_TABLE: Counts = Counts { cycles: 500, ..COUNTS };
/// How long many tasks are measured in a round.
const SPAN: Duration = Duration::from_secs(1);

/// One task.
pub(super) fn one_task<S: Sql>(stage: &Stage<S>) -> Figure {
    let (runtime, way) = (runtime(), Way::of(stage.options));
    let mut hand = runtime.block_on(S::Hand::connect(&stage.bare_url(), way));
    let rounds = cycle::one_task(&runtime, &stage.url(), &COUNTS, 2, async |_, _| hand.cycle(1).await);
    let (figure, bar) = (way.figures()[0], way.bars()[0]);
    Row { engine: S::ENGINE, figure, unit: "µs", floor: way.name(), bar }.of(&rounds, 1)
}

/// 64 tasks with a name each, on one connection.
pub(super) fn many_tasks<S: Sql>(stage: &Stage<S>) -> Figure {
    let (runtime, way) = (runtime(), Way::of(stage.options));
    let hand = runtime.block_on(S::Hand::connect(&stage.bare_url(), way));
    let rounds = cycle::many_tasks(&runtime, &stage.url(), &hand, COUNTS.rounds, SPAN);
    let (figure, bar) = (way.figures()[1], way.bars()[1]);
    Row { engine: S::ENGINE, figure, unit: "cycles/s", floor: way.name(), bar }.of(&rounds, 1)
}

/// One task on the lease table, beside the engine's own statements.
pub(super) fn one_task_of_the_table<S: Table>(stage: &Stage<S>) -> Figure {
    let runtime = runtime();
    let mut bare = runtime.block_on(S::Bare::connect(&stage.bare_url()));
    let rounds = cycle::one_task(&runtime, &stage.url(), &OF_THE_TABLE, 2, async |_, _| bare.cycle(1).await);
    let (figure, floor) = ("mode=table: lock and release, p50", "the statements by hand");
    Row { engine: S::ENGINE, figure, unit: "µs", floor, bar: "≤ 1.25 ×" }.of(&rounds, 1)
}
