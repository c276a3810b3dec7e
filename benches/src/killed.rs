//! kill -9 of holders: when their lock is granted to the next.

use crate::client::{NAME, connect, runtime};
use crate::command::Wrapper;
use crate::figure::{Measured, median};
use crate::side::{program, run};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// How often one is killed.
const TIMES: usize = 5;
/// The lease of a holder that is killed.
pub(crate) const LEASE: Duration = Duration::from_secs(3);

/// The longest time, in seconds, past `kept` after which a killed holder's lock is granted to the next. `held` says in words how
/// long the server keeps it.
pub(crate) fn holders(url: &str, kept: Duration, held: &str) -> Measured {
    let mut times = Vec::new();
    for _ in 0..TIMES {
        let mut command = program(&["side-holder", url]);
        command.stdin(Stdio::null());
        let mut holder = Wrapper::start(command);
        assert_eq!(holder.line(), "held");
        runtime().block_on(async {
            let locks = connect(url).await;
            let lock = locks.mutex(NAME).expect("a good name");
            let behind = tokio::spawn(async move { lock.lock().await });
            while locks.inspect(NAME).await.expect("a server that answers").waiters().count() == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let killed = Instant::now();
            holder.kill();
            let next = behind.await.expect("a task that does not panic").expect("its turn comes");
            times.push(killed.elapsed().as_secs_f64() - kept.as_secs_f64());
            next.release().await.expect("it is held");
            locks.close().await;
        });
    }
    let worst = times.iter().copied().fold(f64::MIN, f64::max);
    let note = format!("{TIMES} holders {held}; {:+.2} s (median)", median(times));
    Measured { figure: worst, note }
}

/// One that holds until it is killed.
pub(crate) fn side(url: &str) {
    run(async {
        let locks = connect(url).await;
        let guard =
            locks.mutex(NAME).expect("a good name").lock().ttl(LEASE).await.expect("nobody else wants it");
        println!("held");
        guard.lost().await;
    });
}
