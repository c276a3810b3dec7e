//! Closes of a client whose guards are held, and of one whose server hangs.

use crate::client::{NAME, connect, runtime};
use crate::figure::{Measured, median};
use crate::redis;
use fencepost::{Locks, Loss};
use fencepost_testkit::faults::Faults;
use std::time::Instant;

/// How many clients are closed.
const TIMES: usize = 5;

/// The longest close, in seconds, beside one guard that is kept and one whose task releases it when it is told.
pub(crate) fn beside_holders(url: &str) -> Measured {
    let close = || {
        runtime().block_on(async {
            let locks = connect(url).await;
            let kept = locks.mutex("kept").expect("a good name").lock().await.expect("it is free");
            let told = locks.mutex(NAME).expect("a good name").lock().await.expect("it is free");
            let told = tokio::spawn(async move {
                let why = told.lost().await;
                let _ = told.release().await;
                why
            });
            let took = timed(&locks).await;
            let reasons = [kept.lost().await, told.await.expect("a task that does not panic")];
            assert_eq!(reasons, [Loss::Closed, Loss::Closed]);
            took
        })
    };
    measured((0..TIMES).map(|_| close()).collect(), "beside 2 guards")
}

/// The longest close, in seconds, of a client whose guard was dropped while the server hung.
pub(crate) fn at_a_hung_server() -> Measured {
    let mut server = redis::start();
    let mut close = || {
        runtime().block_on(async {
            let locks = connect(&server.url()).await;
            let guard = locks.mutex(NAME).expect("a good name").lock().await.expect("it is free");
            server.stop().expect("it can be stopped");
            drop(guard);
            let took = timed(&locks).await;
            server.cont().expect("it can go on");
            took
        })
    };
    measured((0..TIMES).map(|_| close()).collect(), "at a server that hangs")
}

async fn timed(locks: &Locks) -> f64 {
    let start = Instant::now();
    locks.close().await;
    start.elapsed().as_secs_f64()
}

fn measured(times: Vec<f64>, where_: &str) -> Measured {
    let worst = times.iter().copied().fold(f64::MIN, f64::max);
    Measured { figure: worst, note: format!("{TIMES} closes {where_}: {:.2} s (median)", median(times)) }
}
