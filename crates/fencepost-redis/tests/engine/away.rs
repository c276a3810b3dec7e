//! The server goes away under load, and comes back: with each policy for that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fencepost_core::{Client, Clock, ErrorKind};
use fencepost_degrade::Degrade;
use fencepost_testkit::checker::{Promises, check};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::history::{Mode, Patience, Recorder, What, boottime};
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis};
use fencepost_testkit::wait::all_along;
use tokio::task::JoinSet;

use crate::kit::{TRIES, registry};

const LEASE: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_millis(200);
/// The attempt limit of a client.
const ATTEMPT: Duration = Duration::from_secs(1);
/// So much later a call may return.
const LATE: Duration = Duration::from_millis(50);

/// The calls of one run.
#[derive(Default)]
struct Seen {
    done: AtomicBool,
    /// How much later than allowed a call returned at the most, in microseconds.
    late: AtomicU64,
    /// How late the machine was for a plain sleep meanwhile, and for one by the clock of a client, which its own thread drives.
    stalled: AtomicU64,
    clock_stalled: AtomicU64,
    grants: AtomicU64,
    degraded: AtomicU64,
    failed: AtomicU64,
}

impl Seen {
    fn is_done(&self) -> bool {
        self.done.load(Ordering::SeqCst)
    }
}

/// Notes by how much a sleep takes too long on this machine.
async fn measure(clock: Option<Clock>, seen: Arc<Seen>) {
    let span = Duration::from_millis(5);
    while !seen.is_done() {
        let start = Instant::now();
        match &clock {
            Some(clock) => clock.sleep_until(clock.now() + span).await,
            None => tokio::time::sleep(span).await,
        }
        let late = start.elapsed().saturating_sub(span).as_micros() as u64;
        let most = if clock.is_some() { &seen.clock_stalled } else { &seen.stalled };
        most.fetch_max(late, Ordering::SeqCst);
    }
}

