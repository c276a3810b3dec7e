//! kill -9 of a process with many waiters.

use super::server::start;
use super::waiting::stand;
use crate::client::{NAME, connect, runtime};
use crate::command::Wrapper;
use crate::figure::{Measured, median};
use fencepost_testkit::redis::Redis;
use std::time::{Duration, Instant};

/// How often one is killed.
const TIMES: usize = 5;

/// The longest time, in seconds, that a process with this many waiters costs the one behind them when it is killed.
pub(crate) fn waiters() -> Measured {
    let mut notes = Vec::new();
    let mut worst: f64 = 0.0;
    for count in [1, 100, 1_000] {
        let server = start();
        let seconds: Vec<f64> = (0..TIMES).map(|_| one_killed(&server, count)).collect();
        let slowest = seconds.iter().copied().fold(0.0, f64::max);
        worst = worst.max(slowest);
        notes.push(format!("{count} waiters: {:.2} s (median), {slowest:.2} s (worst)", median(seconds)));
    }
    Measured { figure: worst, note: format!("{TIMES} kills each; {}", notes.join("; ")) }
}

fn one_killed(server: &Redis, count: usize) -> f64 {
    runtime().block_on(async {
        let locks = connect(&server.url()).await;
        let lock = locks.mutex(NAME).expect("a good name");
        let guard = lock.lock().await.expect("nobody else wants it");
        let mut doomed = stand(server, &locks, 1, count).await;
        let behind = tokio::spawn(async move { lock.lock().await });
        while locks.inspect(NAME).await.expect("a server that answers").waiters().count() <= count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // The lock passes to the dead at once: nothing had the time to notice.
        doomed.iter_mut().for_each(Wrapper::kill);
        let killed = Instant::now();
        guard.release().await.expect("it is held");
        let next = behind.await.expect("a task that does not panic").expect("its turn comes");
        let seconds = killed.elapsed().as_secs_f64();
        next.release().await.expect("it is held");
        locks.close().await;
        seconds
    })
}
