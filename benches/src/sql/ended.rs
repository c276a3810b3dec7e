//! Holders whose backend or network ends, and clients that are killed.

use super::{ByHand, Sql, Stage, Way};
use crate::client::{NAME, connect, runtime};
use crate::command::Wrapper;
use crate::figure::{Measured, median};
use crate::side::{program, run};
use fencepost::{Locks, Loss};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// How often each happens.
const TIMES: usize = 50;

/// The longest time, in ms, until a holder whose backend was ended knows it.
pub(super) fn backends<S: Sql>(stage: &Stage<S>) -> Measured {
    let mut times = Vec::new();
    runtime().block_on(async {
        let locks = connect(&stage.url()).await;
        let lock = locks.mutex(NAME).expect("a good name");
        let killer = S::Hand::connect(&stage.bare_url(), Way::Session).await;
        for _ in 0..TIMES {
            let guard = lock.lock().await.expect("nobody else wants it");
            let began = killer.end_holder().await;
            assert_eq!(guard.lost().await, Loss::SessionEnded);
            times.push(began.elapsed().as_secs_f64() * 1e3);
        }
        locks.close().await;
    });
    let worst = times.iter().copied().fold(0.0, f64::max);
    Measured { figure: worst, note: format!("{TIMES} backends ended; {:.2} ms (median)", median(times)) }
}

/// The longest time, in seconds, from the kill of a client to the grants of those behind it: one waits for the lock that it held, one
/// stands behind its statement that waits.
pub(super) fn clients<S: Sql>(stage: &Stage<S>) -> Measured {
    let (runtime, mut times) = (runtime(), Vec::new());
    let (locks, others) =
        runtime.block_on(async { (connect(&stage.url()).await, connect(&stage.url()).await) });
    for _ in 0..TIMES / 5 {
        let mutex = |locks: &Locks, name| locks.mutex(name).expect("a good name");
        let guard = runtime.block_on(async { mutex(&locks, NAME).lock().await });
        let guard = guard.expect("nobody else wants it");
        let mut command = program(&[S::ENGINE, "side-waiter", &stage.url()]);
        command.stdin(Stdio::null());
        let mut side = Wrapper::start(command);
        assert_eq!(side.line(), "held");
        crate::crowd::wait_until("it waited", || stage.locks() == 3);
        let next = ["own", NAME].map(|name| {
            let mutex = mutex(&others, name);
            runtime.spawn(async move { mutex.lock().wait(Duration::from_secs(30)).await })
        });
        runtime.block_on(async {
            while stage.locks() < 5 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            side.kill();
            let killed = Instant::now();
            guard.release().await.expect("it is held");
            for next in next {
                let guard = next.await.expect("a task that does not panic").expect("its turn comes");
                times.push(killed.elapsed().as_secs_f64());
                guard.release().await.expect("it is held");
            }
        });
        crate::crowd::wait_until("nothing was left", || stage.locks() == 0);
    }
    runtime.block_on(async {
        locks.close().await;
        others.close().await;
    });
    let worst = times.iter().copied().fold(0.0, f64::max);
    let note = format!(
        "{} clients killed that held a lock and waited for another; the next ones were granted after {:.3} s (median)",
        TIMES / 5,
        median(times)
    );
    Measured { figure: worst, note }
}

/// A process that holds a lock and waits for another until it is killed.
pub(super) fn waiter(url: &str) {
    run(async {
        let locks = connect(url).await;
        let own = locks.mutex("own").expect("a good name").lock().await.expect("nobody else wants it");
        println!("held");
        let wait = Duration::from_secs(300);
        let _ = locks.mutex(NAME).expect("a good name").lock().wait(wait).await;
        drop(own);
    });
}
