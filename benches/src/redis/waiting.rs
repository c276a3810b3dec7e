//! What waiting costs the server.

use super::crowd::{PROCESSES, ours};
use super::server::{Auditor, start, url};
use super::{NAME, connect};
use crate::command::Wrapper;
use crate::figure::Measured;
use fencepost::Locks;
use fencepost_testkit::redis::Redis;
use std::process::Stdio;
use std::time::{Duration, Instant};

const WAITERS: usize = 1_000;
const SPAN: Duration = Duration::from_secs(20);

/// Commands per process and second of a thousand that wait.
pub(crate) fn commands() -> Measured {
    let server = start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let locks = connect(&url(&server)).await;
        // A lease that needs no renewal while they are watched.
        let lease = Duration::from_secs(600);
        let guard = locks.mutex(NAME).expect("a good name").try_lock().lease(lease).await.expect("a server");
        let guard = guard.expect("nobody else wants it");
        let mut sides = stand(&server, &locks, PROCESSES, WAITERS / PROCESSES).await;
        let mut auditor = Auditor::of(&server);
        // By now the connections that keep the places are there.
        tokio::time::sleep(Duration::from_secs(3)).await;
        auditor.reset();
        let start = Instant::now();
        tokio::time::sleep(SPAN).await;
        let (sent, which) = auditor.sent();
        // One command each second: a span of so many seconds holds the beats at both of its ends.
        let figure = sent / PROCESSES as f64 / (start.elapsed().as_secs_f64() + 1.0);
        sides.iter_mut().for_each(Wrapper::kill);
        guard.release().await.expect("it is held");
        Measured {
            figure,
            note: format!("{WAITERS} waiters in {PROCESSES} processes over {} s: {which}", SPAN.as_secs()),
        }
    })
}

/// Starts processes with so many waiters each, and returns when all of them stand in line.
pub(super) async fn stand(server: &Redis, locks: &Locks, processes: usize, each: usize) -> Vec<Wrapper> {
    let waiting = async || locks.inspect(NAME).await.expect("a server that answers").waiters().count();
    let there = waiting().await;
    let mut sides = Vec::with_capacity(processes);
    for _ in 0..processes {
        let mut command = ours(server);
        command.stdin(Stdio::piped());
        let mut side = Wrapper::start(command);
        assert_eq!(side.line(), "ready");
        side.say(&format!("line {each}"));
        assert_eq!(side.line(), "waiting");
        sides.push(side);
    }
    while waiting().await < there + processes * each {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    sides
}
