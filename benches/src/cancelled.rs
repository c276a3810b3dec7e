//! Requests that are given up at any moment, by the thousand.

use crate::client::{NAME, threads};
use crate::figure::Measured;
use fencepost::Locks;
use std::time::Duration;

/// Requests that are given up.
const COUNT: u64 = 10_000;
/// How many tasks ask and give up at the same time: few enough that the server keeps up, and many wait until it is their turn.
const TASKS: u64 = 8;
/// Fewer than so many who got what they asked for, or who did not, would leave one end untested.
const EITHER: u64 = 500;

/// Counts claims that are left, and what `left` counts at the server.
pub(crate) fn requests(url: &str, left: impl FnOnce() -> usize) -> Measured {
    let runtime = threads();
    let granted = runtime.block_on(async {
        let locks = Locks::connect(url).await.expect("a server that answers");
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let lock = locks.mutex(NAME).expect("a good name");
                tokio::spawn(async move {
                    let mut granted = 0;
                    for number in 0..COUNT / TASKS {
                        // From at once to a few milliseconds, each at another point; some wait until it is their turn.
                        let longest = if number % 4 == 0 { 60_000 } else { 8_000 };
                        let wait = Duration::from_micros((task * 7_919 + number * 104_729) % longest);
                        if let Ok(guard) = tokio::time::timeout(wait, lock.lock().into_future()).await {
                            granted += 1;
                            drop(guard);
                        }
                    }
                    granted
                })
            })
            .collect();
        let mut granted = 0;
        for task in tasks {
            granted += task.await.expect("a task that does not panic");
        }
        // Nothing but what is still being taken back is there, and that is not for long.
        while locks.backlog() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let guard = locks.mutex(NAME).expect("a good name").lock().await.expect("nobody is there");
        guard.release().await.expect("it is held");
        let claims = locks.inspect(NAME).await.expect("a server that answers").claims.len();
        locks.close().await;
        (granted, claims)
    });
    let left = granted.1 + left();
    let note =
        format!("{COUNT} requests by {TASKS} tasks, {} of them granted before they were given up", granted.0);
    let both = (EITHER..=COUNT - EITHER).contains(&granted.0);
    Measured { figure: if both { left as f64 } else { f64::NAN }, note }
}
