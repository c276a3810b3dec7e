//! The server's cost of waiting.

use super::monitor::Monitor;
use super::server::start;
use crate::client::{NAME, connect, runtime};
use crate::command::Wrapper;
use crate::crowd::{PROCESSES, ours};
use crate::figure::Measured;
use fencepost::Locks;
use fencepost_testkit::redis::Redis;
use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

const WAITERS: usize = 1_000;
const SPAN: Duration = Duration::from_secs(30);

/// Commands per process and second of a thousand that wait.
pub(crate) fn commands() -> Measured {
    let server = start();
    let runtime = runtime();
    runtime.block_on(async {
        let locks = connect(&server.url()).await;
        // A lease that needs no renewal while they are watched.
        let lease = Duration::from_secs(600);
        let guard = locks.mutex(NAME).expect("a good name").try_lock().ttl(lease).no_renewal().await.expect("a server");
        let guard = guard.expect("nobody else wants it");
        let mut sides = stand(&server, &locks, PROCESSES, WAITERS / PROCESSES).await;
        // By now the connections that keep the places are there.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let seen = tokio::task::spawn_blocking({
            let url = server.url();
            move || {
                let monitor = Monitor::of(&url);
                std::thread::sleep(SPAN);
                monitor.end()
            }
        });
        let sent = seen.await.expect("a server that shows its commands");
        let mut seen: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        sent.iter().for_each(|sent| seen.entry(&sent.address).or_default().push(sent.at));
        sides.iter_mut().for_each(Wrapper::kill);
        guard.release().await.expect("it is held");
        let (commands, connections) = (sent.len(), seen.len());
        let figure = seen.values().map(|times| rate(times, SPAN)).sum::<f64>() / PROCESSES as f64;
        Measured {
            figure,
            note: format!(
                "{WAITERS} waiters in {PROCESSES} processes over {} s: {commands} commands on {connections} connections, \
                 counted from each connection's first to its last",
                SPAN.as_secs()
            ),
        }
    })
}

/// Commands a second, from the first to the last: a span has a beat more or less by where it begins.
fn rate(times: &[f64], span: Duration) -> f64 {
    match times {
        [first, .., last] if last > first => (times.len() - 1) as f64 / (last - first),
        _ => times.len() as f64 / span.as_secs_f64(),
    }
}

/// Starts processes with so many waiters each, and returns when all of them wait in the queue.
pub(super) async fn stand(server: &Redis, locks: &Locks, processes: usize, each: usize) -> Vec<Wrapper> {
    let waiting = async || locks.inspect(NAME).await.expect("a server that answers").waiters().count();
    let there = waiting().await;
    let mut sides = Vec::with_capacity(processes);
    for _ in 0..processes {
        let mut command = ours(&server.url());
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