/// Locks and releases until the run is done.
async fn work(locks: Client, number: u32, seen: Arc<Seen>, recorder: Recorder) {
    let resource: Arc<str> = "lock".into();
    let waits = [Duration::ZERO, Duration::from_millis(300), Duration::from_millis(1_500)];
    let mut turn = number as usize;
    while !seen.is_done() {
        turn += 1;
        let wait = waits[turn % waits.len()];
        let patience = Patience::Until(boottime() + wait.as_nanos() as u64);
        let key = recorder.asked_by(number, &resource, Mode::Exclusive, patience, LEASE.as_nanos() as u64);
        let start = Instant::now();
        let answer = locks.mutex(&resource).unwrap().lock().wait(wait).await;
        let late = start.elapsed().saturating_sub(wait.max(ATTEMPT)).as_micros() as u64;
        seen.late.fetch_max(late, Ordering::SeqCst);
        match answer {
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unreachable), "{error}");
                recorder.record(key, What::Failed);
                seen.failed.fetch_add(u64::from(error.is_unreachable()), Ordering::SeqCst);
            }
            Ok(guard) => {
                let granted =
                    What::Granted { token: guard.token().get(), until: guard.valid_until().as_nanos() };
                recorder.record(key, granted);
                seen.grants.fetch_add(1, Ordering::SeqCst);
                seen.degraded.fetch_add(u64::from(guard.degraded().is_some()), Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(2)).await;
                recorder.record(key, What::ReleaseBegan);
                let sure = guard.release().await.is_ok();
                recorder.record(key, What::Released { sure });
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until more grants are there, of those that `which` counts.
async fn more(seen: &Seen, which: fn(&Seen) -> &AtomicU64) {
    let before = which(seen).load(Ordering::SeqCst);
    crate::kit::eventually("the load goes on", async || which(seen).load(Ordering::SeqCst) > before + 10)
        .await;
}

/// One policy, and a server that is killed or stopped. Returns whether no call was late, which a busy machine does not always show.
async fn run(name: &'static str, hangs: bool) -> bool {
    let mut primary = Redis::start(&Config::new().durable()).unwrap();
    let fallback = Redis::start(&Config::new()).unwrap();
    let degrade = match name {
        "fallback" => Degrade::fallback(&fallback.url()).max_ttl(LEASE),
        "local" => Degrade::local_only(),
        "open" => Degrade::fail_open(),
        _ => Degrade::fail_closed(),
    };
    let degrade = degrade.probe_interval(INTERVAL);
    let (seen, recorder) = (Arc::new(Seen::default()), Recorder::new(0, boottime));
    let mut tasks = JoinSet::new();
    let mut clients = Vec::new();
    for number in 1..=2 {
        let builder = Client::builder().ttl(LEASE).attempt_timeout(ATTEMPT).layer(degrade.clone());
        let locks = builder.connect(&registry(), &primary.url()).await.unwrap();
        for _ in 0..2 {
            tasks.spawn(work(locks.clone(), number, Arc::clone(&seen), recorder.clone()));
        }
        tasks.spawn(measure(Some(locks.runtime().clock().clone()), Arc::clone(&seen)));
        clients.push(locks);
    }
    tasks.spawn(measure(None, Arc::clone(&seen)));
    more(&seen, |seen| &seen.grants).await;
    if hangs {
        primary.stop().unwrap()
    } else {
        primary.kill().unwrap()
    }
    // With the default policy nobody is granted anything.
    more(&seen, if name == "closed" { |seen| &seen.failed } else { |seen| &seen.degraded }).await;
    if hangs {
        primary.cont().unwrap()
    } else {
        primary.restart().unwrap()
    }
    for locks in &clients {
        // The engine grants again.
        crate::kit::eventually("it is back", async || {
            let name = format!("other {}", seen.grants.load(Ordering::SeqCst));
            let guard = locks.mutex(&name).unwrap().lock().wait(ATTEMPT).await;
            guard.is_ok_and(|guard| guard.degraded().is_none())
        })
        .await;
    }
    more(&seen, |seen| &seen.grants).await;
    seen.done.store(true, Ordering::SeqCst);
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let [late, stalled, clock_stalled] = [&seen.late, &seen.stalled, &seen.clock_stalled]
        .map(|micros| Duration::from_micros(micros.load(Ordering::SeqCst)));
    let stalled = stalled + clock_stalled;
    println!("{name}: late {late:?}, stalled {stalled:?}, {} grants", seen.grants.load(Ordering::SeqCst));
    if matches!(name, "fallback" | "closed") {
        let findings = check(&recorder.history(), &Promises { complete: false, ..Promises::default() });
        assert!(findings.is_empty(), "{name}: {findings:#?}");
    }
    for locks in clients {
        locks.close().await;
    }
    late <= LATE + stalled
}

async fn all(hangs: bool) {
    let mut runs = JoinSet::new();
    for name in ["closed", "local", "open", "fallback"] {
        runs.spawn(async move {
            for _ in 0..TRIES {
                if run(name, hangs).await {
                    return;
                }
            }
            panic!("{name}: a call was late in each of {TRIES} runs");
        });
    }
    while let Some(run) = runs.join_next().await {
        run.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_under_load() {
    needs!(REDIS);
    all(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_under_load() {
    needs!(REDIS);
    all(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_starts_while_the_server_is_away() {
    needs!(REDIS);
    for _ in 0..TRIES {
        if start_while_the_server_is_away().await {
            return;
        }
    }
    panic!("a lease of {LEASE:?} ended in each of {TRIES} runs");
}

/// Returns whether the lease was renewed all the time, for which a busy machine may be too slow.
async fn start_while_the_server_is_away() -> bool {
    let (mut primary, fallback) =
        (Redis::start(&Config::new()).unwrap(), Redis::start(&Config::new()).unwrap());
    let (url, name) = (primary.url(), "lock");
    primary.kill().unwrap();
    let connect = async |degrade: Degrade| {
        let builder = Client::builder().ttl(LEASE).layer(degrade.probe_interval(INTERVAL));
        builder.connect(&registry(), &url).await
    };
    assert!(connect(Degrade::fail_closed()).await.unwrap_err().is_unreachable());
    let open = connect(Degrade::fail_open()).await.unwrap();
    let began = Instant::now();
    let second = connect(Degrade::fallback(&fallback.url()).max_ttl(LEASE)).await.unwrap();
    assert!(open.mutex(name).unwrap().try_lock().await.unwrap().unwrap().degraded().is_some());
    match second.mutex(name).unwrap().try_lock().await {
        Err(early) => {
            assert!(early.is_unreachable() && early.to_string().contains("old leases"), "{early}");
        }
        Ok(_) => assert!(began.elapsed() >= LEASE, "old leases may be valid"),
    }
    let guard = second.mutex(name).unwrap().lock().await.unwrap();
    assert!(guard.degraded().is_some());
    primary.restart().unwrap();
    crate::kit::eventually("the guard rests on both", async || {
        guard.degraded().is_none() || guard.ensure_held().is_err()
    })
    .await;
    let other = connect(Degrade::fail_closed()).await.unwrap();
    let busy = other.mutex(name).unwrap().try_lock().await.unwrap();
    assert!(busy.is_none() || guard.ensure_held().is_err(), "it is held at the primary as well");
    drop(busy);
    let mut is_held = true;
    all_along(3 * LEASE, async || is_held &= guard.ensure_held().is_ok()).await;
    let released = guard.release().await;
    assert!(open.mutex(name).unwrap().lock().await.unwrap().degraded().is_none());
    is_held && released.is_ok()
}
