//! The counters of the feature `metrics`.

use std::collections::BTreeMap;
use std::time::Duration;

use fencepost_core::{Client, Memory};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

#[test]
fn every_outcome_is_counted_once() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let locks = Client::builder().open(|_| Ok(Memory::new())).unwrap();
            let mutex = locks.mutex("a").unwrap();
            let guard = mutex.lock().await.unwrap();
            assert!(mutex.try_lock().await.unwrap().is_none());
            assert!(mutex.lock().wait(Duration::from_millis(5)).await.unwrap_err().is_timeout());
            guard.release().await.unwrap();
            drop(mutex.lock().await.unwrap());
        });
    });
    let mut counts = BTreeMap::new();
    let mut waits = 0;
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let labels: Vec<_> = key.key().labels().map(|label| label.value().to_owned()).collect();
        match value {
            DebugValue::Counter(count) => drop(counts.insert(labels.join(" "), count)),
            DebugValue::Histogram(values) => waits += values.len(),
            DebugValue::Gauge(_) => {}
        }
    }
    let expected = [
        ("memory granted", 2),
        ("memory busy", 1),
        ("memory timeout", 1),
        ("memory release", 1),
        ("memory drop", 1),
    ];
    assert_eq!(counts, expected.into_iter().map(|(name, count)| (name.to_owned(), count)).collect());
    assert_eq!(waits, 4);
}
