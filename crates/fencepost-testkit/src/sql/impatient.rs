//! Many callers that give up after a few milliseconds.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fencepost_core::{Client, Guard, Registry, Result};

use crate::server::Proxy;
use crate::wait::eventually;

/// The time limit for events that should happen at once, on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// How many tasks make requests.
const TASKS: u64 = 16;

/// The time after which the requests of a task count as hung.
const PATIENCE: Duration = Duration::from_secs(180);

/// How many connections a client has at most.
const CONNECTIONS: usize = 16;

/// How many locks are held in the second round.
const NAMES: u64 = 8;

/// How many requests a task makes for a lock that is held.
const REQUESTS: u64 = 125;

/// How many requests a task makes for a lock that is often free.
const BUSY_REQUESTS: u64 = 25;

/// Makes 2,000 requests for a lock that is held, in 16 tasks. Each gives up after 1 to 5 ms: by its waiting time, or dropped by its
/// caller. Then it makes as many for 8 locks. Returns how many connections the client opened for each, less those that it may have closed
/// because nobody used them for `unused`. Then it makes such requests for a lock that is often free.
///
/// # Panics
/// Panics if a request leaves something behind that keeps others from a lock.
pub async fn impatient_callers(
    registry: &Registry,
    address: SocketAddr,
    url: impl Fn(SocketAddr) -> String,
    unused: Duration,
) -> [usize; 2] {
    let proxy = Proxy::start(address).expect("it listens");
    let connect = async |address| {
        let client = Client::builder().attempt_timeout(SOON).connect(registry, &url(address)).await;
        client.expect("it answers")
    };
    let (client, other) = (connect(proxy.address()).await, connect(address).await);
    let mut opened = Vec::new();
    for names in [1, NAMES] {
        let names: Vec<String> = (0..names).map(|number| format!("held/{names}/{number}")).collect();
        let mut held = Vec::new();
        for name in &names {
            held.push(other.mutex(name).expect("a good name").lock().await.expect("it is free"));
        }
        let (before, began) = (proxy.passed(), Instant::now());
        finish(storm(&client, &names, REQUESTS)).await;
        let closed = CONNECTIONS * began.elapsed().div_duration_f64(unused) as usize;
        opened.push((proxy.passed() - before).saturating_sub(closed));
        for guard in held {
            guard.release().await.expect("it was held");
        }
        for name in &names {
            nothing_is_left(&client, &other, name).await;
        }
    }

    // A grant that nobody takes is released.
    let busy = other.mutex("busy").expect("a good name");
    let cycle = async || {
        let guard = tokio::time::timeout(SOON, busy.lock().into_future()).await.expect("it is released");
        guard.expect("it answers").release().await.expect("it was held");
    };
    let mut tasks = storm(&client, &["busy".to_owned()], BUSY_REQUESTS);
    while tasks.iter().any(|task| !task.is_finished()) {
        cycle().await;
    }
    finish(std::mem::take(&mut tasks)).await;
    nothing_is_left(&client, &other, "busy").await;
    client.close().await;
    other.close().await;
    [opened[0], opened[1]]
}

type Task = tokio::task::JoinHandle<()>;

fn storm(client: &Client, names: &[String], requests: u64) -> Vec<Task> {
    let tasks = (0..TASKS).zip(names.iter().cycle());
    tasks.map(|(task, name)| tokio::spawn(impatient(client.clone(), name.clone(), task, requests))).collect()
}

async fn finish(tasks: Vec<Task>) {
    for task in tasks {
        tokio::time::timeout(PATIENCE, task).await.expect("it gives up").expect("no panic");
    }
}

async fn impatient(client: Client, name: String, task: u64, requests: u64) {
    let mutex = client.mutex(&name).expect("a good name");
    for number in 0..requests {
        let moment = Duration::from_micros(1_000 + (number * 617 + task * 251) % 4_000);
        let outcome: Option<Result<Guard>> = match number % 3 {
            0 => Some(mutex.lock().wait(moment).await),
            1 => tokio::time::timeout(moment, mutex.lock().into_future()).await.ok(),
            _ => tokio::time::timeout(moment / 4, mutex.lock().into_future()).await.ok(),
        };
        match outcome {
            Some(Ok(guard)) => drop(guard),
            Some(Err(error)) => assert!(error.is_timeout(), "{error}"),
            None => {}
        }
    }
}

async fn nothing_is_left(client: &Client, other: &Client, name: &str) {
    eventually(SOON, "all requests are withdrawn", || async { client.backlog() == 0 }).await;
    // The last wait may be granted while it is interrupted. Its connection ends then.
    let free = other.mutex(name).expect("a good name").lock().wait(SOON).await;
    free.expect("nothing is left of the requests").release().await.expect("it was held");
}
