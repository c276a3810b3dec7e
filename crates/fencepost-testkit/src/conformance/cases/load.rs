//! Many claims at once, and networks with faults.

use crate::chaos::Odds;
use crate::checker::{Promises, check};
use crate::conformance::Stage;
use crate::conformance::stage::{LONG, SHORT, SOON, lock};
use crate::history::{Mode, Patience, What};
use crate::sim::Rng;
use crate::wait::Stalls;
use crate::witness::on_behalf;
use fencepost_core::{Client, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const X: Mode = Mode::Exclusive;

/// Runs tasks that read a number, yield, and write it back plus one. The count is exact only if they exclude
/// each other.
async fn count(clients: Vec<Client>, tasks: u32, rounds: u32) {
    let number = Arc::new(AtomicU32::new(0));
    let mut running = Vec::new();
    for task in 0..tasks {
        let (locks, number) = (clients[task as usize % clients.len()].clone(), number.clone());
        running.push(tokio::spawn(async move {
            for _ in 0..rounds {
                let guard = lock(&locks, "counter", X).await.expect("it comes");
                let read = number.load(Ordering::SeqCst);
                tokio::task::yield_now().await;
                number.store(read + 1, Ordering::SeqCst);
                guard.release().await.expect("it was held");
            }
        }));
    }
    for task in running {
        task.await.expect("no task panics");
    }
    assert_eq!(number.load(Ordering::SeqCst), tasks * rounds, "two held the lock at once");
}

pub(super) async fn counter(stage: Stage) {
    let clients = vec![stage.client().await, stage.client().await];
    count(clients, 100, 3).await;
}

pub(super) async fn many_locks(stage: Stage) {
    let ttl = Duration::from_secs(3).max(stage.client().await.capabilities().min_ttl);
    let client = stage.client_of(ttl).await;
    let mut stalls = Stalls::default();
    while stalls.spoilt(are_renewed(&client, ttl).await) {}
}

async fn are_renewed(client: &Client, ttl: Duration) -> Result<()> {
    let mut guards = Vec::new();
    for number in 0..100 {
        guards.push(lock(client, &format!("many/{number}"), X).await.expect("it is free"));
    }
    // Longer than a lease: all of them depend on renewal.
    tokio::time::sleep(ttl + ttl / 3).await;
    for guard in &guards {
        guard.ensure_held()?;
    }
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}

pub(super) async fn lost_replies(stage: Stage) {
    let odds = Odds { lost_reply: 300, lost_request: 100, ..Odds::NONE };
    let client = stage.troubled(odds, LONG).await;
    for round in 0..30 {
        let guard = lock(&client, "lock", X).await.expect("what was lost is asked again");
        guard.ensure_held().expect("it is held");
        stage.assert_held(&guard).await;
        match round % 2 {
            0 => guard.release().await.expect("a repeated release finds that it was the first"),
            _ => drop(guard),
        }
        stage.assert_free("lock").await;
    }
}

pub(super) async fn repeated_requests(stage: Stage) {
    // Each request is sent twice. When the second copy arrives, another claim may hold the lock.
    let odds = Odds { repeated: 1000, delay: Duration::from_millis(10), ..Odds::NONE };
    let (one, two) = (stage.troubled(odds, LONG).await, stage.client().await);
    for _ in 0..10 {
        let guard = lock(&one, "lock", X).await.expect("it is free");
        let release = guard.release();
        let take = async {
            let guard = lock(&two, "lock", X).await.expect("it comes");
            // The repeated release of the other one has arrived by now.
            tokio::time::sleep(Duration::from_millis(15)).await;
            guard.ensure_held().expect("it is held");
            stage.assert_held(&guard).await;
            guard.release().await.expect("a repeated release took it away");
        };
        // The second release may or may not find its own grant. It must not free ours.
        let (_, ()) = tokio::join!(release, take);
    }
}

pub(super) async fn a_bad_network(stage: Stage) {
    let odds = Odds { delay: Duration::from_millis(20), ..Odds::BAD };
    let clients = vec![stage.troubled(odds, LONG).await, stage.troubled(odds, LONG).await];
    count(clients, 10, 5).await;
}

/// Runs a random workload in all modes that the engine has, and checks its history.
pub(super) async fn mixed_history(stage: Stage) {
    let mut rng = Rng::new(11);
    let mut running = Vec::new();
    let capabilities = stage.client().await.capabilities().clone();
    let granted = Arc::new(AtomicU32::new(0));
    for client in 0..3 {
        let locks = stage.hasty(SHORT.max(capabilities.min_ttl) * 10).await;
        for _ in 0..3 {
            let work = work(stage.clone(), client, locks.clone(), rng.fork(), Arc::clone(&granted));
            running.push(tokio::spawn(work));
        }
    }
    for task in running {
        tokio::time::timeout(8 * SOON, task).await.expect("everybody gets a turn").expect("no task panics");
    }
    let promises = Promises {
        fair: capabilities.fair && capabilities.fair_permits,
        ordered_tokens: stage.namespace().ordered_tokens(),
        arrivals_seen: stage.namespace().arrivals_seen(),
        linger: Duration::from_secs(1),
        bound: Some(SOON),
        prompt: Some(SOON),
        ..Promises::default()
    };
    let history = stage.recorder().history();
    let findings = check(&history, &promises);
    let excerpt = || findings.first().map(|first| history.excerpt(first.position)).unwrap_or_default();
    assert!(findings.is_empty(), "{findings:#?}\n{}", excerpt());
    let granted = history.events().iter().filter(|event| matches!(event.what, What::Granted { .. })).count();
    assert!(granted > FEW, "only {granted} grants: nothing was proved");
}

/// So few grants in [`mixed_history`] prove nothing.
const FEW: usize = 10;

/// How many requests with short timeouts each task makes.
const REQUESTS: u32 = 25;

/// Makes requests until each task has made [`REQUESTS`]. On a slow machine few of those are granted: then the task goes on, with longer
/// timeouts, until all tasks together have seen more than [`FEW`] grants.
async fn work(stage: Stage, client: u32, locks: Client, mut rng: Rng, all_granted: Arc<AtomicU32>) {
    let recorder = stage.recorder();
    let capabilities = locks.capabilities().clone();
    let start = Instant::now();
    for request in 0.. {
        let is_proved = all_granted.load(Ordering::SeqCst) as usize > FEW;
        if request >= REQUESTS && (is_proved || start.elapsed() > 4 * SOON) {
            break;
        }
        let (name, mode): (Arc<str>, _) = match rng.below(4) {
            0 if capabilities.shared => ("readers".into(), Mode::Shared),
            1 if capabilities.shared => ("readers".into(), X),
            2 if capabilities.permits => {
                ("permits".into(), Mode::Permits { n: 1 + rng.below(2) as u32, of: 3 })
            }
            _ => ("mutex".into(), X),
        };
        let wait = Duration::from_millis(rng.below(40 << (request / REQUESTS).min(6)));
        let tries = rng.chance(300);
        let ttl = 10 * SHORT.max(capabilities.min_ttl).as_nanos() as u64;
        let patience = match tries {
            true => Patience::Try,
            false => Patience::Until(recorder.now() + wait.as_nanos() as u64),
        };
        let unfair = capabilities.barging && rng.chance(100);
        let key = recorder.asked_by(client, &name, mode, patience, ttl);
        if unfair {
            recorder.record(key, What::Unfair);
        }
        macro_rules! ask {
            ($lock:expr, $wait:ident, $tries:ident, ($($n:expr)?)) => {{
                let lock = $lock.expect("a good name");
                if tries {
                    let request = lock.$tries($($n)?);
                    let request = if unfair { request.unfair() } else { request };
                    on_behalf(key, request.into_future()).await
                } else {
                    let request = lock.$wait($($n)?).wait(wait);
                    let request = if unfair { request.unfair() } else { request };
                    on_behalf(key, request.into_future()).await.map(Some)
                }
            }};
        }
        let answer = match mode {
            Mode::Exclusive => ask!(locks.mutex(&name), lock, try_lock, ()),
            Mode::Shared => ask!(locks.rwlock(&name), read, try_read, ()),
            Mode::Permits { n, of } => ask!(locks.semaphore(&name, of), acquire_many, try_acquire_many, (n)),
        };
        let guard = match answer {
            Ok(Some(guard)) => guard,
            Ok(None) => {
                recorder.record(key, What::Busy);
                continue;
            }
            Err(error) if error.is_timeout() => {
                recorder.record(key, What::TimedOut);
                continue;
            }
            Err(error) => {
                // On a machine that stalls, the nodes of a quorum are silent for longer than it waits for
                // them.
                assert!(error.is_unreachable(), "{error}");
                recorder.record(key, What::Failed);
                continue;
            }
        };
        let granted = What::Granted { token: guard.token().get(), until: guard.valid_until().as_nanos() };
        recorder.record(key, granted);
        all_granted.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(rng.below(4))).await;
        if !recorder.ensured(key, || guard.ensure_held().is_ok().then(|| guard.valid_until().as_nanos())) {
            recorder.record(key, What::Lost);
            continue;
        }
        recorder.record(key, What::ReleaseBegan);
        let sure = guard.release().await.is_ok();
        recorder.record(key, What::Released { sure });
    }
}

