//! kill -9 of a holder.

use super::crowd::observer;
use super::server::{start, url};
use crate::client::NAME;
use crate::command::Wrapper;
use crate::crowd::wait_until;
use crate::figure::{Measured, median};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const TIMES: usize = 5;
/// The session of a holder that is killed, and the server's tick.
const SESSION: Duration = Duration::from_secs(3);
const TICK: Duration = Duration::from_millis(500);

/// The longest time, in seconds, past its session and one tick after which a killed holder's lock is granted to the next.
pub(crate) fn holders() -> Measured {
    let server = start();
    let mut times = Vec::new();
    let (runtime, locks) = observer(&server);
    for _ in 0..TIMES {
        let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
        let url = format!("{}?session={}ms", url(&server), SESSION.as_millis());
        command.args(["side-holder", &url]).stdin(Stdio::null());
        let mut holder = Wrapper::start(command);
        assert_eq!(holder.line(), "held");
        let lock = locks.mutex(NAME).expect("a good name");
        let behind = runtime.spawn(async move { lock.lock().await });
        wait_until("the next one waits", || {
            runtime.block_on(locks.inspect(NAME)).expect("a server that answers").waiters().count() == 1
        });
        let killed = Instant::now();
        holder.kill();
        runtime.block_on(async {
            let next = behind.await.expect("a task that does not panic").expect("its turn comes");
            times.push(killed.elapsed().as_secs_f64() - (SESSION + TICK).as_secs_f64());
            next.release().await.expect("it is held");
        });
    }
    runtime.block_on(locks.close());
    let worst = times.iter().copied().fold(f64::MIN, f64::max);
    let note = format!(
        "{TIMES} holders in sessions of {} s, ticks of {} s; {:+.2} s (median)",
        SESSION.as_secs(),
        TICK.as_secs_f64(),
        median(times)
    );
    Measured { figure: worst, note }
}
