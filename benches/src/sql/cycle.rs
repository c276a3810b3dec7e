//! Lock and release of names that nobody else wants, beside the same statements by hand.

use super::{ByHand, Sql, Stage, Way};
use crate::client::{connect, cycle, runtime};
use crate::figure::{Figure, Measured, Named, Rounds, p50};
use std::time::Instant;

const ROUNDS: usize = 9;
/// Cycles of each way in a round.
const CYCLES: usize = 1_000;
/// Tasks that share a connection.
const TASKS: usize = 64;
/// Cycles of each of them.
const EACH: usize = 100;

/// One task.
pub(super) fn one_task<S: Sql>(stage: &Stage<S>) -> Figure {
    let (runtime, way) = (runtime(), Way::of(stage.options));
    // The engine makes its table first.
    let (locks, hand) = runtime
        .block_on(async { (connect(&stage.url()).await, S::Hand::connect(&stage.bare_url(), way).await) });
    let lock = locks.mutex("uncontended").expect("a good name");
    let rounds = Rounds::run(ROUNDS, 2, |way| {
        runtime.block_on(p50(CYCLES, async || match way {
            0 => hand.cycle(1).await,
            _ => cycle(&lock).await,
        }))
    });
    runtime.block_on(locks.close());
    Figure {
        engine: S::ENGINE,
        figure: way.figures()[0],
        unit: "µs",
        floor: Named { name: way.name(), value: rounds.median(0) },
        ours: rounds.median(1),
        ratio: rounds.ratio(1, 0),
        bar: way.bars()[0],
        peers: Vec::new(),
    }
}

/// 64 tasks with a name each, on one connection.
pub(super) fn many_tasks<S: Sql>(stage: &Stage<S>) -> Figure {
    let (runtime, way) = (runtime(), Way::of(stage.options));
    // The engine makes its table first.
    let (locks, hand) = runtime
        .block_on(async { (connect(&stage.url()).await, S::Hand::connect(&stage.bare_url(), way).await) });
    let hand = std::sync::Arc::new(hand);
    let rounds = Rounds::run(ROUNDS, 2, |way| {
        let began = Instant::now();
        runtime.block_on(async {
            let tasks: Vec<_> = (0..TASKS)
                .map(|task| {
                    let lock = locks.mutex(&format!("task/{task}")).expect("a good name");
                    let hand = std::sync::Arc::clone(&hand);
                    tokio::spawn(async move {
                        for _ in 0..EACH {
                            match way {
                                0 => hand.cycle(task).await,
                                _ => cycle(&lock).await,
                            }
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("a task that does not panic");
            }
        });
        (TASKS * EACH) as f64 / began.elapsed().as_secs_f64()
    });
    runtime.block_on(locks.close());
    Figure {
        engine: S::ENGINE,
        figure: way.figures()[1],
        unit: "cycles/s",
        floor: Named { name: way.name(), value: rounds.median(0) },
        ours: rounds.median(1),
        ratio: rounds.ratio(1, 0),
        bar: way.bars()[1],
        peers: Vec::new(),
    }
}

/// Counts the statements of each cycle.
pub(super) fn statements<S: Sql>(stage: &Stage<S>) -> Measured {
    let runtime = runtime();
    let locks = runtime.block_on(connect(&stage.url()));
    let lock = locks.mutex("uncontended").expect("a good name");
    runtime.block_on(cycle(&lock));
    let sent = stage.server.statements(|| {
        runtime.block_on(async {
            for _ in 0..CYCLES {
                cycle(&lock).await;
            }
        });
    });
    runtime.block_on(locks.close());
    let note = format!("{sent} statements for {CYCLES} cycles");
    Measured { figure: sent as f64 / CYCLES as f64, note }
}
