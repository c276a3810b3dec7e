//! Lock and release of names that nobody else wants, beside the same by hand over the bare driver. Engines say how often, and what
//! stands beside it.

use crate::client::{connect, cycle, runtime};
use crate::figure::{Measured, Rounds, p50};
use fencepost::Mutex;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Tasks that share a connection, and cycles whose requests are counted.
pub(crate) const TASKS: usize = 64;
const COUNTED: usize = 1_000;

/// How often the cycle of one task is measured.
pub(crate) struct Counts {
    pub(crate) rounds: usize,
    /// Cycles of each way in a round.
    pub(crate) cycles: usize,
    /// Cycles before one counts.
    pub(crate) warm: usize,
}

/// The same lock over the bare driver.
pub(crate) trait ByHand {
    /// Takes a lock that nobody else wants, and releases it.
    fn cycle(&mut self, key: usize) -> impl Future<Output = ()> + Send;
}

/// A server that counts what clients send.
pub(crate) trait Counted {
    /// The URL for fencepost.
    fn client_url(&self) -> String;

    /// Counts the requests of all clients during `work`, and says which they were.
    fn sent(&self, work: impl FnOnce()) -> (f64, String);
}

/// The p50 in µs of a cycle by hand (way 0) and of ours (way 1), and of as many more as there are ways. `other` runs all but ours.
pub(crate) fn one_task(
    runtime: &Runtime,
    url: &str,
    counts: &Counts,
    ways: usize,
    mut other: impl AsyncFnMut(usize, &Mutex),
) -> Rounds {
    let locks = runtime.block_on(connect(url));
    let lock = locks.mutex("uncontended").expect("a good name");
    let mut measure = |way| {
        runtime.block_on(p50(counts.cycles, async || match way {
            1 => cycle(&lock).await,
            _ => other(way, &lock).await,
        }))
    };
    for round in 0..counts.warm / counts.cycles {
        measure(round % ways);
    }
    let rounds = Rounds::run(counts.rounds, ways, measure);
    runtime.block_on(locks.close());
    rounds
}

/// A program of our own that does as those of other libraries do: prints the p50 of lock and release.
pub(crate) fn side(url: &str) {
    let p50 = runtime().block_on(async {
        let locks = connect(url).await;
        let lock = locks.mutex("uncontended").expect("a good name");
        let p50 = p50(COUNTED, async || cycle(&lock).await).await;
        locks.close().await;
        p50
    });
    println!("{}", serde_json::json!({ "p50": p50 }));
}

/// Cycles a second of many tasks on one connection, each with a name of its own: by hand (way 0) and ours (way 1).
pub(crate) fn many_tasks<H: ByHand + Clone + Send + 'static>(
    runtime: &Runtime,
    url: &str,
    hand: &H,
    rounds: usize,
    span: Duration,
) -> Rounds {
    let locks = runtime.block_on(connect(url));
    let rounds = Rounds::run(rounds, 2, |way| {
        runtime.block_on(async {
            let start = Instant::now();
            let tasks: Vec<_> = (0..TASKS)
                .map(|task| {
                    let lock = locks.mutex(&format!("task/{task}")).expect("a good name");
                    let mut hand = hand.clone();
                    tokio::spawn(async move {
                        let mut cycles = 0;
                        while start.elapsed() < span {
                            match way {
                                0 => hand.cycle(task).await,
                                _ => cycle(&lock).await,
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
    rounds
}

/// Counts the requests of a client for each cycle.
pub(crate) fn requests(server: &impl Counted) -> Measured {
    let runtime = runtime();
    let locks = runtime.block_on(connect(&server.client_url()));
    let lock = locks.mutex("uncontended").expect("a good name");
    let cycles = |count| {
        runtime.block_on(async {
            for _ in 0..count {
                cycle(&lock).await;
            }
        });
    };
    // Scripts are loaded now, leases granted and folders made.
    cycles(10);
    let (sent, which) = server.sent(|| cycles(COUNTED));
    runtime.block_on(locks.close());
    // To the tenth: on a busy machine, pings fall among them.
    let figure = (sent / COUNTED as f64 * 10.0).round() / 10.0;
    Measured { figure, note: format!("{COUNTED} cycles: {which}") }
}
