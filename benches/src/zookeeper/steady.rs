//! Two measurements: the cost of held locks while nothing happens, and what abandoned locks leave.

use super::server::{requests, start, url};
use crate::client::{connect, threads};
use crate::figure::Measured;
use fencepost_testkit::zookeeper::ephemerals;
use std::time::{Duration, Instant};

const SPAN: Duration = Duration::from_secs(30);

/// Requests a second for so many held locks.
pub(crate) fn held(count: usize) -> Measured {
    let server = start();
    threads().block_on(async {
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
    threads().block_on(async {
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
