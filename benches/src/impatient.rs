//! Waits that end after a few milliseconds, by the ten thousand: what stays at the server.

use crate::client::{NAME, connect, threads};
use crate::figure::Measured;
use std::time::{Duration, Instant};

/// How many tasks wait at the same time.
const TASKS: usize = 8;
/// How many do so before the first count: more than a client has connections, so that all of them are open when it is taken.
/// Otherwise a connection that is opened later would count as left, with all the statements that are prepared on it.
const FIRST_TASKS: usize = 32;
/// Waits of each task before the first count, so that frequent statements are prepared on each connection.
const FIRST_WAITS: usize = 50;

/// How many more things of each kind the server has after `count` waits. `look` counts them, in the order of their names.
pub(crate) fn waits(url: &str, count: usize, kinds: &[&str], look: impl Fn() -> Vec<usize>) -> Measured {
    let runtime = threads();
    let (mut start, mut counted) = (Instant::now(), Vec::new());
    runtime.block_on(async {
        let (holder, locks) = (connect(url).await, connect(url).await);
        let guard = holder.mutex(NAME).expect("a good name").lock().await.expect("nobody else wants it");
        for (tasks, waits) in [(FIRST_TASKS, FIRST_WAITS), (TASKS, count / TASKS)] {
            start = Instant::now();
            let tasks: Vec<_> = (0..tasks)
                .map(|task| {
                    let lock = locks.mutex(NAME).expect("a good name");
                    tokio::spawn(async move {
                        for number in 0..waits {
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
            counted.push(look());
        }
        guard.release().await.expect("it is held");
        locks.close().await;
        holder.close().await;
    });
    let more: Vec<usize> =
        counted[1].iter().zip(&counted[0]).map(|(now, then)| now.saturating_sub(*then)).collect();
    let said: Vec<_> = kinds.iter().zip(&more).map(|(kind, more)| format!("{more} {kind}")).collect();
    let note = format!(
        "{count} waits of 1 to 5 ms in {:.0} s; {} more than before",
        start.elapsed().as_secs_f64(),
        said.join(", ")
    );
    Measured { figure: more.iter().sum::<usize>() as f64, note }
}
