//! The metrics and events of docs/metrics.md.

#[path = "metrics/events.rs"]
mod events;
#[path = "metrics/page.rs"]
mod page;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use events::{Events, Seen};
use fencepost_core::testing::{TestClock, TestEngine, client};
use fencepost_core::{Client, ErrorKind, Eviction, Loss, Result};
use fencepost_degrade::Degrade;
use metrics_util::MetricKind;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

const TTL: Duration = Duration::from_secs(30);

/// Runs `story` on the memory engine. Returns the metrics that it left and the events that it told.
fn told<F: Future<Output = Result<()>>>(
    story: impl FnOnce(Client, TestClock, TestEngine) -> F,
) -> (Metrics, Vec<Seen>) {
    let recorder = DebuggingRecorder::new();
    let events = Events::default();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    // Both are those of this thread alone, and the client's tasks run on it.
    metrics::with_local_recorder(&recorder, || {
        tracing::subscriber::with_default(events.clone(), || {
            runtime.block_on(async {
                let (locks, clock, engine) = client();
                story(locks, clock, engine).await.unwrap();
            });
        });
    });
    (Metrics::of(&recorder.snapshotter()), events.take())
}

/// The values of all metrics. A key is the name and the values of the labels but the engine's, which is `memory`.
#[derive(Default)]
struct Metrics {
    counts: BTreeMap<String, u64>,
    gauges: BTreeMap<String, f64>,
    seconds: BTreeMap<String, Vec<f64>>,
    rows: BTreeSet<page::Metric>,
}

impl Metrics {
    fn of(snapshotter: &Snapshotter) -> Metrics {
        let mut metrics = Metrics::default();
        for (key, unit, description, value) in snapshotter.snapshot().into_vec() {
            let (kind, key) = key.into_parts();
            let mut full = key.name().to_owned();
            for label in key.labels() {
                match label.key() {
                    "engine" => assert_eq!(label.value(), "memory"),
                    _ => full = format!("{full} {}", label.value()),
                }
            }
            assert!(description.is_some(), "{full} is not described");
            let kind = match kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
                MetricKind::Histogram => "histogram",
            };
            metrics.rows.insert(page::Metric {
                name: key.name().to_owned(),
                kind: kind.to_owned(),
                unit: unit.map_or(String::new(), |unit| unit.as_str().to_owned()),
                labels: key.labels().map(|label| label.key().to_owned()).collect(),
            });
            match value {
                DebugValue::Counter(count) => drop(metrics.counts.insert(full, count)),
                DebugValue::Gauge(value) => drop(metrics.gauges.insert(full, value.into_inner())),
                DebugValue::Histogram(values) => {
                    let values = values.into_iter().map(|value| value.into_inner()).collect();
                    metrics.seconds.insert(full, values);
                }
            }
        }
        metrics
    }

    /// Compares all counters.
    fn counted(&self, expected: &[(&str, u64)]) {
        let expected = expected.iter().map(|(name, count)| (format!("fencepost_{name}"), *count));
        assert_eq!(self.counts, expected.collect());
    }
}

