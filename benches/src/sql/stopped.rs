//! A process that is stopped (SIGSTOP) while its claims wait in the server's queue.

use super::{Sql, Stage};
use crate::client::{NAME, connect, runtime};
use crate::command::Wrapper;
use crate::crowd::wait_until;
use crate::figure::{Measured, median};
use crate::side::{program, run};
use nix::sys::signal::{Signal, kill};
use std::process::Stdio;
use std::time::{Duration, Instant};

const TIMES: usize = 5;
/// Claims of the stopped process.
const CLAIMS: usize = 8;

/// The longest time, in seconds, from the release of a lock to the grant of the claim behind those of a stopped process.
pub(super) fn waiters<S: Sql>(stage: &Stage<S>) -> Measured {
    let (runtime, mut times) = (runtime(), Vec::new());
    let (locks, others) =
        runtime.block_on(async { (connect(&stage.url()).await, connect(&stage.url()).await) });
    for _ in 0..TIMES {
        let lock = locks.mutex(NAME).expect("a good name");
        let guard = runtime.block_on(async { lock.lock().await }).expect("nobody else wants it");
        let mut command = program(&[S::ENGINE, "side-waiters", &stage.url()]);
        command.stdin(Stdio::null());
        let mut side = Wrapper::start(command);
        wait_until("it waited", || stage.locks() > 1);
        let waiting = stage.locks();
        let next = others.mutex(NAME).expect("a good name");
        let next = runtime.spawn(async move { next.lock().wait(Duration::from_secs(600)).await });
        runtime.block_on(async {
            while stage.locks() == waiting {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            kill(side.pid(), Signal::SIGSTOP).expect("a process that runs");
            let released = Instant::now();
            guard.release().await.expect("it is held");
            let guard = next.await.expect("a task that does not panic").expect("its turn comes");
            times.push(released.elapsed().as_secs_f64());
            side.kill();
            guard.release().await.expect("it is held");
        });
        wait_until("nothing was left", || stage.locks() == 0);
    }
    runtime.block_on(async {
        locks.close().await;
        others.close().await;
    });
    let worst = times.iter().copied().fold(0.0, f64::max);
    let note = format!("{TIMES} processes with {CLAIMS} claims each; {:.2} s (median)", median(times));
    Measured { figure: worst, note }
}

/// A process whose claims wait until it is killed.
pub(super) fn side(url: &str) {
    run(async {
        let locks = connect(url).await;
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..CLAIMS {
            let lock = locks.mutex(NAME).expect("a good name");
            waiting.spawn(async move { lock.lock().wait(Duration::from_secs(600)).await });
        }
        while waiting.join_next().await.is_some() {}
    });
}
