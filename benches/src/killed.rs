//! kill -9 of holders, of those who wait behind them, and of leaders: when the lock is granted to the next.

use crate::client::{NAME, connect, runtime, threads};
use crate::command::Wrapper;
use crate::cycle::Counted;
use crate::figure::{Measured, median};
use crate::side::{program, run};
use fencepost::Locks;
use fencepost_testkit::faults::Faults;
use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// How often one is killed.
const TIMES: usize = 5;
/// The lease of a holder that is killed.
pub(crate) const LEASE: Duration = Duration::from_secs(3);
/// The lease of those who hold while a leader is killed.
const HELD: Duration = Duration::from_secs(10);
/// How many they hold.
const LOCKS: usize = 200;

/// What came of some kills.
pub(crate) struct Killed {
    /// How long it took until the next was granted, in seconds.
    pub(crate) seconds: Vec<f64>,
    /// Tokens that did not grow, and what is left.
    pub(crate) wrong: Vec<String>,
}

impl Killed {
    pub(crate) fn worst(&self) -> f64 {
        self.seconds.iter().copied().fold(f64::MIN, f64::max)
    }

    fn measured(self, note: String) -> Measured {
        let first = self.wrong.first().map_or_else(String::new, |first| format!("; first: {first}"));
        let figure = if self.wrong.is_empty() { self.worst() } else { f64::NAN };
        Measured { figure, note: format!("{note}; {:+.2} s (median){first}", median(self.seconds)) }
    }
}

/// The longest time, in seconds, past its lease after which a killed holder's lock is granted to the next.
pub(crate) fn holders(server: &impl Counted) -> Measured {
    past(&server.client_url(), LEASE, &format!("with a lease of {} s", LEASE.as_secs()))
}

/// The same past `kept`. `held` says in words how long the server keeps the lock.
pub(crate) fn past(url: &str, kept: Duration, held: &str) -> Measured {
    let mut killed = kill(url, TIMES, false);
    killed.seconds.iter_mut().for_each(|seconds| *seconds -= kept.as_secs_f64());
    killed.measured(format!("{TIMES} holders {held}"))
}

/// Kills a holder so many times; before that, if `also_waiters`, one who waits between the holder and the next.
pub(crate) fn kill(url: &str, times: usize, also_waiters: bool) -> Killed {
    let (mut seconds, mut wrong, mut last) = (Vec::with_capacity(times), Vec::new(), 0);
    runtime().block_on(async {
        let locks = connect(url).await;
        let lock = locks.mutex(NAME).expect("a good name");
        for turn in 0..times {
            let mut holder = claimant(url);
            let held: u64 = holder.line().parse().expect("the holder's token");
            let mut waiter = also_waiters.then(|| claimant(url));
            waiting(&locks, usize::from(also_waiters)).await;
            let lock = lock.clone();
            let next = tokio::spawn(async move { lock.lock().await });
            waiting(&locks, 1 + usize::from(also_waiters)).await;
            waiter.iter_mut().for_each(Wrapper::kill);
            let killed = Instant::now();
            holder.kill();
            let next = next.await.expect("a task that does not panic").expect("its turn comes");
            seconds.push(killed.elapsed().as_secs_f64());
            let token = next.token().get();
            if held <= last || token <= held {
                wrong.push(format!("kill {turn}: tokens {last}, {held}, {token}"));
            }
            last = token;
            next.release().await.expect("it is held");
        }
        let left = locks.inspect(NAME).await.expect("a server that answers").claims.len();
        wrong.extend((left > 0).then(|| format!("{left} claims are left")));
        locks.close().await;
    });
    Killed { seconds, wrong }
}

async fn waiting(locks: &Locks, count: usize) {
    while locks.inspect(NAME).await.expect("a server that answers").waiters().count() < count {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn claimant(url: &str) -> Wrapper {
    let mut command = program(&["side-claimant", url]);
    command.stdin(Stdio::null());
    Wrapper::start(command)
}

/// One that waits for the lock, says its token, and stays until it is killed.
pub(crate) fn side(url: &str) {
    run(async {
        let locks = connect(url).await;
        let lock = locks.mutex(NAME).expect("a good name");
        let guard = lock.lock().ttl(LEASE).await.expect("its turn comes");
        println!("{}", guard.token());
        // A reader sees the line at once or not at all.
        let _ = std::io::stdout().flush();
        guard.lost().await;
    });
}

/// The longest time, in seconds, that nothing could be locked after the leader was killed. No figure if a guard was lost or a token did
/// not grow. `servers` says in words what they are.
pub(crate) fn leaders(mut cluster: impl Faults, url: &str, servers: &str) -> Measured {
    let (mut seconds, mut wrong) = (Vec::new(), Vec::new());
    threads().block_on(async {
        let locks = connect(url).await;
        let mut held = Vec::new();
        for number in 0..LOCKS {
            let lock = locks.mutex(&format!("held-{number}")).expect("a good name");
            held.push(lock.lock().ttl(HELD).await.expect("nobody else wants it"));
        }
        let lock = locks.mutex(NAME).expect("a good name");
        let mut last = None;
        for turn in 0..TIMES {
            let killed = Instant::now();
            cluster.kill().expect("a leader that can be killed");
            let guard = lock.lock().wait(Duration::from_secs(60)).await.expect("the cluster is back");
            seconds.push(killed.elapsed().as_secs_f64());
            let token = Some(guard.token());
            if token <= last {
                wrong.push(format!("kill {turn}: token {token:?} after {last:?}"));
            }
            last = token;
            guard.release().await.expect("it is held");
            cluster.restart().expect("a server that starts again");
        }
        // Long enough for every lease to have run out, had it not been renewed.
        tokio::time::sleep(HELD + Duration::from_secs(1)).await;
        let lost = held.iter().filter(|guard| guard.ensure_held().is_err()).count();
        wrong.extend((lost > 0).then(|| format!("{lost} of {LOCKS} guards were lost")));
        for guard in held {
            let _ = guard.release().await;
        }
        locks.close().await;
    });
    Killed { seconds, wrong }.measured(format!("{TIMES} leaders of {servers} killed with {LOCKS} locks held"))
}