/// Each outcome, each kind of release, each way to lose a lock, a renewal that fails.
async fn everything(locks: Client, clock: TestClock, engine: TestEngine) -> Result<()> {
    let mutex = locks.mutex("a")?;
    // Granted, held for 7 s while others ask for it, released.
    let guard = mutex.lock().await?;
    clock.advance(Duration::from_secs(5)).await;
    assert!(mutex.try_lock().await?.is_none());
    let (waiter, ()) =
        tokio::join!(mutex.lock().wait(Duration::from_secs(2)), clock.advance(Duration::from_secs(2)));
    assert!(waiter.unwrap_err().is_timeout());
    guard.release().await?;
    // Waited for, and dropped.
    let other = engine.busy("a").await?;
    let (guard, released) = tokio::join!(mutex.lock(), async {
        clock.advance(Duration::from_secs(3)).await;
        other.release().await
    });
    released?;
    drop(guard?);
    // Detached, attached, released.
    let lease = mutex.lock().await?.detach().await?;
    locks.attach(&lease).await?.release().await?;
    // Evicted, and nobody looks.
    let guard = mutex.lock().await?;
    locks.evict("a", guard.token(), &Eviction::default()).await?;
    drop(guard);
    // Deleted, and found by its holder.
    let guard = mutex.lock().await?;
    assert_eq!(engine.lose("a"), 1);
    assert_eq!(guard.lost().await, Loss::Deleted);
    assert!(guard.release().await.unwrap_err().is_lost());
    // Renewed in vain until the lease ends, and found by the renewer.
    let guard = mutex.lock().ttl(TTL).await?;
    engine.fail("a", ErrorKind::Unreachable);
    clock.advance(TTL).await;
    engine.heal("a");
    drop(guard);
    // Not renewed, and released too late.
    let guard = mutex.lock().ttl(TTL).no_renewal().await?;
    clock.jump(TTL);
    assert!(guard.release().await.unwrap_err().is_lost());
    // Not renewed, and dropped too late.
    let guard = mutex.lock().ttl(TTL).no_renewal().await?;
    clock.jump(TTL);
    drop(guard);
    // An engine that fails for good.
    engine.fail("a", ErrorKind::Denied);
    assert!(mutex.try_lock().await.is_err());
    engine.heal("a");
    std::mem::forget(mutex.lock().await?);
    Ok(())
}

#[test]
fn a_story_counts_each_outcome_once() {
    let (metrics, events) = told(everything);
    let renewals = events.iter().filter(|event| event.name.starts_with("lock renewal failed")).count() as u64;
    assert!(renewals > 2, "the renewer tries again");
    metrics.counted(&[
        // Ten of the client under test, one of another program.
        ("acquisitions_total attached", 1),
        ("acquisitions_total busy", 1),
        ("acquisitions_total error", 1),
        ("acquisitions_total granted", 10),
        ("acquisitions_total timeout", 1),
        ("losses_total deleted", 1),
        ("losses_total evicted", 1),
        ("losses_total expired", 3),
        ("releases_total detach", 1),
        ("releases_total drop", 1),
        ("releases_total release", 3),
        ("renewal_failures_total", renewals),
    ]);
    assert_eq!(metrics.gauges["fencepost_held"], 1.0, "the guard that was forgotten");
    assert_eq!(metrics.seconds["fencepost_wait_seconds"].len(), 13, "one for each acquisition");
    let holds = &metrics.seconds["fencepost_hold_seconds"];
    assert_eq!(holds.len(), 10, "one for each release and loss");
    assert_eq!((holds[0], holds[1]), (7.0, 3.0));
}

#[test]
fn a_loss_is_told_when_it_happens() {
    for lose in [0, 1, 2] {
        let (metrics, events) = told(|locks, clock, engine| async move {
            let guard = locks.mutex("a")?.lock().ttl(TTL).await?;
            match lose {
                0 => assert_eq!(engine.lose("a"), 1),
                1 => {
                    let why = Eviction::default().because("too slow");
                    locks.evict("a", guard.token(), &why).await?;
                }
                _ => {
                    engine.slow("a", Duration::MAX);
                    clock.advance(TTL).await;
                }
            }
            std::mem::forget(guard);
            Ok(())
        });
        let why = ["deleted", "evicted", "expired"][lose];
        let loss = format!("losses_total {why}");
        let expected = [("acquisitions_total granted", 1), (&*loss, 1), ("renewal_failures_total", 1)];
        metrics.counted(if lose == 2 { &expected } else { &expected[..2] });
        assert_eq!(metrics.gauges["fencepost_held"], 0.0);
        let lost: Vec<_> = events.iter().filter(|event| event.name == "lock lost").collect();
        assert_eq!(lost.len(), 1, "{lost:?}");
        assert_eq!(
            (lost[0].value("lock"), lost[0].value("why"), lost[0].value("engine")),
            ("a", why, "memory")
        );
    }
}

