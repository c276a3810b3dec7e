//! Waits that end after a few milliseconds, by the ten thousand: what stays at the server.

use super::{Sql, Stage};
use crate::client::{NAME, connect};
use crate::figure::Measured;
use std::time::{Duration, Instant};
use tokio::runtime::Builder;

/// How many tasks wait at the same time.
const TASKS: usize = 8;
/// Waits before the first count: connections are made, and frequent statements are prepared.
const FIRST: usize = 400;

/// How many more prepared statements, connections, claims and notes the server has after `count` waits.
pub(super) fn waits<S: Sql>(stage: &Stage<S>, left: &str, count: usize) -> Measured {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let (mut start, mut counted) = (Instant::now(), Vec::new());
    runtime.block_on(async {
        let (holder, locks) = (connect(&stage.url()).await, connect(&stage.url()).await);
        let guard = holder.mutex(NAME).expect("a good name").lock().await.expect("nobody else wants it");
        for waits in [FIRST, count] {
            start = Instant::now();
            let tasks: Vec<_> = (0..TASKS)
                .map(|task| {
                    let lock = locks.mutex(NAME).expect("a good name");
                    tokio::spawn(async move {
                        for number in 0..waits / TASKS {
                            let wait = Duration::from_millis(1 + ((task + number) % 5) as u64);
                            assert!(lock.lock().wait(wait).await.is_err(), "it is held");
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("a task that does not panic");
            }
            // Claims that are still being taken back are there, and that is not for long.
            while locks.backlog() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            counted.push([stage.number(S::STATEMENTS), stage.connections(), stage.number(left)]);
        }
        guard.release().await.expect("it is held");
        locks.close().await;
        holder.close().await;
    });
    let more: Vec<usize> =
        counted[1].iter().zip(&counted[0]).map(|(now, then)| now.saturating_sub(*then)).collect();
    let note = format!(
        "{count} waits of 1 to 5 ms in {:.0} s; {} prepared statements, {} connections and {} claims more than before",
        start.elapsed().as_secs_f64(),
        more[0],
        more[1],
        more[2]
    );
    Measured { figure: more.iter().sum::<usize>() as f64, note }
}
