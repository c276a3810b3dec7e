//! Lock and release of names that nobody else wants, beside the same by hand over the same driver.

use super::byhand::ByHand;
use super::monitor::{Monitor, count};
use super::peers;
use super::server::start;
use crate::client::{connect, cycle, runtime};
use crate::figure::{Figure, Measured, Named, Rounds, p50};
use fencepost::Locks;
use std::time::{Duration, Instant};

const ROUNDS: usize = 9;
/// Cycles of each way in a round.
const CYCLES: usize = 1_000;
/// Tasks that share one connection, and for how long in a round.
const TASKS: usize = 64;
const SPAN: Duration = Duration::from_millis(300);

const BY_HAND: &str = "SET NX PX, then compare and delete, by hand";

/// One task: released, and dropped.
pub(crate) fn one_task() -> [Figure; 2] {
    let server = start();
    let runtime = runtime();
    let (mut hand, locks) = runtime.block_on(clients(&server.url()));
    let lock = locks.mutex("uncontended").expect("a good name");
    let rounds = Rounds::run(ROUNDS, 3, |way| {
        runtime.block_on(p50(CYCLES, async || match way {
            0 => hand.cycle("by hand").await,
            1 => cycle(&lock).await,
            _ => drop(lock.lock().await.expect("nobody else wants it")),
        }))
    });
    runtime.block_on(locks.close());
    let peers = peers::cycle(&server.url());
    let figure = |way: usize, figure, bar, peers| Figure {
        engine: "redis",
        figure,
        unit: "µs",
        floor: Named { name: BY_HAND, value: rounds.median(0) },
        ours: rounds.median(way),
        ratio: rounds.ratio(way, 0),
        bar,
        peers,
    };
    [
        figure(1, "lock and release, p50", "≤ 1.2 ×", peers),
        figure(2, "lock and drop of the guard, p50", "≤ 0.8 ×", Vec::new()),
    ]
}

/// A program of our own that does as those of the peers do: prints the p50 of lock and release.
pub(crate) fn side(url: &str) {
    let runtime = runtime();
    let p50 = runtime.block_on(async {
        let locks = connect(url).await;
        let lock = locks.mutex("uncontended").expect("a good name");
        let p50 = p50(CYCLES, async || cycle(&lock).await).await;
        locks.close().await;
        p50
    });
    println!("{}", serde_json::json!({ "p50": p50 }));
}

/// Many tasks on one connection, each with a name of its own.
pub(crate) fn many_tasks() -> Figure {
    let server = start();
    let runtime = runtime();
    let (hand, locks) = runtime.block_on(clients(&server.url()));
    let rounds = Rounds::run(ROUNDS, 2, |way| {
        runtime.block_on(async {
            let start = Instant::now();
            let tasks: Vec<_> = (0..TASKS)
                .map(|task| {
                    let name = format!("task/{task}");
                    let lock = locks.mutex(&name).expect("a good name");
                    let mut hand = hand.clone();
                    tokio::spawn(async move {
                        let mut cycles = 0;
                        while start.elapsed() < SPAN {
                            if way == 0 {
                                hand.cycle(&name).await
                            } else {
                                cycle(&lock).await
                            }
                            cycles += 1;
                        }
                        cycles
                    })
                })
                .collect();
            let mut cycles = 0;
            for task in tasks {
                cycles += task.await.expect("a task that does not panic");
            }
            f64::from(cycles) / start.elapsed().as_secs_f64()
        })
    });
    runtime.block_on(locks.close());
    Figure {
        engine: "redis",
        figure: "lock and release, 64 tasks on one connection",
        unit: "1/s",
        floor: Named { name: BY_HAND, value: rounds.median(0) },
        ours: rounds.median(1),
        ratio: rounds.ratio(1, 0),
        bar: "≥ 0.5 ×",
        peers: peers::tasks(&server.url(), TASKS),
    }
}

/// Counts the commands that clients send for each cycle.
pub(crate) fn commands() -> Measured {
    let server = start();
    let runtime = runtime();
    runtime.block_on(async {
        let locks = connect(&server.url()).await;
        let lock = locks.mutex("uncontended").expect("a good name");
        // Scripts are loaded now.
        cycle(&lock).await;
        let monitor = Monitor::of(&server.url());
        for _ in 0..CYCLES {
            cycle(&lock).await;
        }
        let (sent, which) = count(&monitor.end());
        locks.close().await;
        Measured { figure: sent / CYCLES as f64, note: format!("{CYCLES} cycles: {which}") }
    })
}

async fn clients(url: &str) -> (ByHand, Locks) {
    (ByHand::connect(url).await, connect(url).await)
}
