//! Holders whose backend or network ends, and clients that are killed.

use super::{number, start};
use crate::client::{NAME, connect, runtime};
use crate::command::Wrapper;
use crate::figure::{Measured, median};
use crate::side::{program, run};
use fencepost::Loss;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// How often each happens.
const TIMES: usize = 50;

/// The longest time, in ms, until a holder whose backend was ended knows it.
pub(crate) fn backends() -> Measured {
    let (server, mut times) = (start(), Vec::new());
    runtime().block_on(async {
        let locks = connect(&server.url()).await;
        let lock = locks.mutex(NAME).expect("a good name");
        let (killer, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls)
            .await
            .expect("a server that answers");
        tokio::spawn(connection);
        for _ in 0..TIMES {
            let guard = lock.lock().await.expect("nobody else wants it");
            let end = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'";
            let began = Instant::now();
            killer.simple_query(end).await.expect("a server that answers");
            assert_eq!(guard.lost().await, Loss::SessionEnded);
            times.push(began.elapsed().as_secs_f64() * 1e3);
        }
        locks.close().await;
    });
    let worst = times.iter().copied().fold(0.0, f64::max);
    Measured { figure: worst, note: format!("{TIMES} backends ended; {:.2} ms (median)", median(times)) }
}

/// The longest time, in seconds, until nothing is left of a client that was killed while its statement waited, and of its locks.
pub(crate) fn clients() -> Measured {
    let (server, mut times) = (start(), Vec::new());
    let count = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    let runtime = runtime();
    let locks = runtime.block_on(connect(&server.url()));
    for _ in 0..TIMES / 5 {
        let guard = runtime.block_on(async { locks.mutex(NAME).expect("a good name").lock().await });
        let guard = guard.expect("nobody else wants it");
        let mut command = program(&["postgres-side-waiter", &server.url()]);
        command.stdin(Stdio::null());
        let mut side = Wrapper::start(command);
        assert_eq!(side.line(), "held");
        crate::crowd::wait_until("it waited", || number(&server, count) == 3);
        side.kill();
        let killed = Instant::now();
        crate::crowd::wait_until("it was gone", || number(&server, count) == 1);
        times.push(killed.elapsed().as_secs_f64());
        runtime.block_on(guard.release()).expect("it is held");
    }
    runtime.block_on(locks.close());
    let worst = times.iter().copied().fold(0.0, f64::max);
    let note = format!(
        "{} clients killed that held a lock and waited for another; {:.2} s (median), with the time of psql",
        TIMES / 5,
        median(times)
    );
    Measured { figure: worst, note }
}

/// A process that holds a lock and waits for another until it is killed.
pub(crate) fn waiter(url: &str) {
    run(async {
        let locks = connect(url).await;
        let own = locks.mutex("own").expect("a good name").lock().await.expect("nobody else wants it");
        println!("held");
        let wait = Duration::from_secs(300);
        let _ = locks.mutex(NAME).expect("a good name").lock().wait(wait).await;
        drop(own);
    });
}
