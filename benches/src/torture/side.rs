//! One process of the torture: its tasks lock and release at random, and write down what they are told.

use super::LEASE;
use crate::side::run;
use fencepost::Locks;
use fencepost_testkit::history::{Key, Mode, Patience, Recorder, What};
use fencepost_testkit::sim::Rng;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Tasks in each process, and the locks that all share.
const TASKS: usize = 16;
pub(super) const LOCKS: usize = 8;

/// The name of a lock.
pub(super) fn name(number: usize) -> String {
    format!("torture/{number}")
}

/// Runs until `cycles` are done, over all processes that sat here: `tally` counts a byte each hundred cycles.
pub(crate) fn side(url: &str, history: &Path, tally: &Path, process: u32, cycles: usize) {
    run(async {
        let locks = Locks::builder(url).ttl(LEASE).connect().await;
        println!("ready");
        // The network may have been cut before it began.
        let Ok(locks) = locks else { return };
        let recorder = Recorder::to_file(process, history).expect("a file for the history");
        let before = std::fs::metadata(tally).map_or(0, |meta| meta.len() as usize * 100);
        let left = Arc::new(AtomicUsize::new(cycles.saturating_sub(before)));
        let tally =
            std::fs::OpenOptions::new().create(true).append(true).open(tally).expect("a file to count in");
        let tally = Arc::new(tally);
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let worker = Worker {
                    locks: locks.clone(),
                    recorder: recorder.clone(),
                    left: Arc::clone(&left),
                    tally: Arc::clone(&tally),
                };
                tokio::spawn(worker.work(Rng::new(u64::from(process) * 100 + task as u64)))
            })
            .collect();
        for task in tasks {
            task.await.expect("a task that does not panic");
        }
        locks.close().await;
    });
}

struct Worker {
    locks: Locks,
    recorder: Recorder,
    left: Arc<AtomicUsize>,
    tally: Arc<std::fs::File>,
}

impl Worker {
    async fn work(self, mut rng: Rng) {
        while self.left.load(Ordering::SeqCst) > 0 {
            let resource: Arc<str> = name(rng.below(LOCKS as u64) as usize).into();
            let lock = self.locks.mutex(&resource).expect("a good name");
            let wait = Duration::from_secs(20);
            let patience = Patience::Until(self.recorder.now() + wait.as_nanos() as u64);
            let key = self.recorder.asked(&resource, Mode::Exclusive, patience, LEASE.as_nanos() as u64);
            match lock.lock().wait(wait).await {
                Ok(guard) => self.held(key, guard, &mut rng).await,
                Err(error) if error.is_timeout() => self.recorder.record(key, What::TimedOut),
                Err(_) => {
                    self.recorder.record(key, What::Failed);
                    // The server is away: no need to ask a thousand times a second.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    async fn held(&self, key: Key, guard: fencepost::Guard, rng: &mut Rng) {
        let granted = What::Granted { token: guard.token().get(), until: guard.valid_until().as_nanos() };
        self.recorder.record(key, granted);
        if self
            .left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
            .is_ok_and(|left| left % 100 == 0)
        {
            (&*self.tally).write_all(b".").expect("a file to count in");
        }
        // 1 % hold for long, up to a second: they are renewed, and must be told of their loss.
        let looks = if rng.chance(10) { rng.below(20) } else { 0 };
        for look in 0..=looks {
            match look {
                0 => tokio::task::yield_now().await,
                _ => tokio::time::sleep(Duration::from_millis(50)).await,
            }
            let believes = || guard.ensure_held().is_ok().then(|| guard.valid_until().as_nanos());
            if !self.recorder.ensured(key, believes) {
                self.recorder.record(key, What::Lost);
                return;
            }
        }
        self.recorder.record(key, What::ReleaseBegan);
        if rng.chance(200) {
            drop(guard);
        } else {
            let sure = guard.release().await.is_ok();
            self.recorder.record(key, What::Released { sure });
        }
    }
}
