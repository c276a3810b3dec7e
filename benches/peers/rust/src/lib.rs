//! The parts of every peer's program: see ../../README.md for its protocol.

use std::future::Future;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncBufReadExt, BufReader};

/// One library behind the few calls that are measured.
pub trait Peer: Clone + Send + Sync + 'static {
    /// The guard that a holder gets.
    type Held: Send;

    /// A client of these servers: one, or several of a quorum.
    fn connect(urls: &[String]) -> impl Future<Output = Self> + Send;

    /// Waits for the lock, for [`PATIENCE`] at most.
    fn lock(&self, name: &str) -> impl Future<Output = Option<Self::Held>> + Send;

    /// Gives it back.
    fn release(&self, held: Self::Held) -> impl Future<Output = ()> + Send;
}

/// Does what the command line says.
pub fn main<P: Peer>() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let urls: Vec<String> = arguments[1].split(',').map(str::to_owned).collect();
    let number = |at: usize| -> f64 { arguments[at].parse().expect("a number") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let peer = P::connect(&urls).await;
        match arguments[0].as_str() {
            "cycle" => cycle(&peer, number(2) as usize).await,
            "tasks" => tasks(&peer, number(2) as usize, Duration::from_secs_f64(number(3))).await,
            "drain" => drain(&peer, &arguments[2]).await,
            other => panic!("{other} is no measurement"),
        }
    });
}

async fn cycle(peer: &impl Peer, count: usize) {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        let held = peer.lock("uncontended").await.expect("nobody else wants it");
        peer.release(held).await;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    println!("{{\"p50\":{}}}", times[times.len() / 2]);
}

async fn tasks(peer: &impl Peer, count: usize, span: Duration) {
    let start = Instant::now();
    let running: Vec<_> = (0..count)
        .map(|task| {
            let (peer, name) = (peer.clone(), format!("task/{task}"));
            tokio::spawn(async move {
                let mut cycles = 0;
                while start.elapsed() < span {
                    if let Some(held) = peer.lock(&name).await {
                        peer.release(held).await;
                        cycles += 1;
                    }
                }
                cycles
            })
        })
        .collect();
    let mut cycles = 0;
    for task in running {
        cycles += task.await.expect("a task that does not panic");
    }
    println!("{{\"rate\":{}}}", f64::from(cycles) / start.elapsed().as_secs_f64());
}

async fn drain(peer: &impl Peer, name: &str) {
    println!("ready");
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let (mut held, mut waiting) = (None, Vec::new());
    while let Ok(Some(line)) = lines.next_line().await {
        let (word, count) = line.split_once(' ').unwrap_or((&line, "0"));
        match word {
            "hold" => {
                held = peer.lock(name).await;
                println!("held");
            }
            "line" => {
                for _ in 0..count.parse().expect("a number") {
                    let (peer, name) = (peer.clone(), name.to_owned());
                    waiting.push(tokio::spawn(async move {
                        let held = peer.lock(&name).await?;
                        let granted = now();
                        peer.release(held).await;
                        Some(granted)
                    }));
                }
                println!("waiting");
            }
            "load" => {
                let (tasks, seconds) = count.split_once(' ').expect("two numbers");
                let number = |text: &str| -> u32 { text.parse().expect("a number") };
                println!("loaded {}", load(peer, name, number(tasks), number(seconds)).await);
            }
            "free" => {
                println!("freed {}", now());
                if let Some(held) = held.take() {
                    peer.release(held).await;
                }
            }
            _ => {
                let mut done = String::from("done");
                // A try that the library has begun may end past its waiter's patience.
                let end = tokio::time::Instant::now() + PATIENCE + Duration::from_secs(5);
                for task in waiting.drain(..) {
                    if let Ok(Ok(Some(granted))) = tokio::time::timeout_at(end, task).await {
                        done.push_str(&format!(" {granted}"));
                    }
                }
                println!("{done}");
            }
        }
    }
}

/// Lets so many tasks take and release one lock for so many seconds. Returns how often they were granted it.
async fn load(peer: &impl Peer, name: &str, tasks: u32, seconds: u32) -> u32 {
    let end = Instant::now() + Duration::from_secs(seconds.into());
    let running: Vec<_> = (0..tasks)
        .map(|_| {
            let (peer, name) = (peer.clone(), name.to_owned());
            tokio::spawn(async move {
                let mut grants = 0;
                while Instant::now() < end {
                    if let Some(held) = peer.lock(&name).await {
                        grants += u32::from(Instant::now() < end);
                        peer.release(held).await;
                    }
                }
                grants
            })
        })
        .collect();
    let mut grants = 0;
    for task in running {
        // A try that the library has begun may end past its waiter's patience.
        let limit = tokio::time::Instant::from_std(end) + PATIENCE + Duration::from_secs(5);
        if let Ok(Ok(more)) = tokio::time::timeout_at(limit, task).await {
            grants += more;
        }
    }
    grants
}

/// Microseconds since 1970.
fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros())
}

/// How long a waiter waits at most.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The lease of every peer.
pub const LEASE: Duration = Duration::from_secs(30);