pub(super) async fn close_leaves_nothing(stage: Stage) {
    let client = stage.client().await;
    let guard = lock(&client, "held", X).await.expect("it is free");
    let other = lock(&client, "dropped", X).await.expect("it is free");
    drop(other);
    let waiting = stage.stand("held", X).await;
    guard.release().await.expect("it was held");
    waiting.granted().await.release().await.expect("it was held");
    tokio::time::timeout(SOON, client.close()).await.expect("a client closes soon");
    let error = lock(&client, "held", X).await.expect_err("the client is closed");
    assert!(error.is_closed(), "{error}");
    stage.assert_free("held").await;
    stage.assert_free("dropped").await;
}

/// Checks that the search for leftovers at the end of each case sees what is held. A search that saw nothing
/// would pass everything.
pub(super) async fn what_is_held_is_seen_at_the_engine(stage: Stage) {
    let client = stage.client().await;
    let guard = lock(&client, "lock", X).await.expect("it is free");
    let seen = async || stage.namespace().leftovers().await.is_none_or(|left| !left.is_empty());
    assert!(seen().await, "a lock that was free");
    let waiting = stage.stand("lock", X).await;
    guard.release().await.expect("it was held");
    let guard = waiting.granted().await;
    assert!(seen().await, "a lock that was handed on");
    guard.release().await.expect("it was held");
}
