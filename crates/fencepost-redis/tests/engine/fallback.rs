//! Two engines, of which the second stands in for a server that is killed and restarted under load. No two hold, and tokens grow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fencepost_core::{Client, Degraded, Registry};
use fencepost_degrade::Degrade;
use fencepost_testkit::checker::{Promises, check};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::history::{Mode, Patience, Recorder, What, boottime};
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis};
use fencepost_testkit::server::TempDir;
use fencepost_testkit::sim::Rng;

use crate::kit::registry;

const LEASE: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_millis(200);
/// Far longer than grants take on a busy machine.
const SOON: Duration = Duration::from_secs(60);
/// How long the one engine waits for the leases of the other.
const SWITCH: Duration = Duration::from_millis(1_200);

/// The state of the load, which its workers share.
struct Load {
    recorder: Recorder,
    ends: AtomicBool,
    /// How many grants there were of the fallback alone, and of the primary since its last return.
    fallback: AtomicU32,
    primary: AtomicU32,
}

impl Load {
    /// Locks, holds for a time, and releases, until the load ends.
    async fn work(self: Arc<Self>, client: u32, locks: Client, mut rng: Rng) {
        let resource: Arc<str> = "lock".into();
        let mutex = locks.mutex(&resource).unwrap();
        while !self.ends.load(Ordering::SeqCst) {
            let wait = LEASE / 4;
            let until = self.recorder.now() + wait.as_nanos() as u64;
            let (patience, ttl) = (Patience::Until(until), LEASE.as_nanos() as u64);
            let key = self.recorder.asked_by(client, &resource, Mode::Exclusive, patience, ttl);
            let guard = match mutex.lock().wait(wait).await {
                Ok(guard) => guard,
                Err(error) if error.is_timeout() => {
                    self.recorder.record(key, What::TimedOut);
                    continue;
                }
                Err(error) => {
                    assert!(error.is_unreachable(), "{error}");
                    self.recorder.record(key, What::Failed);
                    continue;
                }
            };
            let (token, until) = (guard.token().get(), guard.valid_until().as_nanos());
            self.recorder.record(key, What::Granted { token, until });
            match guard.degraded() {
                Some(Degraded::Fallback) => &self.fallback,
                _ => &self.primary,
            }
            .fetch_add(1, Ordering::SeqCst);
            // Some grants last over a switch, and longer than a lease.
            let turns = if rng.chance(50) { 150 } else { 1 };
            let mut held = true;
            for _ in 0..turns {
                tokio::time::sleep(Duration::from_millis(rng.below(20))).await;
                let ask = || guard.ensure_held().is_ok().then(|| guard.valid_until().as_nanos());
                held = self.recorder.ensured(key, ask);
                if !held {
                    break;
                }
            }
            if !held {
                self.recorder.record(key, What::Lost);
                continue;
            }
            self.recorder.record(key, What::ReleaseBegan);
            let sure = guard.release().await.is_ok();
            self.recorder.record(key, What::Released { sure });
        }
    }

    /// Waits until so many more grants have been made.
    async fn grants(&self, count: &AtomicU32, more: u32, what: &str) {
        let goal = count.load(Ordering::SeqCst) + more;
        let limit = Instant::now() + SOON;
        while count.load(Ordering::SeqCst) < goal {
            assert!(Instant::now() < limit, "no grants of {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Kills and restarts the primary while clients that have the fallback use the lock.
async fn hold_over_switches(mut primary: Redis, registry: &Registry, fallback: &str) {
    let load = Load {
        recorder: Recorder::new(0, boottime),
        ends: AtomicBool::new(false),
        fallback: AtomicU32::new(0),
        primary: AtomicU32::new(0),
    };
    let (load, mut rng) = (Arc::new(load), Rng::new(7));
    let (mut clients, mut workers) = (Vec::new(), Vec::new());
    for number in 0..3 {
        let degrade = Degrade::fallback(fallback).max_ttl(LEASE).probe_interval(INTERVAL);
        let builder = Client::builder().ttl(LEASE).attempt_timeout(INTERVAL).layer(degrade);
        let locks = builder.connect(registry, &primary.url()).await.unwrap();
        for _ in 0..2 {
            let work = Arc::clone(&load).work(number, locks.clone(), rng.fork());
            workers.push(tokio::spawn(work));
        }
        clients.push(locks);
    }
    load.grants(&load.primary, 5, "the primary").await;
    for last in [false, true] {
        primary.kill().unwrap();
        load.grants(&load.fallback, 20, "the fallback").await;
        primary.restart().unwrap();
        load.grants(&load.primary, 20, "the primary").await;
        if !last {
            // Until the primary decides alone, which nobody is told. The last clients leave before that.
            tokio::time::sleep(SWITCH).await;
        }
    }
    load.ends.store(true, Ordering::SeqCst);
    for worker in workers {
        worker.await.expect("no worker fails");
    }
    for locks in clients {
        locks.close().await;
    }
    let promises = Promises { linger: LEASE, ..Promises::default() };
    let findings = check(&load.recorder.history(), &promises);
    assert!(findings.is_empty(), "{findings:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_stands_in_for_a_server() {
    needs!(REDIS);
    let folder = TempDir::new("fallback").unwrap();
    let registry = registry().with("sqlite", fencepost_sqlite::open);
    let fallback = format!("sqlite:{}", folder.path().join("locks.db").display());
    let primary = Redis::start(&Config::new().durable()).unwrap();
    hold_over_switches(primary, &registry, &fallback).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_stands_in_for_another() {
    needs!(REDIS);
    let fallback = Redis::start(&Config::new()).unwrap();
    let primary = Redis::start(&Config::new().durable()).unwrap();
    hold_over_switches(primary, &registry(), &fallback.url()).await;
}
