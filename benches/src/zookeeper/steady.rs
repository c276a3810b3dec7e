//! Three measurements: the cost of held locks while nothing happens, what abandoned locks leave, and the time until an ensemble
//! without its leader serves again.

use super::server::{requests, start, url};
use crate::client::connect;
use crate::crowd::wait_until;
use crate::figure::{Measured, median};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::zookeeper::{Config, Ensemble, ephemerals};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

const SPAN: Duration = Duration::from_secs(30);

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Requests a second for so many held locks.
pub(crate) fn held(count: usize) -> Measured {
    let server = start();
    runtime().block_on(async {
        let locks = connect(&url(&server)).await;
        let mut guards = Vec::with_capacity(count);
        for number in 0..count {
            let lock = locks.mutex(&format!("held/{number}")).expect("a good name");
            guards.push(lock.lock().await.expect("nobody else wants it"));
        }
        let before = requests(&server);
        tokio::time::sleep(SPAN).await;
        let sent = requests(&server) - before;
        let lost = guards.iter().filter(|guard| guard.ensure_held().is_err()).count();
        for guard in guards {
            guard.release().await.expect("it is held");
        }
        locks.close().await;
        let figure = if lost == 0 { sent / SPAN.as_secs_f64() } else { f64::NAN };
        let note = format!(
            "{count} locks over {} s: {sent} requests, the count itself among them; {lost} lost",
            SPAN.as_secs()
        );
        Measured { figure, note }
    })
}

/// How many nodes are left of so many claims that were given up while others lock and release.
pub(crate) fn cancelled(count: usize) -> Measured {
    let server = start();
    let runtime = runtime();
    runtime.block_on(async {
        let locks = connect(&url(&server)).await;
        let busy: Vec<_> = (0..4)
            .map(|_| {
                let lock = locks.mutex("crowded").expect("a good name");
                tokio::spawn(async move {
                    loop {
                        lock.lock().await.expect("its turn comes").release().await.expect("it is held");
                    }
                })
            })
            .collect();
        let lock = locks.mutex("crowded").expect("a good name");
        for number in 0..count {
            let patience = Duration::from_micros(number as u64 * 37 % 5_000);
            // Given up before it is sent, on its way, in the queue, or when it is granted.
            let _ = tokio::time::timeout(patience, lock.lock()).await;
        }
        busy.iter().for_each(tokio::task::JoinHandle::abort);
        for task in busy {
            let _ = task.await;
        }
        let start = Instant::now();
        let left = || {
            ephemerals(server.address())
                .expect("a server that answers")
                .iter()
                .filter(|path| path.contains("-lock-"))
                .count()
        };
        while left() > 0 && start.elapsed() < Duration::from_secs(10) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let figure = left() as f64;
        locks.close().await;
        Measured {
            figure,
            note: format!("{count} claims given up after 0 to 5 ms, beside 4 tasks that lock and release"),
        }
    })
}

/// Seconds until a lock can be taken again after the leader's end, at worst; no figure if a guard was lost by it.
pub(crate) fn leader() -> Measured {
    const TIMES: usize = 5;
    let mut ensemble = Ensemble::start(&Config::new().tick(Duration::from_millis(200))).expect("an ensemble");
    let runtime = runtime();
    let url = format!("{}/leader?session=10s", ensemble.url());
    let locks = runtime.block_on(connect(&url));
    let (mut times, mut lost) = (Vec::new(), 0);
    for _ in 0..TIMES {
        let lock = locks.mutex("held").expect("a good name");
        let guard = runtime.block_on(async { lock.lock().await }).expect("nobody else wants it");
        ensemble.kill().expect("a leader that can be killed");
        let killed = Instant::now();
        let cycle = async {
            let lock = locks.mutex("another").expect("a good name");
            lock.lock().wait(Duration::from_secs(30)).await.expect("it serves again").release().await
        };
        runtime.block_on(cycle).expect("it is held");
        times.push(killed.elapsed().as_secs_f64());
        ensemble.restart().expect("a server that starts again");
        lost += usize::from(guard.ensure_held().is_err());
        drop(guard);
        wait_until("the lock is free", || {
            runtime.block_on(locks.inspect("held")).is_ok_and(|info| info.claims.is_empty())
        });
    }
    runtime.block_on(locks.close());
    let worst = times.iter().copied().fold(0.0, f64::max);
    let note =
        format!("{TIMES} kills in sessions of 10 s; {:.2} s (median); {lost} guards lost", median(times));
    Measured { figure: if lost == 0 { worst } else { f64::NAN }, note }
}