#[test]
fn a_release_that_the_engine_knows_nothing_of_is_a_loss() {
    let (metrics, _) = told(|locks, _, engine| async move {
        let guard = locks.mutex("a")?.lock().await?;
        let release = guard.release();
        engine.lose("a");
        assert!(release.await.unwrap_err().is_lost());
        Ok(())
    });
    metrics.counted(&[("acquisitions_total granted", 1), ("losses_total deleted", 1)]);
}

#[test]
fn a_release_that_is_given_up_is_a_drop() {
    let (metrics, _) = told(|locks, clock, engine| async move {
        let guard = locks.mutex("a")?.lock().await?;
        engine.slow("a", Duration::from_secs(1));
        tokio::select! {
            biased;
            _ = guard.release() => panic!("the engine is slow"),
            () = std::future::ready(()) => {}
        }
        clock.advance(Duration::from_secs(2)).await;
        Ok(())
    });
    metrics.counted(&[("acquisitions_total granted", 1), ("releases_total drop", 1)]);
    assert_eq!(metrics.gauges["fencepost_held"], 0.0);
}

/// A grant while the engine is away, and its return.
async fn an_outage(locks: Client, clock: TestClock, engine: TestEngine) -> Result<()> {
    let builder = Client::builder().runtime(locks.runtime().clone()).layer(Degrade::fail_open());
    let degraded = builder.open(|_| Ok(engine.backend()))?;
    engine.fail_all(ErrorKind::Unreachable);
    let mutex = degraded.mutex("b")?;
    let (guard, ()) =
        tokio::join!(mutex.lock().wait(5 * Degrade::PROBE_INTERVAL), clock.advance(Degrade::PROBE_INTERVAL));
    guard?.release().await?;
    engine.heal_all();
    clock.advance(Degrade::PROBE_INTERVAL).await;
    mutex.lock().await?.release().await
}

/// A holder that a claim evicts, because it is overdue.
async fn an_eviction(locks: Client, clock: TestClock, engine: TestEngine) -> Result<()> {
    let limit = Duration::from_millis(1);
    let builder = Client::builder().runtime(locks.runtime().clone()).max_hold_hint(limit);
    let hangs = builder.open(|_| Ok(engine.backend()))?;
    let guard = hangs.mutex("c")?.lock().await?;
    let mutex = locks.mutex("c")?;
    let (next, ()) = tokio::join!(mutex.lock().evict_overdue(), async {
        clock.advance(Duration::from_secs(5)).await;
        assert_eq!(guard.lost().await, Loss::Evicted);
        drop(guard);
    });
    next?.release().await
}

#[test]
fn an_outage_is_counted() {
    let (metrics, _) = told(an_outage);
    assert_eq!(metrics.counts["fencepost_degraded_grants_total fail_open"], 1);
    assert_eq!(metrics.gauges["fencepost_degraded fail_open"], 0.0, "the engine is back");
    for way in ["away", "back"] {
        let switches: u64 =
            metrics.counts.iter().filter(|(key, _)| is_switch(key, way)).map(|(_, count)| count).sum();
        assert_eq!(switches, 1, "{way}: {:?}", metrics.counts);
    }
}

fn is_switch(key: &str, way: &str) -> bool {
    key.starts_with("fencepost_switches_total ") && key.split(' ').any(|label| label == way)
}

#[test]
fn the_page_lists_what_the_code_tells() {
    let (mut metrics, mut events) = told(everything);
    for (more, told) in [told(an_outage), told(an_eviction)] {
        metrics.rows.extend(more.rows);
        events.extend(told);
    }
    let page = page::read();
    assert_eq!(metrics.rows, page.metrics);
    let told: BTreeSet<_> = events.into_iter().map(|event| event.row()).collect();
    // The memory engine has no session of its own, and denies no eviction.
    let of_others =
        |event: &page::Event| event.name.starts_with("session") || event.name == "lock holder not evicted";
    let (others, locks): (BTreeSet<_>, BTreeSet<_>) = page.events.into_iter().partition(of_others);
    assert_eq!(told, locks);
    assert_eq!(page::names_in_code(), page.metrics.iter().map(|row| row.name.clone()).collect());
    let names = locks.iter().chain(&others).map(|row| row.name.clone()).collect();
    assert_eq!(page::messages_in_code(), names);
}
