//! Lock and release in memory, beside tokio's own Mutex.

use super::connect;
use crate::figure::{Figure, Peer, Rounds, Row};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

/// How long each way is measured in a round.
const SLICE: Duration = Duration::from_millis(400);
const ROUNDS: usize = 9;
const HOT_TASKS: usize = 1_000;
const FLOOR: &str = "tokio Mutex";
const PEER: &str = "async-lock Mutex";

/// Something that is locked and released at once.
trait Lock: Clone + Send + 'static {
    fn cycle(&self) -> impl Future<Output = ()> + Send;
}

impl Lock for Arc<tokio::sync::Mutex<()>> {
    async fn cycle(&self) {
        drop(self.lock().await);
    }
}

impl Lock for Arc<async_lock::Mutex<()>> {
    async fn cycle(&self) {
        drop(self.lock().await);
    }
}

impl Lock for fencepost::Mutex {
    async fn cycle(&self) {
        let guard = self.lock().await.expect("memory grants");
        guard.release().await.expect("memory releases");
    }
}

/// The rows of the table. They have no bar, because no network is saved by a faster engine in memory.
pub(crate) fn figures() -> Vec<Figure> {
    let one = Builder::new_current_thread().build().expect("a runtime");
    let many = Builder::new_multi_thread().build().expect("a runtime");
    vec![
        figure("lock and release, one task", &one, Run::Alone),
        figure("hot lock, 1,000 tasks, a thread per core", &many, Run::Crowd),
        figure("hot lock, 1,000 tasks, one thread", &one, Run::Crowd),
    ]
}

#[derive(Clone, Copy)]
enum Run {
    Alone,
    Crowd,
}

fn figure(name: &'static str, runtime: &Runtime, run: Run) -> Figure {
    let tokio: Arc<tokio::sync::Mutex<()>> = Arc::default();
    let peer: Arc<async_lock::Mutex<()>> = Arc::default();
    let locks = runtime.block_on(connect());
    let ours = locks.mutex("hot").expect("a good name");
    let rounds = Rounds::run(ROUNDS, 3, |way| {
        runtime.block_on(async {
            match way {
                0 => rate(&tokio, run).await,
                1 => rate(&ours, run).await,
                _ => rate(&peer, run).await,
            }
        })
    });
    runtime.block_on(locks.close());
    let peers = vec![Peer { name: PEER, value: rounds.median(2), ratio: Some(rounds.ratio(1, 2)) }];
    let row = Row { engine: "memory", figure: name, unit: "M/s", floor: FLOOR, bar: "" };
    Figure { peers, ..row.of(&rounds, 1) }
}

async fn rate(lock: &impl Lock, run: Run) -> f64 {
    match run {
        Run::Alone => alone(lock).await,
        Run::Crowd => crowd(lock).await,
    }
}

/// Cycles a second of one task, in millions.
async fn alone(lock: &impl Lock) -> f64 {
    let start = Instant::now();
    let mut cycles = 0_u32;
    while start.elapsed() < SLICE {
        for _ in 0..1_000 {
            lock.cycle().await;
        }
        cycles += 1_000;
    }
    f64::from(cycles) / start.elapsed().as_secs_f64() / 1e6
}

/// Cycles a second of all tasks together, in millions.
async fn crowd(lock: &impl Lock) -> f64 {
    let start = Instant::now();
    let tasks: Vec<_> = (0..HOT_TASKS)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move {
                let mut cycles = 0_u32;
                while start.elapsed() < SLICE {
                    for _ in 0..20 {
                        lock.cycle().await;
                    }
                    cycles += 20;
                }
                cycles
            })
        })
        .collect();
    let mut cycles = 0_u32;
    for task in tasks {
        cycles += task.await.expect("a task that does not panic");
    }
    f64::from(cycles) / start.elapsed().as_secs_f64() / 1e6
}
